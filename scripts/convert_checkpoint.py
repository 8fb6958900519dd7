#!/usr/bin/env python
"""Turn a LightConv or DynamicConv checkpoint of 2019 into one of this plugin.

A translation model then decodes with
  fairseq-generate DATA --user-dir fairseq_convattn --path NEW \\
    --required-batch-size-multiple 1 --beam 5 --remove-bpe
and a language model scores with
  fairseq-eval-lm DATA --user-dir fairseq_convattn --path NEW
Both are fine-tuned with fairseq-train, --finetune-from-model NEW and the model options that
this command prints.
"""

import argparse
import shlex
import sys

from fairseq_convattn.architectures.config import ENCODER_DECODER, LANGUAGE_MODEL, complete
from fairseq_convattn.checkpoint_files import CheckpointError
from fairseq_convattn.legacy_checkpoint import convert_checkpoint


def model_options(args: argparse.Namespace) -> str:
    """The fairseq-train options of a configuration: whatever is not the default."""
    options = ["--arch", "convattn"]
    schema = ENCODER_DECODER
    if not hasattr(args, "encoder_layers"):
        options = ["--task", "language_modeling", "--arch", "convattn_lm"]
        schema = LANGUAGE_MODEL
    default = vars(complete(argparse.Namespace(), schema))
    for name, value in sorted(vars(args).items()):
        if value == default.get(name) or value is False or name == "_name":
            continue
        options.append(f"--{name.replace('_', '-')}")
        if isinstance(value, list):
            options.append(",".join(map(str, value)))
        elif value is not True:
            options.append(str(value))
    return shlex.join(options)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", metavar="OLD", help="checkpoint that fairseq wrote, v0.6 or later")
    parser.add_argument("new", metavar="NEW", help="file to write; it must not exist")
    arguments = parser.parse_args()
    try:
        args = convert_checkpoint(arguments.old, arguments.new)
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {arguments.new}\nto fine-tune it: {model_options(args)}")


if __name__ == "__main__":
    main()
