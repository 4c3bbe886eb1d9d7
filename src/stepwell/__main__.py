"""`python -m stepwell` is the same as `stepwell`."""

import sys

from stepwell.cli.main import main

sys.exit(main())
