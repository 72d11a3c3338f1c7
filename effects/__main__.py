"""`python -m effects`: the command `effects`."""

import sys

from effects.cli import main

if __name__ == "__main__":
    sys.exit(main())
