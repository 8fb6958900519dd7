#!/usr/bin/env python
"""Turn ALBERT, as Hugging Face's transformers stores it, into a model of this plugin.

NEW gets checkpoint.pt, dict.txt and sentencepiece.bpe.model. On GLUE it is fine-tuned by
  bash scripts/prepare_glue.sh --sentencepiece NEW/sentencepiece.bpe.model \\
    --dictionary NEW/dict.txt --output NEW_glue
  bash scripts/finetune_glue.sh TASK NEW/checkpoint.pt --data NEW_glue/bin
"""

import argparse
import logging
import sys
from pathlib import Path

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)  # before fairseq, which logs while it is imported

from fairseq_convattn.albert_checkpoint import MIXERS, convert_albert
from fairseq_convattn.checkpoint_files import CheckpointError


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "old",
        type=Path,
        metavar="OLD",
        help="folder with config.json, spiece.model and pytorch_model.bin or model.safetensors, "
        "as albert-base-v2",
    )
    parser.add_argument("new", type=Path, metavar="NEW", help="folder to write; it must not exist")
    parser.add_argument(
        "--mixer",
        choices=MIXERS,
        default="tisa",
        help="what ALBERT's attention becomes: itself, or with new terms for positions "
        "(default: tisa)",
    )
    parser.add_argument(
        "--keep-positions",
        action="store_true",
        help="keep its embeddings of positions too (with attention they always stay)",
    )
    arguments = parser.parse_args()
    try:
        convert_albert(arguments.old, arguments.new, arguments.mixer, arguments.keep_positions)
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: {error}")
    new = arguments.new
    print(
        f"wrote {new}\nto fine-tune it: bash scripts/prepare_glue.sh --sentencepiece "
        f"{new}/sentencepiece.bpe.model --dictionary {new}/dict.txt --output {new}_glue; "
        f"bash scripts/finetune_glue.sh RTE {new}/checkpoint.pt --data {new}_glue/bin"
    )


if __name__ == "__main__":
    main()
