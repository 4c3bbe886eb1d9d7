"""How long the tests that have no natural end go on."""

import os

IS_LONG = os.environ.get("STEPWELL_HYPOTHESIS_PROFILE") == "long"
"""Whether this is the soak: the profile that gives the property tests more examples makes the others longer, too."""
