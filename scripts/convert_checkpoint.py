#!/usr/bin/env python
"""``convattn convert``, from a checkout."""

import sys

from cli import main

if __name__ == "__main__":
    main(["convert", *sys.argv[1:]], program="convert_checkpoint.py")
