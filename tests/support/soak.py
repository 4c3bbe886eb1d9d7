"""The duration of tests that have no natural end."""

import os

IS_LONG = os.environ.get("STEPWELL_HYPOTHESIS_PROFILE") == "long"
"""True in a soak run: the profile that gives the property tests more examples makes the others longer, too."""
