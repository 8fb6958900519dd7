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
from typing import Any

from fairseq_convattn.architectures.config import ENCODER_DECODER, LANGUAGE_MODEL, complete
from fairseq_convattn.checkpoint_files import CheckpointError
from fairseq_convattn.legacy_checkpoint import convert_checkpoint

SCHEMAS = {"convattn": ENCODER_DECODER, "convattn_lm": LANGUAGE_MODEL}
LANGUAGE_MODELING = {"sample_break_mode": "none", "output_dictionary_size": -1}  # fairseq's


def training_options(cfg: dict[str, Any]) -> str:
    """The fairseq-train options of a configuration: whatever is not the default."""
    model, task = cfg["model"], cfg["task"]
    schema = SCHEMAS[model["_name"]]
    default = vars(complete(argparse.Namespace(), schema))
    default |= {name: model[source] for name, source in schema.follows.items()}
    given = {name: value for name, value in model.items() if value != default.get(name)}
    if task["_name"] == "language_modeling":
        given |= {name: task[name] for name, x in LANGUAGE_MODELING.items() if task[name] != x}
    options = ["--task", task["_name"], "--arch", given.pop("_name")]
    if cfg["criterion"]["_name"] == "adaptive_loss":
        options += ["--criterion", "adaptive_loss", "--ddp-backend", "legacy_ddp"]
    for name, value in sorted(given.items()):
        if value is False:
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
        cfg = convert_checkpoint(arguments.old, arguments.new)
    except (CheckpointError, OSError) as error:
        sys.exit(f"error: {error}")
    print(f"wrote {arguments.new}\nto fine-tune it: {training_options(cfg)}")


if __name__ == "__main__":
    main()
