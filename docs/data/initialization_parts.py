"""fairseq-train with other initial values in one part of a model of dynamic convolutions.

    python docs/data/initialization_parts.py PART VALUES [fairseq-train's arguments]

PART is feed_forward, projections or kernel_generator; VALUES is xavier or zero. initialization.sh
calls it for initialization_parts.csv.
"""

import re
import sys

from fairseq.tasks.translation import TranslationTask
from fairseq_cli.train import cli_main
from torch import nn

PARTS = {
    "feed_forward": r"\.fc[12]\.",
    "projections": r"\.self_attn\.(in|out)_proj\.",
    "kernel_generator": r"\.kernel_proj\.",
}


def main(part: str, values: str) -> None:
    build_model = TranslationTask.build_model

    def build_with_values(self, *arguments):
        model = build_model(self, *arguments)
        named = [x for name, x in model.named_parameters() if re.search(PARTS[part], name)]
        assert named, f"the model has no {part}"
        for parameter in named:
            if values == "xavier" and parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
        return model

    TranslationTask.build_model = build_with_values
    cli_main()


if __name__ == "__main__":
    part, values = sys.argv[1:3]
    del sys.argv[1:3]
    main(part, values)
