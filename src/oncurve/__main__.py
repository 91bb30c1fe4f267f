"""``python -m oncurve`` is ``oncurve``."""

import sys

from oncurve.cli import main

if __name__ == "__main__":
    sys.exit(main())
