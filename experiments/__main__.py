"""`python -m experiments` is the `kvjax` command."""

import sys

from experiments.cli import main

if __name__ == "__main__":
    sys.exit(main())
