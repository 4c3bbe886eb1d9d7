"""Adds a pool of workers to a running manager: `python workers/launch.py --connect ADDRESS --workers N`.

The same as `stepwell workers`; `--help` has all options.
"""

import sys

from stepwell.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["workers", *sys.argv[1:]]))
