"""How the verbs of a command fail: one line, a line for each path of a conflict, and an exit code that says which."""

import argparse
import json

import pytest

import stepwell as sw
from stepwell.cli.common.subcommand import run_subcommand
from stepwell.errors import StepwellError

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
        (TREE, 3, [TREE.message, r"a\x1b: expected a file, found nothing", "b: expected nothing, found c"]),
    ],
    ids=lambda given: type(given).__name__,
)
def test_failing(error: StepwellError, code: int, lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """For whoever reads, and for machines."""

    def fail(_arguments: argparse.Namespace) -> int:
        raise error

    assert run_subcommand(argparse.Namespace(subcommand=fail, json=False)) == code
    told = capsys.readouterr()
    assert (told.out, told.err.splitlines()) == ("", [f"stepwell: {line}" for line in lines])
    assert run_subcommand(argparse.Namespace(subcommand=fail, json=True)) == code
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"error": {"kind": error.kind, "message": error.message, "details": error.details}}
