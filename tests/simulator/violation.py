"""The error of a run that has not kept a promise."""


class Violation(AssertionError):
    """A promise was not kept."""
