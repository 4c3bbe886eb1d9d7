"""`stepwell plan diff`: exact for machines, harmless for terminals."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.testing import LocalRuntime
from tests.support.cli.plans import Shell, executing, new, record

WILD = sw.Change(path="wild", after="\x1b[2Jred\r\n\x9b\u202eevil\n".encode(), tool="one")
CHANGES = (
    WILD,
    sw.Change(path="src/a.py", before=b"a\nb\n", after=b"a\nc\n", tool="two"),
    sw.Change(path="src/deep/b.py", before=b"x\n" * 200, tool="two"),
    sw.Change(path="image", after=b"\0", tool="three"),
    sw.Change(path="new name", before=b"m\n", after=b"m\n", source_path="old/name", tool="two"),
)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def plan_id(client: sw.Client) -> str:
    plan_id = executing(client)
    record(client, plan_id, *CHANGES)
    return plan_id


@pytest.fixture
def changeset(client: sw.Client, plan_id: str) -> str:
    return client.plans.get_plan(plan_id).changeset_ids[0]


def test_one_changeset(shell: Shell, client: sw.Client, plan_id: str, changeset: str) -> None:
    """As it was recorded, byte by byte where there is no terminal."""
    told = shell("plan", "diff", plan_id, "--changeset", changeset)
    assert (told.code, told.out) == (0, client.execution(plan_id).diff(changeset))


@pytest.mark.parametrize(
    "options, paths",
    [
        (["--path", "src/*"], ["src/a.py"]),
        (["--path", "src/**", "--path", "image"], ["src/a.py", "src/deep/b.py", "image"]),
        (["--path", "old/*"], ["new name"]),
        (["--tool", "one", "--tool", "three"], ["wild", "image"]),
        (["--tool", "two", "--path", "src/*"], ["src/a.py"]),
        (["--tool", "nobody"], []),
    ],
    ids=" ".join,
)
def test_some_of_a_changeset(shell: Shell, plan_id: str, changeset: str, options: list[str], paths: list[str]) -> None:
    """By path, also where it came from, and by tool."""
    facts = shell("plan", "diff", plan_id, "--changeset", changeset, "--json", *options).json
    assert [facts[f"files.{number}.path"] for number in range(len(paths))] == paths
    assert str(facts["diff"]).count("diff --git") == len(paths)


def test_the_whole_plan(shell: Shell, client: sw.Client, plan_id: str) -> None:
    """All of its changesets that count, or what is asked for."""
    record(client, plan_id, sw.Change(path="more", after=b"m\n", tool="four"))
    facts = shell("plan", "diff", plan_id, "--json").json
    assert str(facts["diff"]).count("diff --git") == len(CHANGES) + 1
    told = shell("plan", "diff", plan_id, "--path", "m*", "--tool", "four")
    assert told.out.splitlines() == [
        "diff --git a/more b/more",
        "new file mode 100644",
        "--- /dev/null",
        "+++ b/more",
        "@@ -0,0 +1 @@",
        "+m",
    ]


def test_nothing_to_show(shell: Shell, client: sw.Client, plan_id: str) -> None:
    """That is said, and is no error."""
    told = shell("plan", "diff", new(client))
    assert (told.code, told.out, told.err) == (0, "", "stepwell: nothing is changed\n")
    told = shell("plan", "diff", plan_id, "--tool", "nobody", "--stat")
    assert (told.code, told.out, told.err) == (0, "", "stepwell: there is no such change\n")


def test_no_such_changeset(shell: Shell, client: sw.Client, plan_id: str) -> None:
    """Nor one of another plan."""
    other = record(client, executing(client), sw.Change(path="a", after=b""))
    told = shell("plan", "diff", plan_id, "--changeset", other)
    assert told.code == 1
    assert "`stepwell plan show` has their ids" in told.err


def test_stat(shell: Shell, plan_id: str, changeset: str) -> None:
    """A line for each file, drawn to scale, and all together."""
    told = shell("plan", "diff", plan_id, "--changeset", changeset, "--stat")
    assert told.out.splitlines() == [
        " wild          |     2 +",
        " src/a.py      |     2 +-",
        f" src/deep/b.py |   200 {'-' * 40}",
        " image         | binary",
        " new name      |     0 ",
        " 5 files changed, 3 lines added, 201 lines removed",
    ]


def test_many_changes(shell: Shell, client: sw.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than one page of them."""
    monkeypatch.setattr("stepwell.limits.PAGE_ROWS_MAX", 2)
    plan_id = executing(client)
    changeset = record(client, plan_id, *(sw.Change(path=f"f{number}", after=b"") for number in range(5)))
    told = shell("plan", "diff", plan_id, "--changeset", changeset, "--stat")
    assert "5 files changed" in told.out


@pytest.mark.parametrize("is_plain", [False, True])
def test_on_a_terminal(
    runtime: LocalRuntime,
    plan_id: str,
    changeset: str,
    is_plain: bool,  # noqa: FBT001 - an example
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Colours, unless NO_COLOR says no; and whatever is in the files, it moves no cursor and turns no line around."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if is_plain:
        monkeypatch.setenv("NO_COLOR", "1")
    assert main(["plan", "diff", plan_id, "--changeset", changeset, "--address", runtime.address]) == 0
    shown = terminal.getvalue()
    assert ("\x1b[32m+c\x1b[0m" in shown) is not is_plain
    assert ("\x1b[31m-b\x1b[0m" in shown) is not is_plain
    assert r"+\x1b[2Jred\x0d" in shown
    assert r"+\x9b\u202eevil" in shown
    assert not {"\x9b", "\r", "\u202e"} & {*shown}
    assert "\x1b[2J" not in shown


def test_git_applies_it(shell: Shell, client: sw.Client, tmp_path: Path) -> None:
    """What is written into a file is a patch."""
    plan_id = executing(client)
    record(client, plan_id, sw.Change(path="a b", after=b"one\r\n\x1b\n", after_mode=0o100644))
    told = shell("plan", "diff", plan_id)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=told.out.encode(), check=True)
    assert (tmp_path / "a b").read_bytes() == b"one\r\n\x1b\n"
