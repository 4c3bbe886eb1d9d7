"""The table of planted defects fits the code, the tests and the documents; `python -m tests.promises` runs it."""

from __future__ import annotations

import pytest

from tests.architecture.sources import PACKAGE, ROOT
from tests.promises import document
from tests.promises.defects import DEFECTS
from tests.promises.document import Promise
from tests.promises.model import Defect, file_of
from tests.promises.outcomes import Outcome
from tests.promises.run import failure


def of_promise(promise: Promise) -> list[Defect]:
    return [each for each in DEFECTS if each.promise == promise.number]


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: f"{defect.promise}: {defect.description}")
def test_defect_fits_its_module(defect: Defect) -> None:
    """The text that it replaces is there once, and what comes of it is Python."""
    compile(defect.broken((PACKAGE / defect.module).read_text()), defect.module, "exec")


@pytest.mark.parametrize("test", sorted({test for defect in DEFECTS for test in defect.tests}))
def test_test_is_there(test: str) -> None:
    """The file has the class and the function, or the feature the scenario."""
    text = (ROOT / file_of(test)).read_text()
    if test.endswith(".py"):
        return
    if test.startswith("features/"):
        _, _, scenario = test.partition(": ")
        assert f": {scenario}\n" in text
        return
    for name in test.partition("[")[0].split("::")[1:]:
        assert any(beginning in text for beginning in (f"def {name}(", f"class {name}:", f"{name} = "))


def test_promises_are_read() -> None:
    """The document has 16 promises, each with sentences and tests."""
    found = document.promises()
    assert [each.number for each in found] == [*range(1, 17)]
    assert all(each.sentences and each.tests for each in found)


@pytest.mark.parametrize("promise", document.promises(), ids=lambda promise: promise.name)
def test_every_sentence_is_broken(promise: Promise) -> None:
    """Each sentence of a promise is broken by a defect, and each defect breaks a sentence."""
    claims = {each.claim for each in of_promise(promise)}
    assert [sentence for sentence in promise.sentences if not any(claim in sentence for claim in claims)] == []
    assert [claim for claim in claims if not any(claim in sentence for sentence in promise.sentences)] == []


@pytest.mark.parametrize("promise", document.promises(), ids=lambda promise: promise.name)
def test_listed_tests_are_shown_to_fail(promise: Promise) -> None:
    """The files that the document lists for a promise are those of the tests that its defects name."""
    assert promise.tests == {file_of(test) for defect in of_promise(promise) for test in defect.tests}


def test_page_is_that_of_the_table() -> None:
    """`python -m tests.promises --write` writes it."""
    assert document.PAGE.read_text() == document.page(DEFECTS)


def test_defect_that_may_hang_names_one_test() -> None:
    """Of several, nobody could say which of them hangs. And no two defects have one description."""
    assert [each.description for each in DEFECTS if each.may_hang and len(each.tests) != 1] == []
    assert len({each.description for each in DEFECTS}) == len(DEFECTS)


@pytest.mark.parametrize(
    "outcomes, is_failed",
    [
        ([Outcome("t", "call", is_failed=True, message="AssertionError: assert 1 == 2")], True),
        (
            [Outcome("t", "call", is_failed=False), Outcome("t", "teardown", is_failed=True, message="left behind")],
            True,
        ),
        ([Outcome("t", "call", is_failed=False)], False),
        ([Outcome("t", "setup", is_failed=True, message="StartFailed: no manager")], False),
        ([Outcome("t", "call", is_failed=True, message="NameError: name 'x' is not defined")], False),
        ([], False),
    ],
)
def test_failure_that_counts(outcomes: list[Outcome], is_failed: bool) -> None:  # noqa: FBT001
    """A test fails in itself or by what it leaves behind: not in its setup, and not of a defect that is no Python."""
    assert failure(outcomes, is_late=False)[0] is is_failed
