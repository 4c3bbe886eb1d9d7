"""`stepwell pool`: budgets of tokens from a shell."""

import json
from collections.abc import Iterator

import pytest

from stepwell.cli.main import main
from stepwell.testing import LocalRuntime


@pytest.fixture
def runtime() -> Iterator[LocalRuntime]:
    with LocalRuntime(workers=0) as runtime:
        yield runtime


def test_life_of_a_pool(runtime: LocalRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    """Created, used, listed, resized and deleted; each line says what is there now."""
    address = ["--connect", runtime.address]
    assert main(["pool", "list", *address]) == 0
    assert "`stepwell pool create NAME --tokens N`" in capsys.readouterr().err
    assert main(["pool", "create", "team", "--tokens", "200000", "--per", "day", "--soft", "10", *address]) == 0
    assert capsys.readouterr().out == "created team: 200,000 tokens per day\n"
    client = runtime.client(label="planner")
    lease = client.pools.lease("team", 50_000)
    assert main(["pool", "list", *address]) == 0
    assert "team 200,000 per day 0 50,000 150,000 1 low" in " ".join(capsys.readouterr().out.split())
    assert main(["pool", "list", "--json", *address]) == 0
    (found,) = json.loads(capsys.readouterr().out)["pools"]
    assert (found["tokens"], found["leases"][0]["label"]) == (200_000, "planner")
    assert main(["status", *address]) == 0
    assert "team 200,000 per day 0 50,000 150,000 1 low" in " ".join(capsys.readouterr().out.split())
    assert main(["status", "--json", *address]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["pools"]] == ["team"]
    assert main(["pool", "delete", "team", *address]) == 1
    assert "delete it when its tokens are returned" in capsys.readouterr().err
    client.pools.give_back("team", lease)
    assert main(["pool", "resize", "team", "--tokens", "7", *address]) == 0
    assert capsys.readouterr().out == "resized team: 7 tokens, 7 of them free\n"
    assert main(["pool", "delete", "team", *address]) == 0
    assert capsys.readouterr().out == "deleted team\n"


@pytest.mark.parametrize("command", ["create", "resize", "delete"])
def test_json(runtime: LocalRuntime, capsys: pytest.CaptureFixture[str], command: str) -> None:
    """The pool, with all of its fields."""
    client = runtime.client()
    if command != "create":
        client.pools.create("team", tokens=5)
    tokens = [] if command == "delete" else ["--tokens", "5"]
    assert main(["pool", command, "team", *tokens, "--json", "--connect", runtime.address]) == 0
    assert json.loads(capsys.readouterr().out)["pool"]["tokens"] == 5


def test_unknown_period(runtime: LocalRuntime, capsys: pytest.CaptureFixture[str]) -> None:
    """The known ones are named."""
    arguments = ["--tokens", "5", "--per", "fortnight", "--connect", runtime.address]
    assert main(["pool", "create", "team", *arguments]) == 2
    assert "is not one of second, minute, hour, day" in capsys.readouterr().err
