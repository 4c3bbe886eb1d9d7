"""Add a pool of workers to a running manager: `python workers/launch.py --connect ADDRESS --workers N`.

It is the same as `stepwell workers`, for a checkout in which the program `stepwell` is not on the path. `--help` lists
all options.
"""

import sys

from stepwell.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["workers", *sys.argv[1:]]))
