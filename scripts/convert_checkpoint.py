#!/usr/bin/env python
"""Turn a LightConv or DynamicConv checkpoint of 2019 into one of this plugin:
``python scripts/convert_checkpoint.py --help``."""

from fairseq_convattn.checkpoints.legacy import main

if __name__ == "__main__":
    main()
