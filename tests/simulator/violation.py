"""The error of a run in which a promise was not kept."""


class Violation(AssertionError):
    """A promise was not kept."""
