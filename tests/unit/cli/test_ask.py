"""`stepwell ask`: a question for the workers, from a shell."""

import json
from collections.abc import Iterator
from typing import cast

import pytest

import stepwell as sw
from stepwell.cli.main import main
from tests.support import strategies
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

SECONDS = 60.0
"""Longer than a new worker takes to start on a busy machine."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=1, strategies=[strategies.raising, strategies.telling]) as started:
        with started.client(projects=["p"]) as client:
            client.tiers.store_many(
                sw.Fragment(fragment_id=f"f{number}", body=f"the number {number}") for number in range(20)
            )
        yield started


def test_tables(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """One for each strategy that answered; what failed is said on stderr."""
    address = ["--address", runtime.address, "--project", "p"]
    assert main(["ask", "number 7", *address, "--strategies", "keyword", "raising", "telling"]) == 0
    told = capsys.readouterr()
    assert "keyword: " in told.out
    assert "f7" in told.out
    assert "telling: 20 fragments" in told.out
    assert "raising: strategy 'raising' raised ValueError: number 7" in told.err


def test_json(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """All of it, for machines; nothing that answered is a failure."""
    address = ["--address", runtime.address, "--project", "p"]
    assert main(["ask", "number 7", *address, "--strategies", "keyword", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["results"]["keyword"]["fragments"][0][:2] == ["p", "f7"]
    assert facts["failures"] == {}
    assert main(["ask", "number 7", *address, "--strategies", "raising", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert facts["failures"]["raising"]["kind"] == "TaskFailed"


def test_without_a_project(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "what", "--address", runtime.address]) == 2
    assert "give --project NAME" in capsys.readouterr().err


def test_status_shows_the_workers(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """How many there are, and how much is waiting for them."""
    found: dict[str, object] = {}

    def is_settled() -> bool:
        """Both name the same worker, which is idle. On a busy machine, say, it may be replaced at any moment."""
        assert main(["status", "--address", runtime.address, "--json"]) == 0
        found.update(json.loads(capsys.readouterr().out))
        is_idle = found["tasks"] == {"leased": 0, "queued": 0}
        return is_idle and found["workers"] == [*runtime.workers] and len(runtime.workers) == 1

    eventually(is_settled, SECONDS)
    eventually(lambda: "workers 1 (tasks under way: 0, waiting: 0)" in table(runtime, capsys), SECONDS)
    assert "keyword" in cast("list[str]", found["strategies"])


def table(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> str:
    """The words of `stepwell status`."""
    assert main(["status", "--address", runtime.address]) == 0
    return " ".join(capsys.readouterr().out.split())
