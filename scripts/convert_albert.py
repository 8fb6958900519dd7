#!/usr/bin/env python
"""Turn ALBERT, as Hugging Face's transformers stores it, into a model of this plugin:
``python scripts/convert_albert.py --help``."""

import logging

if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)  # before fairseq, which logs while it is imported

from fairseq_convattn.checkpoints.albert import main

if __name__ == "__main__":
    main()
