"""`python -m examples.demo`."""

import sys

from examples.demo.command import main

sys.exit(main())
