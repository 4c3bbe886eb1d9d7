"""Completion in a shell: names, options and values, and never a word that is not one."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.cli.common import completions
from stepwell.testing import LocalRuntime
from tests.support.cli.plans import ACTION
from tests.support.cli.processes import COMMAND, PATIENCE_SECONDS

pytestmark = pytest.mark.usefixtures("processes_unmeasured")


@pytest.fixture
def address() -> Iterator[str]:
    """A manager with an action, a plan, a project and a worker, in this process."""
    with LocalRuntime(workers=1) as runtime, runtime.client(["shop"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", project="shop", body="b"))
        client.plans.create_action(
            ACTION, description="d", definition_of_done="d", strategy_actor="a/b", execution_actor="a/b"
        )
        client.plans.use_action(ACTION, projects=["shop"])
        yield runtime.address


def completed(words: str, shell: str = "bash") -> subprocess.CompletedProcess[str]:
    """Ask as the script of a shell does. The last word is the one to complete."""
    asked = {
        "bash": {"COMP_WORDS": f"stepwell {words}", "COMP_CWORD": str(words.count(" ") + 1)},
        "zsh": {"_TYPER_COMPLETE_ARGS": f"stepwell {words}"},
        "fish": {"_TYPER_COMPLETE_ARGS": f"stepwell {words}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    }[shell]
    environment = {**os.environ, **asked, "_STEPWELL_COMPLETE": f"complete_{shell}"}
    return subprocess.run(
        COMMAND, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )


def completed_in_time(words: str) -> list[str]:
    """Ask until the manager has answered within the bound, which a busy machine may exceed, and return the values."""
    for _ in range(20):
        done = completed(words)
        assert done.stderr == ""
        if done.returncode == 0:
            return done.stdout.split()
    pytest.fail("the manager has never answered")


@pytest.mark.parametrize(
    "words, offered",
    [
        ("st", ["status"]),
        ("plan re", ["resolve", "record", "retry", "revert"]),
        ("plan show --j", ["--json"]),
        ("plan list --state c", ["complete", "cancelled", "constrained"]),
        ("serve --durability ", ["disk", "process"]),
        ("prove --ki", ["--kill"]),
        ("plan show --nothing-is-called-this", []),
    ],
)
def test_names_options_and_choices(words: str, offered: list[str]) -> None:
    """Without a manager. What is not known completes to nothing, in silence."""
    done = completed(words)
    assert (done.stdout.split(), done.stderr) == (offered, "")


@pytest.mark.parametrize("words", ["plan show ", "assemble q --plan ", "plan new ", "plan new a --project "])
def test_without_a_manager(words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is nothing to offer, no manager is started, and nothing is said."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    done = completed(words)
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert not [*tmp_path.iterdir()]


@pytest.mark.usefixtures("measured")
def test_values_of_a_manager(address: str) -> None:
    """Its plans, actions, projects and strategies."""
    with sw.connect(address) as client:
        (plan,) = client.plans.list_plans().plans
    at = f"--address {address}"
    assert completed_in_time(f"plan show {at} ") == [plan.plan_id]
    assert completed_in_time(f"plan show {at} {plan.plan_id[:12]}") == [plan.plan_id]
    assert completed_in_time(f"plan new {at} lo") == [ACTION]
    assert completed_in_time(f"plan new {at} a --project s") == ["shop"]
    assert "keyword" in completed_in_time(f"ask q {at} --strategies ")


def test_values_that_a_shell_would_run_are_not_offered() -> None:
    """The script for zsh evaluates what it is given, and that for bash splits it."""
    values = ["good", "a/b", "$(touch x)", r"\$(touch x)", "a b", "`x`", "", "-x", "x\n", "*"]
    assert [each for each in values if completions._HARMLESS.fullmatch(each)] == ["good", "a/b"]


@pytest.mark.usefixtures("measured")
def test_a_manager_that_does_not_answer(tmp_path: Path) -> None:
    """The user waits no longer than the bound, and nothing is said."""
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        began_s = time.monotonic()
        done = completed(f"plan show --address {tmp_path / 's'} ")
        taken_s = time.monotonic() - began_s
    assert (done.stdout.strip(), done.stderr) == ("", "")
    assert taken_s >= limits.COMPLETION_SECONDS, "it was not waited for: the test proves nothing"
    assert done.returncode == 1


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_help_is_on_one_line(shell: str) -> None:
    """A shell would take the rest of a folded line for another value."""
    done = completed("assemble --", shell)
    lines = done.stdout.strip().removeprefix("_arguments '*: :((").removesuffix("))'").splitlines()
    assert len(lines) > 10
    assert [line for line in lines if not line.lstrip('"').startswith("--")] == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_a_real_shell(tmp_path: Path) -> None:
    """The script that `--show-completion` prints completes in bash."""
    program = tmp_path / "stepwell"
    program.write_text(f'#!/bin/sh\nexec {COMMAND[0]} -m stepwell "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    script = subprocess.run(
        [*COMMAND], env={**environment, "_STEPWELL_COMPLETE": "source_bash"}, capture_output=True, text=True, check=True
    ).stdout
    assert "complete -o default -F _stepwell_completion stepwell" in script
    typed = f"{script}\nCOMP_WORDS=(stepwell plan sh)\nCOMP_CWORD=2\n_stepwell_completion stepwell\n"
    done = subprocess.run(
        ["bash", "--norc", "-c", f'{typed}printf "%s\\n" "${{COMPREPLY[@]}}"'],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("show\n", "")


@pytest.mark.usefixtures("measured")
def test_installed(tmp_path: Path) -> None:
    """`--install-completion` writes the script for the shell that called it, and says where."""
    called = f"'{COMMAND[0]}' -m stepwell --install-completion; exit $?"
    done = subprocess.run(
        ["bash", "--norc", "-c", called],
        env={**os.environ, "HOME": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert f"bash completion installed in {tmp_path}/.bash_completions/stepwell.sh" in done.stdout
    assert "_STEPWELL_COMPLETE=complete_bash" in (tmp_path / ".bash_completions" / "stepwell.sh").read_text()
