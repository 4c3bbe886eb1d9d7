"""How the verbs of a command fail: one line, a line for each path of a conflict, and an exit code that says which."""

import json

import pytest

import stepwell as sw
from stepwell.cli.common.error_report import reports_errors
from stepwell.errors import StepwellError

NAMED = sw.TreeConflict(
    "not as expected: 'a' has b", paths=["a"], expected=["nothing"], found=["b"], diff="--- a\n+++ a"
)
"""An error that names its paths itself, and has a diff."""

TREE = sw.TreeConflict("not as expected", paths=["a\x1b", "b"], expected=["a file", "nothing"], found=["nothing", "c"])


@pytest.mark.parametrize(
    "error, code, lines",
    [
        (sw.InvalidArgument("wrong"), 2, ["wrong"]),
        (sw.NotFound("nowhere"), 1, ["nowhere"]),
        (sw.RuntimeLost("nobody"), 1, ["nobody"]),
        (sw.PlanNotReady("not now", paths=["a"]), 1, ["not now"]),
        (sw.Conflict("somebody was first"), 3, ["somebody was first"]),
        (sw.MergeConflicts("resolve them", paths=["a", "b"]), 3, ["resolve them", "a", "b"]),
        (sw.BrokenChain("do not follow", paths=["a\nb"]), 3, ["do not follow", r"a\nb"]),
        pytest.param(NAMED, 3, ["not as expected: 'a' has b", "--- a", "+++ a"], id="named"),
        (TREE, 3, [TREE.message, r"a\x1b: expected a file, found nothing", "b: expected nothing, found c"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_failing(error: StepwellError, code: int, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever reads, and for machines."""

    @reports_errors
    def fail(*, json: bool) -> int:
        assert isinstance(json, bool)
        raise error

    assert fail(json=False) == code
    told = capsys.readouterr()
    assert (told.out, [each.removeprefix("stepwell: ") for each in told.err.splitlines()]) == ("", lines)
    assert fail(json=True) == code
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"error": {"kind": error.kind, "message": error.message, "details": error.details}}
