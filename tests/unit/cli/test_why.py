"""`stepwell why` and `stepwell diff`: the receipts of answers, named in the same way by both."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, cast

import pytest

import stepwell as sw
from stepwell.assembly.receipt import ReceiptEntry
from stepwell.cli.main import main
from stepwell.testing import LocalRuntime

PROJECT = "wells"


class Answered(NamedTuple):
    """Two answers of a manager, about water and about buckets, and what a shell says of them."""

    before: str
    after: str
    path: Path
    why: Callable[..., dict[str, object]]
    diff: Callable[..., dict[str, object]]
    options: list[str]


@pytest.fixture
def answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Answered]:
    (tmp_path / PROJECT).mkdir()
    (tmp_path / PROJECT / "water.md").write_text("# Water\n\nThe steps of the well lead down to the water.\n")
    (tmp_path / PROJECT / "bucket.md").write_text("# Bucket\n\nA bucket on a rope, for the well.\n")
    with LocalRuntime(workers=1) as runtime, runtime.client([PROJECT]) as client:
        client.ingest(tmp_path / PROJECT)
        before, after = (
            client.assemble(sw.ContextRequest(projects=[PROJECT], query=query), strategies=["keyword"]).receipt_id
            for query in ("well water", "well bucket")
        )
        connected = ["--connect", runtime.address, "--project", PROJECT]

        def told(command: str, *arguments: str) -> dict[str, object]:
            assert main([command, *arguments, *connected, "--json"]) == 0
            out, err = capsys.readouterr()
            assert (out.count("\n"), err) == (1, "")
            return cast("dict[str, object]", json.loads(out))

        def why(*arguments: str) -> dict[str, object]:
            return told("why", *arguments)

        def diff(*arguments: str) -> dict[str, object]:
            return told("diff", *arguments)

        yield Answered(before, after, tmp_path / PROJECT, why, diff, connected)


def test_what_became_of_a_line(answered: Answered) -> None:
    """For machines: the answer that is explained, and each fragment that matches with its rank and its entry."""
    found = answered.why("bucket.md:3")
    assert (found["receipt_id"], found["query"]) == (answered.after, "well bucket")
    (fragment,) = cast("list[dict[str, object]]", found["fragments"])
    assert fragment.keys() == {"rank", *ReceiptEntry.__struct_fields__}
    assert (fragment["rank"], fragment["project"], fragment["source"]) == (1, PROJECT, "bucket.md")
    assert fragment["decision"] in {"kept", "shortened"}
    (vote,) = cast("list[dict[str, object]]", fragment["votes"])
    assert (vote["strategy"], vote["rank"]) == ("keyword", 1)
    assert cast("dict[str, float]", fragment["scores"])["total"] >= cast("float", found["last_kept_score"])


def test_the_same_as_in_words(answered: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    """Words and values are about the same fragments, in the same order."""
    assert main(["why", "bucket.md", *answered.options]) == 0
    words = capsys.readouterr().out
    fragments = cast("list[dict[str, object]]", answered.why("bucket.md")["fragments"])
    ids = [str(each["fragment_id"]) for each in fragments]
    assert [line.split(" ")[0] for line in words.splitlines() if not line.startswith(" ")] == ids


def test_a_line_that_no_strategy_has_named(answered: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    """An error, also as an object."""
    assert main(["why", "nowhere.md:1", *answered.options, "--json"]) == 1
    told = capsys.readouterr()
    assert json.loads(told.out)["error"]["kind"] == "NotFound"
    assert "'nowhere.md:1' was no candidate" in told.err


def test_receipts_are_named_alike(answered: Answered) -> None:
    """By `--receipt`, or the last ones; `diff` takes two, and also as arguments."""
    assert answered.why("water.md")["receipt_id"] == answered.after
    assert answered.why("water.md", "--receipt", answered.before)["receipt_id"] == answered.before
    last = answered.diff()
    assert last["differences"]
    assert answered.diff("--receipt", answered.before, "--receipt", answered.after) == last
    assert answered.diff(answered.before, answered.after) == last
    assert answered.diff(answered.after, "--receipt", answered.after)["differences"] == []


def test_directories_are_named_alike(answered: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    """By `--path`; `why` also takes it as an argument, and not twice."""
    path = ["--path", str(answered.path)]
    assert answered.why("water.md", *path) == answered.why("water.md", str(answered.path)) == answered.why("water.md")
    assert answered.diff(*path) == answered.diff()
    assert main(["why", "water.md", str(answered.path), *path, *answered.options]) == 2
    assert "give one of them" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--receipt", "one"], ["one"], ["one", "two", "--receipt", "three"]])
def test_two_receipts_or_none(options: list[str], answered: Answered, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *options, *answered.options]) == 2
    assert "give two receipts, or none" in capsys.readouterr().err
