"""Run ``python -m helpers COMMAND``."""

import sys

from helpers.cli import main

if __name__ == "__main__":
    sys.exit(main())
