"""`stepwell status`: every number where one looks for it."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import stepwell as sw
from stepwell.cli.main import main
from stepwell.domain.tiers.source_outline import FILE_KIND, file_id
from stepwell.protocol.usage import MemoryUsage
from stepwell.storage.files.directory import DATABASE
from stepwell.testing import LocalRuntime
from tests.support.entry_points import BROKEN, REASONS, install

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

BUDGET = sw.TierBudget(hot_tokens=1_234, arena_bytes=32 << 20)


@pytest.fixture
def runtime() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=0, budget=BUDGET, encoding="estimate") as runtime:
        with runtime.client() as client:
            client.tiers.store(sw.Fragment(fragment_id="a", project="p", body="12345", tokens=17))
            client.tiers.store(sw.Fragment(fragment_id="b", project="p", body="1", tokens=3), tier=sw.Tier.COLD)
            file = sw.Fragment(fragment_id=file_id("c"), source="c", kind=FILE_KIND, project="p", body="2", tokens=1)
            client.tiers.store(file, tier=sw.Tier.COLD)
        yield runtime


def test_the_table(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """Readable, without escape codes where there is no terminal, the address in one piece."""
    assert main(["status", "--address", runtime.address]) == 0
    told = capsys.readouterr().out
    assert "\x1b" not in told
    rows = {words[0]: words[1:] for line in told.splitlines() if (words := line.split())}
    assert rows["manager"] == [runtime.address]
    assert rows["process"] == [str(runtime.pid)]
    assert rows["revision"] == ["3"]
    assert rows["hot"] == ["1", "0", "17", "5", "1,234", "tokens"]
    assert "cold 1 1 4 2 1,000,000 entries" in " ".join(told.split())
    assert " ".join(rows["shared"]).startswith("memory 1,048,576 of 33,554,432 bytes in 1 segment,")
    assert rows["tokens"] == ["counted", "by", "estimate"]
    assert rows["writes"] == ["survive", "nothing:", "they", "are", "in", "memory", "(durability:", "none)"]
    assert rows["kept"] == ["0", "0", "0", "0", "1,000,000", "entries"]
    assert "stored" not in rows


def test_json(runtime: sw.Runtime, capsys: pytest.CaptureFixture[str]) -> None:
    """One object with the same facts."""
    assert main(["status", "--address", runtime.address, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["address"], facts["pid"], facts["revision"]) == (runtime.address, runtime.pid, 3)
    assert facts["tiers"]["hot"] == {"entries": 1, "tokens": 17, "bytes": 5, "files": 0}
    assert facts["tiers"]["cold"] == {"entries": 1, "tokens": 4, "bytes": 2, "files": 1}
    assert facts["budget"]["hot_tokens"] == 1_234
    assert facts["uptime_s"] >= 0
    assert (facts["encoding"], facts["memory"]["arena_limit"]) == ("estimate", 32 << 20)
    assert facts["memory"].keys() == {field.name for field in msgspec.structs.fields(MemoryUsage)}
    assert (facts["durability"], facts["database"]) == ("none", None)
    assert {"epoch", "peers", "sessions", "requests", "evicted", "body_bytes"} <= facts.keys()


@pytest.mark.parametrize(
    "durability, survived", [("disk", "a loss of power"), ("process", "the death of every process")]
)
def test_what_is_kept(durability: str, survived: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the state is kept, and what it survives there."""
    with sw.Runtime.start(workers=0, data_dir=tmp_path / "data", durability=durability) as runtime:
        assert main(["status", "--address", runtime.address]) == 0
        told = " ".join(capsys.readouterr().out.split())
        assert f"writes survive {survived} (durability: {durability})" in told
        assert f"stored in {tmp_path / 'data' / DATABASE}" in told
        assert main(["status", "--address", runtime.address, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["durability"], facts["database"]) == (durability, str(tmp_path / "data" / DATABASE))


def test_strategies_that_could_not_be_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each with its reason, for a reader and for a program; a good one is listed, also with an underscore."""
    install(tmp_path, BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    with LocalRuntime() as runtime:
        assert main(["status", "--address", runtime.address]) == 0
        told = capfd.readouterr().out.splitlines()
        assert any(line.split()[0] == "strategies" and "with_underscore" in line for line in told if line)
        shown = [line.rstrip().split(maxsplit=2)[2] for line in told if line.startswith("not loaded")]
        assert main(["status", "--address", runtime.address, "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert [each["name"] for each in facts["strategies_not_loaded"]] == [*REASONS]
    assert [each.split()[0] for each in shown] == [*REASONS]
    for line, each in zip(shown, facts["strategies_not_loaded"], strict=True):
        assert line == f"{each['name']} ({each['source']}): {each['reason']}"
        assert REASONS[each["name"]] in each["reason"]
