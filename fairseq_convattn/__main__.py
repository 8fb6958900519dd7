"""``python -m fairseq_convattn``: the architectures and options that the plugin adds."""

import argparse

from .architectures import ConvAttnModel
from .architectures.overview import VOCABULARY, architecture_table
from .architectures.presets import ARCHITECTURE_NAMES


def main() -> None:
    names = ", ".join(name.format("X") for name in ARCHITECTURE_NAMES.values())
    parser = argparse.ArgumentParser(
        usage="fairseq-train DATA --user-dir fairseq_convattn --arch ARCH [options]",
        description="Options that the architectures of fairseq_convattn add to fairseq-train, "
        "which prints only its own with --help.",
        epilog=f"Architectures: convattn, whose defaults are given above, and {names} (sizes "
        f"with {VOCABULARY:,} shared types):\n\n{architecture_table()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    ConvAttnModel.add_args(parser)
    parser.print_help()


if __name__ == "__main__":
    main()
