"""``python -m chord_jit`` is the ``chord`` command."""

import sys

from chord_jit.cli import main

if __name__ == "__main__":
    sys.exit(main())
