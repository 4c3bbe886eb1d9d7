"""A directory, and what becomes of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from behave import fixture, given, then, use_fixture, when
from behave.runner import Context

import stepwell as sw
from stepwell.domain.tiers.source_outline import FILE_KIND, Outline

LONG = "words that are long enough to be no tiny part of anything, " * 4
FILES = {
    "code.py": f"def first():\n    return '{LONG}'\n\n\ndef second():\n    return '{LONG}'\n",
    "docs/prose.md": f"# Title\n\n{LONG}\n\n## Part\n\n{LONG}\n",
    "talk.jsonl": '{"speaker": "Alice", "text": "Well?"}\n{"speaker": "Bob", "text": "Well."}\n',
    "picture.png": "\x89PNG\0",
}


def write(path: Path, text: str, age_ns: int = 0) -> None:
    """Long ago: a file that is young is known by that, and an hour later by its time."""
    path.write_text(text)
    os.utime(path, ns=(10**18 + age_ns, 10**18 + age_ns))


DEEDS: dict[str, Callable[[Path], object]] = {
    "added": lambda root: write(root / "new.md", "# New\n", age_ns=2),
    "changed": lambda root: write(root / "code.py", FILES["code.py"].replace("second", "third"), age_ns=1),
    "deleted": lambda root: (root / "docs/prose.md").unlink(),
    "renamed": lambda root: (root / "code.py").rename(root / "moved.py"),
}


@fixture
def directory(context: Context) -> Iterator[None]:
    context.root = Path(tempfile.mkdtemp())
    for name, text in FILES.items():
        path = context.root / name
        path.parent.mkdir(exist_ok=True)
        write(path, text)
    yield
    shutil.rmtree(context.root)


def rows(client: sw.Client) -> dict[str, tuple[object, ...]]:
    found = client.tiers.scoped()
    return {row.fragment_id: (row.source, row.kind, row.tokens, row.digest, row.metadata) for row in found}


@given("a directory with code, prose, a conversation and a binary file")
def step_directory(context: Context) -> None:
    use_fixture(directory, context)


@given("it was ingested")
@when("it is ingested again")
def step_ingest(context: Context) -> None:
    context.before = context.asker.status().revision
    context.report = context.asker.ingest(context.root)


@when("a file is {deed}")
def step_deed(context: Context, deed: str) -> None:
    DEEDS[deed](context.root)


@when("somebody deletes a fragment of a file")
def step_harm(context: Context) -> None:
    context.asker.tiers.delete("code.py#second")


@then("the code is split at its definitions, the prose at its headings, and the conversation at its turns")
def step_split(context: Context) -> None:
    names = {each.fragment_id for each in context.asker.view() if each.kind != FILE_KIND}
    prose = {"docs/prose.md#Title", "docs/prose.md#Title > Part"}
    assert names == {"code.py#first", "code.py#second", *prose, "talk.jsonl#1", "talk.jsonl#2"}, names


@then("every byte of a text is in exactly one fragment, which knows its lines")
def step_whole(context: Context) -> None:
    for source, text in FILES.items():
        parts = [each for each in context.asker.view() if each.source == source and each.kind != FILE_KIND]
        if not parts:
            continue
        assert "".join(each.text for each in parts) == text, source
        for each in parts:
            first, last = Outline.of(each.metadata).lines or (0, 0)
            assert "".join(text.splitlines(keepends=True)[first - 1 : last]) == each.text, each


@then("the binary file is reported, and the others are there")
def step_reported(context: Context) -> None:
    assert context.report.skipped == {"picture.png": "it is binary"}, context.report
    assert context.report.added == len(FILES) - 1, context.report


@then("no file is read, and nothing is written")
def step_nothing(context: Context) -> None:
    assert context.report.unchanged == len(FILES) - 1, context.report
    assert context.asker.status().revision == context.before


@then("the project is what a first ingest would make it")
def step_as_first(context: Context) -> None:
    with sw.Runtime.start(workers=0, log_level="error") as runtime, runtime.client(projects=["p"]) as fresh:
        fresh.ingest(context.root)
        assert rows(context.asker) == rows(fresh)
