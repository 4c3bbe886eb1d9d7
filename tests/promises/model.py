"""A planted defect, and what is said of it after its run."""

from __future__ import annotations

from msgspec import Struct


class Defect(Struct, frozen=True):
    """A defect that breaks a promise, and the tests that must fail with it.

    `claim` is the part of the promise's text that does not hold with it. `module` is a path below `src/stepwell`. The
    text `before` occurs there once, and `after` takes its place. A test is the id of a pytest test, which stands for
    all parameters if it has none, or the path of a feature and the name of a scenario with `: ` between them.
    """

    promise: int
    claim: str
    description: str
    module: str
    before: str
    after: str
    tests: tuple[str, ...]
    may_hang: bool = False
    """True if the time limit of its run counts as failure. It then names one test, which is the one that hangs."""

    def broken(self, text: str) -> str:
        """Return the text of the module with the defect; raise ValueError if `before` does not occur once."""
        if (times := text.count(self.before)) != 1:
            raise ValueError(f"{self.module}: the text of the defect occurs {times} times: {self.before!r}")
        return text.replace(self.before, self.after)


class Verdict(Struct, frozen=True):
    """The result of a defect's run: found if `missing` names none of its tests."""

    defect: Defect
    missing: dict[str, str]
    """By test that did not fail as it should: what it did."""
    messages: dict[str, str]
    """By test that failed: the first line of its message."""
    seconds: float

    @property
    def is_found(self) -> bool:
        """True if each of the defect's tests failed."""
        return not self.missing


def file_of(test: str) -> str:
    """Return the path of a test's file or feature."""
    return test.partition("::")[0].partition(": ")[0]
