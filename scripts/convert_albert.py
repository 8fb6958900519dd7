#!/usr/bin/env python
"""``convattn convert-albert``, from a checkout."""

import sys

from cli import main

if __name__ == "__main__":
    main(["convert-albert", *sys.argv[1:]], program="convert_albert.py")
