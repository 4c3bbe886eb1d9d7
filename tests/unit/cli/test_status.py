"""`stepwell status`: every number where one looks for it."""

import json
from collections.abc import Iterator

import pytest

import stepwell as sw
from stepwell.cli import main


@pytest.fixture
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(budget=sw.TierBudget(hot_tokens=1_234)) as runtime:
        with runtime.client() as client:
            client.tiers.store(sw.Fragment(fragment_id="a", project="p", body="12345", tokens=17))
            client.tiers.store(sw.Fragment(fragment_id="b", project="p", body="1", tokens=3), tier=sw.Tier.COLD)
        yield runtime


def test_the_table(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """Readable, without escape codes where there is no terminal, the address in one piece."""
    assert main(["status", "--address", runtime.address]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    rows = {words[0]: words[1:] for line in told.splitlines() if (words := line.split())}
    assert rows["manager"] == [runtime.address]
    assert rows["process"] == [str(runtime.pid)]
    assert rows["revision"] == ["2"]
    assert rows["hot"] == ["1", "17", "5", "1,234", "tokens"]
    assert rows["cold"] == ["1", "3", "1", "1,000,000", "entries"]


def test_json(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the same facts."""
    assert main(["status", "--address", runtime.address, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["address"], facts["pid"], facts["revision"]) == (runtime.address, runtime.pid, 2)
    assert facts["tiers"]["hot"] == {"entries": 1, "tokens": 17, "bytes": 5}
    assert facts["budget"]["hot_tokens"] == 1_234
    assert facts["uptime_s"] >= 0
    assert {"epoch", "peers", "sessions", "requests", "evicted", "body_bytes"} <= facts.keys()
