"""`python -m effects`: the command `effects`."""

import sys

from effects_command import main

if __name__ == "__main__":
    sys.exit(main())
