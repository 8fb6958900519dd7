#!/usr/bin/env python
"""Average the weights of checkpoints: ``python scripts/average_checkpoints.py --help``."""

from fairseq_convattn.checkpoints.averaging import main

if __name__ == "__main__":
    main()
