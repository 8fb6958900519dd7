#!/usr/bin/env python
"""``convattn average``, from a checkout."""

import sys

from cli import main

if __name__ == "__main__":
    main(["average", *sys.argv[1:]], program="average_checkpoints.py")
