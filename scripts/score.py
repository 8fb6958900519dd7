#!/usr/bin/env python
"""``convattn score``, from a checkout."""

import sys

from cli import main

if __name__ == "__main__":
    main(["score", *sys.argv[1:]], program="score.py")
