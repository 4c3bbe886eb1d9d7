"""`stepwell log`: entries from arguments and pipes, and back to the terminal or to a program."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.cli.main import main
from stepwell.testing import LocalRuntime
from tests.support.cli.plans import CommandOutput

Shell = Callable[..., CommandOutput]


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0) as runtime:
        yield runtime


@pytest.fixture
def log(runtime: LocalRuntime) -> Iterator[sw.Log]:
    with runtime.client(["p"]) as client:
        yield client.log("log")


@pytest.fixture
def shell(runtime: LocalRuntime, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Call a command of `stepwell log`, mostly on the log of this test, with a text on stdin."""

    def call(verb: str, *arguments: str, stdin: bytes = b"", name: str | None = "log") -> CommandOutput:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin))))
        capsys.readouterr()
        target = [name] if name else []
        code = main(["log", verb, *target, *arguments, "--project", "p", "--connect", runtime.address])
        told = capsys.readouterr()
        return CommandOutput(code, told.out, told.err)

    return call


def test_append_and_last(shell: Shell, log: sw.Log) -> None:
    """Arguments, lines of a pipe, and a whole file; the last ones come back as they were."""
    assert shell("append", "one", "two").out == "appended 2 entries up to position 2\n"
    assert shell("append", stdin=b"three\r\nfour\nfive").code == 0
    assert shell("append", "--whole", "--kind", "file", stdin=b"six\nlines\n").code == 0
    assert shell("append").out == ""
    assert shell("last", "-n", "3").out == "four\nfive\nsix\nlines\n"
    assert [entry.kind for entry in log.last(2)] == ["text", "file"]


def test_many_lines(shell: Shell, log: sw.Log) -> None:
    """More than an append takes are several."""
    count = 2 * limits.LOG_APPENDED_MAX + 1
    told = shell("append", "--json", stdin=b"".join(b"%d\n" % number for number in range(count)))
    found = json.loads(told.out)
    assert (found["entries"], found["first_position"], found["last_position"]) == (count, 1, count)
    assert found["head"] == log.status().head
    assert shell("since", "510").out == "510\n511\n512\n"


def test_json(shell: Shell, log: sw.Log) -> None:
    """Entries with their metadata; bodies that are no text are base64."""
    shell("append", "text", "--metadata", "by=alice")
    log.append(b"\xff")
    for told in (shell("last", "--json"), shell("since", "--json")):
        found = json.loads(told.out)
        assert (found["head"], found["next_position"]) == (log.status().head, 3)
        first, second = found["entries"]
        assert (first["position"], first["text"], first["metadata"]) == (1, "text", {"by": "alice"})
        assert (second["base64"], second["kind"]) == ("/w==", "text")
    assert shell("last", "-n", "1").out == "\N{REPLACEMENT CHARACTER}\n"


def test_last_of_large_bodies(shell: Shell, log: sw.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are more than a page, and come all the same."""
    monkeypatch.setattr(limits, "LOG_PAGE_BYTES", 3)
    log.append(*"abcdefgh")
    assert shell("last", "-n", "7").out == "b\nc\nd\ne\nf\ng\nh\n"


def test_expected_head(shell: Shell, log: sw.Log) -> None:
    """A conflict has an exit code of its own, and says both heads."""
    assert shell("append", "a", "b", "--expected-head", "0").code == 0
    told = shell("append", "c", "--expected-head", "0", "--json")
    assert told.code == 3
    assert json.loads(told.out)["error"]["details"] == {"expected": 0, "actual": log.status().head}
    head = str(log.status().head)
    assert shell("append", "--expected-head", head, stdin=b"c\nd\n").code == 0
    for verb in ("pop", "clear", "delete", "retain"):
        assert shell(verb, "--expected-head", head).code == 3


def test_pop_clear_and_delete(shell: Shell, log: sw.Log) -> None:
    log.append("a", "b", "c")
    assert shell("pop").out == "c\n"
    assert json.loads(shell("pop", "--json").out)["entry"]["text"] == "b"
    assert "the next one gets position 4" in shell("clear").out
    assert json.loads(shell("clear", "--json").out)["log"]["entries"] == 0
    assert "has no entry" in shell("pop").err
    assert json.loads(shell("pop", "--json").out) == {"entry": None}
    assert shell("delete").out == "deleted log 'log'\n"
    assert "has no log 'log'" in shell("delete").err
    log.append("x")
    assert json.loads(shell("delete", "--json").out) == {"deleted": "log"}


def test_list_and_retain(shell: Shell, log: sw.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each log has and retains, page after page; how to make one if there is none."""
    monkeypatch.setattr("stepwell.limits.PAGE_ROWS_MAX", 1)
    assert "stepwell log append LOG TEXT --project p" in shell("list", name=None).err
    log.append(*"abc")
    assert shell("retain", "--entries", "2", "--seconds", "90").out == "log 'log' has 2 entries\n"
    shell("append", "x", name="other")
    listed = " ".join(shell("list", name=None).out.split())
    assert "log 2 2 2 to 3 2, 90 s other 1 1 1 to 1 all" in listed
    found = json.loads(shell("list", "--json", name=None).out)["logs"]
    assert [(each["name"], each["keep_ms"]) for each in found] == [("log", 90_000), ("other", None)]
    assert json.loads(shell("retain", "--json").out)["log"]["keep_entries"] is None


def test_follow(shell: Shell, log: sw.Log) -> None:
    """From a position on, as text or as a JSON object for each entry; what was missed is said."""
    log.append("a", "b", "c")
    assert shell("follow", "--since", "1", "-n", "2").out == "b\nc\n"
    lines = shell("follow", "--since", "1", "-n", "2", "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in lines] == ["b", "c"]
    log.retain(1)
    told = shell("follow", "--since", "1", "-n", "1")
    assert (told.out, "entries 2 to 2 of log 'log' were removed" in told.err) == ("c\n", True)


def test_asked_for_wrongly(shell: Shell) -> None:
    assert "--whole is for stdin" in shell("append", "a", "--whole").err
    assert "is no whole number" in shell("last", "-n", "many").err
    assert "give a whole number, at least 1" in shell("retain", "--entries", "0").err
