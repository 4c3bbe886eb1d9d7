"""Validations: commands in a tree, with a time limit, bounded output, and nothing left of them."""

import sys
import time
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.workflows.validations import run, run_all
from tests.support.processes import is_alive
from tests.support.wait import PATIENCE_SECONDS, eventually


def nothing() -> None:
    pass


def validation(*command: str, timeout_s: float = PATIENCE_SECONDS) -> sw.Validation:
    return sw.Validation("v", command, timeout_s=timeout_s)


def shell(script: str, root: Path, timeout_s: float = PATIENCE_SECONDS) -> sw.ValidationResult:
    return run(validation("sh", "-c", script, timeout_s=timeout_s), str(root), nothing)


def test_passes_and_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the root, with our environment and nothing to read; what it writes is kept in order, from both sides."""
    monkeypatch.setenv("MINE", "inherited")
    result = shell("pwd; cat; echo $MINE >&2; echo last", tmp_path)
    assert (result.passed, result.exit_code, result.timed_out) == (True, 0, False)
    assert result.output == f"{tmp_path}\ninherited\nlast\n"
    assert not shell("exit 7", tmp_path).passed
    assert shell("exit 7", tmp_path).exit_code == 7
    assert shell("kill -SEGV $$", tmp_path).exit_code == -11
    assert shell("printf '\\377'", tmp_path).output == "\ufffd"


def test_no_shell(tmp_path: Path) -> None:
    """An argument is an argument, whatever is in it."""
    result = run(validation("printf", "%s", "$HOME; `id`"), str(tmp_path), nothing)
    assert result.output == "$HOME; `id`"


def test_cannot_be_started(tmp_path: Path) -> None:
    """It has failed, and says why."""
    (tmp_path / "data").touch()
    for command, why in (("no such program", "No such file"), ("./data", "Permission denied"), ("\udcff", "")):
        result = run(validation(command), str(tmp_path), nothing)
        assert (result.exit_code, result.passed, result.timed_out) == (None, False, False)
        assert why in result.output
    assert "No such file" in run(validation("true"), str(tmp_path / "nowhere"), nothing).output


def test_hangs(tmp_path: Path) -> None:
    """At its time limit it is killed, and all that it started."""
    script = "sleep 100 & echo $! > pid; trap '' TERM; echo begun; wait"
    attempts = (shell(script, tmp_path, seconds) for seconds in (0.1, 1, 10, 60))
    result = next(each for each in attempts if each.output)  # on a busy machine, the first ones may not get so far
    assert (result.timed_out, result.exit_code, result.passed, result.output) == (True, None, False, "begun\n")
    assert 100 <= result.duration_ms < 100_000
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_alive(pid))


def test_hangs_in_silence(tmp_path: Path) -> None:
    """Also when it has closed what it could write to."""
    assert shell("exec >&- 2>&-; exec sleep 100", tmp_path, 0.1).timed_out


def test_leaves_something_behind(tmp_path: Path) -> None:
    """It has ended, though somebody else holds what it wrote to; that ends, too."""
    result = shell("(while :; do echo more; done) & echo $! > pid; exit 0", tmp_path)
    assert result.passed
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not is_alive(pid))


def test_floods(tmp_path: Path) -> None:
    """The end of it is kept, and the rest is never held in memory."""
    script = "import os\nfor _ in range(64): os.write(1, b'x' * 65536)\nos.write(2, 'é'.encode() * 5000 + b'end')"
    result = run(validation(sys.executable, "-Sc", script), str(tmp_path), nothing)
    assert result.passed
    assert len(result.output) == limits.VALIDATION_OUTPUT_CHARS_MAX
    assert result.output == ("x" * 10_000 + "é" * 5000 + "end")[-limits.VALIDATION_OUTPUT_CHARS_MAX :]


def test_not_needed_any_more(tmp_path: Path) -> None:
    """Whoever lost the lease does not go on: it is killed in the middle."""
    looks: list[float] = []

    def check() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise sw.LeaseLost("it is over")
        looks.append(time.monotonic())

    with pytest.raises(sw.LeaseLost):
        run_all([validation("sh", "-c", "echo $$ > pid; exec sleep 100")], str(tmp_path), check)
    assert looks
    assert not is_alive(int((tmp_path / "pid").read_text()))


def test_all_are_run(tmp_path: Path) -> None:
    """Also behind one that failed; and none whose lease is lost before it begins."""
    results = run_all([validation("false"), validation("true")], str(tmp_path), nothing)
    assert [each.exit_code for each in results] == [1, 0]

    def lost() -> None:
        raise sw.LeaseLost("it is over")

    with pytest.raises(sw.LeaseLost):
        run_all([validation("touch", "mark")], str(tmp_path), lost)
    assert not [*tmp_path.iterdir()]
