"""`python -m stepwell` is the same as `stepwell`."""

import sys

from stepwell.cli import main

sys.exit(main())
