"""`python -m examples.demo` runs the demonstration."""

import sys

from examples.demo.command import main

sys.exit(main())
