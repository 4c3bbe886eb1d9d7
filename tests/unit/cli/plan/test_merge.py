"""`stepwell plan merge` and `plan resolve`: the changes of children come together, and a person decides conflicts."""

import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

import stepwell as sw
from stepwell.testing import LocalRuntime
from tests.support.cli.plans import ACTION, Shell, executing, new, record

BASE = b"".join(b"%d\n" % number for number in range(20))
EDITS = {"a": BASE.replace(b"5\n", b"five\n", 1), "b": BASE.replace(b"5\n", b"V\n", 1), "c": BASE + b"end\n"}
WILD = "x\x1b[2J"


def merged_body(client: sw.Client, plan_id: str, path: str = "f") -> bytes:
    context = client.execution(plan_id)
    net = context.net_changes()[path]
    assert net.after is not None
    return bytes(context.body(net.after.digest))


def with_children(client: sw.Client, *paths: str) -> str:
    """A plan that this client executes, whose children have changed the paths: two of them the same line."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias=alias) for alias in EDITS])
    for body in EDITS.values():
        child = client.plans.start_ready(parent, straight=True).plan
        assert child is not None
        record(client, child.plan_id, *(sw.Change(path=path, before=BASE, after=body) for path in paths))
        client.plans.complete_execute(child.plan_id)
    return parent


@pytest.fixture
def parent(client: sw.Client) -> str:
    return with_children(client, "f")


@pytest.fixture
def queued(runtime: LocalRuntime, client: sw.Client) -> str:
    """The same plan after the session that executed it has ended."""
    assert client.epoch
    with runtime.client() as other:
        return with_children(other, "f")


@pytest.fixture
def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a shell script the editor; `$1` is the file that it edits. Return the directory of that file."""

    def make(script: str) -> Path:
        program = tmp_path / "editor"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("VISUAL", str(program))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        return tmp_path

    return make


class TestHeld:
    """A session executes the plan, and a person helps it."""

    def test_list_show_accept(self, shell: Shell, client: sw.Client, parent: str) -> None:
        """The conflicts, the text of one with its version, and the choice; then the session goes on."""
        told = shell("plan", "merge", parent)
        assert (told.code, told.out) == (3, "")
        assert "1 path in conflict: `stepwell plan resolve" in told.err
        told = shell("plan", "resolve", parent)
        assert (told.code, told.err) == (0, "")
        assert "f b 1 both sides changed the same lines c" in told.words
        shown = shell("plan", "resolve", parent, "f")
        assert shown.out.startswith("0\n1\n2\n3\n4\n<<<<<<< ours\nfive\n=======\nV\n>>>>>>> theirs (b)\n6\n")
        (version,) = [word.strip(",") for word in shown.err.split() if len(word) == 17]
        told = shell("plan", "resolve", parent, "f", "--accept", "theirs", "--version", version)
        assert (told.code, told.out, told.err) == (0, "resolved f: 0 paths in conflict\n", "")
        assert merged_body(client, parent) == EDITS["b"] + b"end\n"
        assert "no open conflicts" in shell("plan", "resolve", parent).err
        assert shell("plan", "merge", parent).out == f"merged 3 children into {parent}: execute/processing\n"
        client.plans.complete_execute(parent)

    def test_version_that_is_over(self, shell: Shell, client: sw.Client, parent: str) -> None:
        """A choice for another conflict is refused as a conflict, and nothing is changed."""
        shell("plan", "merge", parent)
        before = client.status().revision
        told = shell("plan", "resolve", parent, "f", "--accept", "ours", "--version", "0123456789abcdef")
        assert (told.code, told.out) == (3, "")
        assert "look at the conflict again" in told.err
        assert client.status().revision == before

    def test_body(
        self, shell: Shell, client: sw.Client, parent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """From a file, or from stdin; the children behind it are merged with it."""
        shell("plan", "merge", parent)
        text = shell("plan", "resolve", parent, "f").out.encode()
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        refused = shell("plan", "resolve", parent, "f", "--body", "-")
        assert (refused.code, refused.out) == (2, "")
        assert "line 6 of the body is a conflict marker" in refused.err
        body = BASE.replace(b"5\n", b"both\n", 1)
        (tmp_path / "body").write_bytes(body)
        assert shell("plan", "resolve", parent, "f", "--body", str(tmp_path / "body")).code == 0
        assert merged_body(client, parent) == body + b"end\n"

    def test_json(self, shell: Shell, client: sw.Client, parent: str) -> None:
        """The plan and the open conflicts, by the same keys everywhere."""
        found = shell("plan", "merge", parent, "--json").json
        assert found["plan.plan_id"] == parent
        keys = {"path", "child", "version", "hunks", "is_text", "reason", "waiting"}
        assert found.keys("conflicts.0") == keys
        listed = shell("plan", "resolve", parent, "--json").json
        assert listed["conflicts"] == found["conflicts"]
        shown = shell("plan", "resolve", parent, "f", "--json").json
        assert shown.keys("conflicts.0") == keys | {"text"}
        assert (shown["conflicts.0.child"], shown["conflicts.0.waiting"]) == ("b", ["c"])
        resolved = shell("plan", "resolve", parent, "f", "--accept", "ours", "--json").json
        assert resolved["plan.conflicts.0.resolution"] == "accept_ours"
        assert merged_body(client, parent) == EDITS["a"] + b"end\n"

    def test_path_is_escaped(self, shell: Shell, client: sw.Client) -> None:
        parent = with_children(client, WILD)
        shell("plan", "merge", parent)
        told = shell("plan", "resolve", parent)
        assert "\x1b" not in told.out
        assert r"x\x1b[2J" in told.out

    def test_wrong_choices(self, shell: Shell, client: sw.Client, parent: str, tmp_path: Path) -> None:
        """Are refused before anything happens, with what to give."""
        shell("plan", "merge", parent)
        before = client.status().revision
        for arguments, code, message in (
            (("f", "--accept", "ours", "--edit"), 2, "give one of --accept, --edit and --body"),
            (("--accept", "ours"), 2, "give the PATH"),
            (("f", "--version", "0"), 2, "--version goes with a choice"),
            (("f", "--edit", "--version", "0"), 3, "look at the conflict again"),
            (("f", "--accept", "mine"), 2, "'mine' is not one of ours, theirs"),
            (
                ("f", "--accept", "ours", "--accept", "theirs"),
                2,
                "each of 1 hunk of the conflict, not 2",
            ),
            (("f", "--body", str(tmp_path / "none")), 2, "cannot be read: No such file"),
            (("g", "--accept", "ours"), 1, "no open conflict at 'g'"),
            (("g",), 1, "no open conflict at 'g'"),
            (("f", "--accept", "ours", "--lease", "1"), 1, "lease 1 is over"),
        ):
            told = shell("plan", "resolve", parent, *arguments)
            assert (told.code, told.out) == (code, ""), arguments
            assert message in told.err
        assert client.status().revision == before


class TestQueued:
    """No session executes the plan: a merge is a whole execution."""

    @pytest.mark.parametrize("side, child", [("ours", "a"), ("theirs", "b")])
    def test_one_merge_is_one_execution(
        self, shell: Shell, client: sw.Client, queued: str, side: str, child: str
    ) -> None:
        told = shell("plan", "merge", queued, "--accept", side)
        assert (told.code, told.out, told.err) == (0, f"merged 3 children into {queued}: execute/complete\n", "")
        assert merged_body(client, queued) == EDITS[child] + b"end\n"

    def test_without_a_choice(self, shell: Shell, client: sw.Client, queued: str) -> None:
        """The conflicts are shown, nothing is kept, and the plan is queued again."""
        told = shell("plan", "merge", queued)
        assert (told.code, told.out) == (3, "")
        assert "nothing was kept; merge again with --accept" in told.err
        plan = client.plans.get_plan(queued)
        assert (str(plan.position), plan.conflicts) == ("execute/queued", ())
        told = shell("plan", "resolve", queued, "f", "--accept", "ours")
        assert told.code == 1
        assert "merges and resolves in one step" in told.err

    def test_edit(self, shell: Shell, client: sw.Client, queued: str, editor: Callable[[str], Path]) -> None:
        """The editor gets the text with markers, and what it leaves is taken; the file goes."""
        left = editor("sed -i -e '/^[<=>]\\{7\\}/d' -e 's/^V$/and V/' \"$1\"")
        told = shell("plan", "merge", queued, "--edit")
        assert (told.code, told.err) == (0, "")
        assert merged_body(client, queued) == EDITS["a"].replace(b"five\n", b"five\nand V\n") + b"end\n"
        assert [*left.glob("merge-*")] == []

    def test_edit_that_does_not_resolve(
        self, shell: Shell, client: sw.Client, queued: str, editor: Callable[[str], Path]
    ) -> None:
        """Nothing is resolved, and the text that was edited is kept and named."""
        for script, message in (("true", "line 6 of the body is a conflict marker"), ("exit 3", "ended with 3")):
            left = editor(script)
            told = shell("plan", "merge", queued, "--edit")
            assert (told.code, told.out) == (2, "")
            assert message in told.err
            (kept,) = left.glob("merge-*/f")
            assert f"the text that you edited is in {kept}" in told.err
            assert b"<<<<<<< ours\n" in kept.read_bytes()
            kept.unlink()
            kept.parent.rmdir()
            assert str(client.plans.get_plan(queued).position) == "execute/queued"

    def test_no_editor(
        self, shell: Shell, queued: str, editor: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for wrong in (str(editor("true") / "nothing"), "'open", " "):
            monkeypatch.setenv("VISUAL", wrong)
            told = shell("plan", "merge", queued, "--edit")
            assert (told.code, told.out) == (1, "")
            assert "set EDITOR to a program that edits a file" in told.err
            assert "the text that you edited" not in told.err


def test_conflict_that_is_no_text(shell: Shell, client: sw.Client) -> None:
    """It cannot be edited, and the message says what to give instead."""
    parent = executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias=alias) for alias in "ab"])
    for body in (b"\0a", b"\0b"):
        child = client.plans.start_ready(parent, straight=True).plan
        assert child is not None
        record(client, child.plan_id, sw.Change(path="f", before=b"\0", after=body))
        client.plans.complete_execute(child.plan_id)
    assert shell("plan", "merge", parent).code == 3
    shown = shell("plan", "resolve", parent, "f")
    assert (shown.code, shown.out) == (0, "")
    assert "theirs: 2 bytes" in shown.err
    assert "it is binary" in shown.err
    told = shell("plan", "resolve", parent, "f", "--edit")
    assert (told.code, told.out) == (2, "")
    assert "cannot be edited (both sides changed it, and it is binary): give --accept" in told.err


def test_nothing_to_merge(shell: Shell, client: sw.Client) -> None:
    """A plan without children, and one with a child that is not finished: neither costs the plan an attempt."""
    queued, parent = new(client), executing(client)
    client.plans.declare_subplans(parent, [sw.subplan(ACTION, alias="a")])
    before = client.status().revision
    for plan_id, message in ((queued, "no children to merge"), (parent, "let it finish, or cancel it")):
        told = shell("plan", "merge", plan_id)
        assert (told.code, told.out) == (1, "")
        assert message in told.err
    for wrong in (("--accept", "ours", "--edit"), ("--accept", "ours", "--accept", "theirs")):
        assert shell("plan", "merge", parent, *wrong).code == 2
    assert client.status().revision == before
