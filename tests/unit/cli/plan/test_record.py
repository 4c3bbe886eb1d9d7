"""`stepwell plan record`: a command's changes become the plan's, and its exit code ours."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.plan import record
from stepwell.testing import Clock, LocalRuntime
from tests.support.cli.plans import Shell, executing, new

WRITES = ("sh", "-c", "echo new > a; echo said; exit $0")


@pytest.fixture
def runtime(stepwell_clock: Clock) -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0, clock=stepwell_clock) as runtime:
        yield runtime


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs, and what it changes."""
    root = tmp_path / "tree"
    root.mkdir()
    (root / "a").write_text("old\n")
    monkeypatch.chdir(root)
    return root


def paths(client: sw.Client, plan_id: str) -> list[str]:
    return [*client.execution(plan_id).net_changes()]


def test_one_record_is_one_execution(shell: Shell, client: sw.Client, root: Path) -> None:
    """From a plan that nobody has begun to one that can be applied; stdout is the command's."""
    plan_id = new(client)
    told = shell("plan", "record", plan_id, "--", *WRITES, "0")
    assert (told.code, told.out) == (0, "said\n")
    assert told.err.startswith(f"stepwell: recorded into {plan_id}: 1 change in {root}; ")
    plan = client.plans.get_plan(plan_id)
    assert str(plan.position) == "execute/complete"
    assert paths(client, plan_id) == ["a"]
    (entry,) = client.execution(plan_id).entries(plan.changeset_ids[0])
    assert entry.tool == "sh"


def test_words_behind_the_dashes_are_the_commands(shell: Shell, client: sw.Client, root: Path) -> None:
    """Whatever they look like: options of ours, further dashes, an empty one."""
    words = ["--", "--json", "-h", "--strategies", "a", "b", "", "--root=x", "[red]", "-1"]
    program = ("sh", "-c", 'for word do echo "<$word>"; done', "sh")
    told = shell("plan", "record", new(client), "--root", str(root), "--", *program, *words)
    assert (told.code, told.out.splitlines()) == (0, [f"<{word}>" for word in words])


def test_a_tree_that_is_being_captured(shell: Shell, client: sw.Client, root: Path) -> None:
    """The command is not run, and the line names the other plan."""
    other = executing(client)
    with client.execution(other).capture(root.parent, tool="agent"):
        told = shell("plan", "record", new(client), "--", *WRITES, "0")
        assert (told.code, told.out) == (125, "")
        assert f"is capturing '{root.parent}' for plan '{other}', as tool 'agent'" in told.err
    assert (root / "a").read_text() == "old\n"


def test_a_plan_with_a_strategy(shell: Shell, client: sw.Client) -> None:
    """It goes on from there; so does one whose execution is queued."""
    for is_queued in (False, True):
        plan_id = new(client)
        client.plans.start_strategize(plan_id)
        client.plans.complete_strategize(plan_id)
        if is_queued:
            client.plans.execute_plan(plan_id)
        assert shell("plan", "record", plan_id, "--tool", "own", "--", "touch", f"new-{is_queued}").code == 0
        assert paths(client, plan_id) == [f"new-{is_queued}"]


def test_a_command_that_fails(shell: Shell, client: sw.Client, root: Path) -> None:
    """Nothing is recorded, its exit code is ours, and the next record goes on, as another attempt."""
    plan_id = new(client)
    told = shell("plan", "record", plan_id, "--", *WRITES, "7")
    assert told.code == 7
    assert f"ended with 7: what it changed in {root} stays there, and was not recorded" in told.err
    plan = client.plans.get_plan(plan_id)
    assert (str(plan.position), plan.attempt, plan.changeset_ids) == ("execute/queued", 2, ())
    assert shell("plan", "record", plan_id, "--", "rm", "a").code == 0
    assert paths(client, plan_id) == ["a"]


def test_keep(shell: Shell, client: sw.Client) -> None:
    """What a command changed that failed is recorded if one says so; its exit code is still ours."""
    plan_id = new(client)
    assert shell("plan", "record", plan_id, "--keep", "--", *WRITES, "7").code == 7
    assert str(client.plans.get_plan(plan_id).position) == "execute/complete"
    assert paths(client, plan_id) == ["a"]


def test_nothing_changed(shell: Shell, client: sw.Client, root: Path) -> None:
    """That is an execution, too: a formatter may have nothing to do."""
    plan_id = new(client)
    told = shell("plan", "record", plan_id, "--", "true")
    assert (told.code, told.err) == (0, f"stepwell: recorded into {plan_id}: nothing changed in {root}\n")
    assert str(client.plans.get_plan(plan_id).position) == "execute/complete"


def test_elsewhere(shell: Shell, client: sw.Client, tmp_path: Path) -> None:
    """What counts is what changes below the root; the command runs where we are."""
    other = tmp_path / "other"
    other.mkdir()
    plan_id = new(client)
    told = shell("plan", "record", plan_id, "--root", str(other), "--", "sh", "-c", "echo > a; echo > ../other/b")
    assert told.code == 0
    assert paths(client, plan_id) == ["b"]


def test_under_somebody_elses_lease(shell: Shell, client: sw.Client) -> None:
    """Any number of times; who holds it completes. A lease that is over is refused, and nothing is run."""
    plan_id = executing(client)
    lease = client.plans.get_plan(plan_id).lease
    assert lease is not None
    token = str(lease.token)
    for name in ("one", "two"):
        told = shell("plan", "record", plan_id, "--lease", token, "--tool", name, "--", "touch", name)
        assert told.code == 0
        assert "plan apply" not in told.err
    told = shell("plan", "record", plan_id, "--lease", token, "--", *WRITES, "7")
    assert (told.code, "queued" in told.err) == (7, False)
    client.plans.complete_execute(plan_id)
    assert paths(client, plan_id) == ["one", "two"]
    told = shell("plan", "record", plan_id, "--lease", token, "--", "touch", "three")
    assert (told.code, Path("three").exists()) == (125, False)
    assert "leave out --lease" in told.err


def test_json(shell: Shell, client: sw.Client) -> None:
    """One object on stdout; what the command says goes to stderr."""
    plan_id = new(client)
    told = shell("plan", "record", plan_id, "--json", "--", *WRITES, "7")
    assert (told.code, told.json["exit_code"], told.json["changeset_id"], told.json["entries"]) == (7, 7, None, [])
    assert told.err.startswith("said\n")
    told = shell("plan", "record", plan_id, "--json", "--", "touch", "b")
    assert told.json.keys() == {"plan_id", "exit_code", "changeset_id", "entries"}
    assert (told.json["entries.0.path"], told.json["entries.0.operation"]) == ("b", "create")


def test_who_cannot_be_recorded_into(shell: Shell, client: sw.Client) -> None:
    """Each is told what to do, with the exit code of nobody's command, and nothing is run."""
    busy, errored, over, done = (executing(client) for _ in range(4))
    client.plans.fail_execute(errored, "broken")
    client.plans.cancel_plan(over)
    client.plans.complete_execute(done)
    for plan_id, advice in (
        (busy, "another session works on it, until "),
        (errored, "`stepwell plan retry`"),
        (over, "`stepwell plan new`"),
        (done, "`stepwell plan revert`"),
    ):
        told = shell("plan", "record", plan_id, "--", "touch", "ran")
        assert (told.code, len(told.err.splitlines()), Path("ran").exists()) == (125, 1, False)
        assert advice in told.err


def test_what_cannot_be_run(shell: Shell, client: sw.Client, root: Path) -> None:
    """As a shell says it; a plan is not even begun for a command that is not there."""
    plan_id = new(client)
    assert shell("plan", "record", plan_id, "--", "no-such-command").code == 127
    told = shell("plan", "record", plan_id, "--root", str(root / "nowhere"), "--", "true")
    assert (told.code, "is no directory" in told.err) == (125, True)
    assert str(client.plans.get_plan(plan_id).position) == "strategize/queued"
    (root / "program").write_text("no program")
    (root / "program").chmod(0o755)
    told = shell("plan", "record", plan_id, "--", "./program")
    assert (told.code, "cannot be run: Exec format error" in told.err) == (126, True)
    assert shell("plan", "record", plan_id).code == 2


def test_a_lease_that_is_renewed(
    shell: Shell, client: sw.Client, stepwell_clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the command runs. When somebody cancels the plan, that is said, once, and nothing is recorded."""
    plan_id = new(client)
    expiries: list[int] = []

    def running(_command: object, beat: Callable[[], None], every_s: float, *, stdout_to_stderr: bool) -> int:
        assert (every_s < 300, stdout_to_stderr) == (True, False)
        for _ in range(2):
            lease = client.plans.get_plan(plan_id).lease
            assert lease is not None
            expiries.append(lease.expires_at_ms)
            stepwell_clock.advance(1.0)
            beat()
        client.plans.cancel_plan(plan_id)
        beat()
        beat()
        return 0

    monkeypatch.setattr("stepwell.cli.plan.common.run_command.run", running)
    told = shell("plan", "record", plan_id, "--", "true")
    assert told.code == 125
    assert told.err.count("what the command changes may not be recorded: ") == 1
    assert expiries[1] == expiries[0] + 1_000


@pytest.mark.parametrize(
    "program, tool", [("/usr/bin/python3.12", "python3.12"), ("./my tool!", "my-tool-"), ("./-", "command")]
)
def test_the_name_of_a_tool(program: str, tool: str) -> None:
    """One that a change can have."""
    assert record._tool(program) == tool
