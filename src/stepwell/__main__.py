"""`python -m stepwell` runs the same command line as `stepwell`."""

import sys

from stepwell.cli.main import main

sys.exit(main())
