"""Careless use: each mistake gets an error that says what to do, and costs nothing but itself."""

from __future__ import annotations

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest

import stepwell as sw
from stepwell.testing import LocalRuntime
from tests.support.processes import in_forked_child, is_alive
from tests.support.wait import eventually

Mistake = Callable[[sw.Client], object]

MISTAKES: dict[str, tuple[Mistake, type[Exception], str]] = {
    "a body that is no text": (
        lambda client: client.tiers.store(sw.Fragment(fragment_id="a", body=cast("str", 5))),
        sw.InvalidArgument,
        "body",
    ),
    "a fragment that is a dict": (
        lambda client: client.tiers.store(cast("sw.Fragment", {"fragment_id": "a"})),
        sw.InvalidArgument,
        "Fragment",
    ),
    "a project with a space": (
        lambda client: client.tiers.get("a", project="my shop"),
        sw.InvalidArgument,
        "a project is 1 to 128",
    ),
    "a project of another session": (
        lambda client: client.tiers.get("a", project="elsewhere"),
        sw.OutOfScope,
        "elsewhere",
    ),
    "a fragment that is not there": (lambda client: client.tiers.get("nowhere"), sw.NotFound, "nowhere"),
    "a question without words": (lambda client: client.assemble(None), sw.InvalidArgument, "ask something"),
    "projects that are a text": (
        lambda _client: sw.ContextRequest(projects="shop"),
        sw.InvalidArgument,
        r"give \['shop'\]",
    ),
    "a budget of nothing": (
        lambda _client: sw.ContextRequest(projects=["shop"], budget_tokens=0),
        sw.InvalidArgument,
        "at least one token",
    ),
    "a strategy that is not there": (
        lambda client: client.strategies.submit("by_magic", sw.ContextRequest(projects=["shop"])),
        sw.NotFound,
        "offered: .*keyword",
    ),
    "an action that is not there": (
        lambda client: client.plans.use_action("fix", projects=["shop"]),
        sw.NotFound,
        "local/fix",
    ),
    "a plan that is not there": (
        lambda client: client.plans.get_plan("01ARZ3NDEKTSV4RRFFQ69G5FAV"),
        sw.NotFound,
        "no plan",
    ),
    "a runtime in a data directory that is a file": (
        lambda _client: sw.Runtime.start(data_dir=__file__, workers=0),
        sw.StepwellError,
        "director",
    ),
    "a strategy that is no strategy": (
        lambda _client: sw.Runtime.start(strategies=["keyword"]),
        sw.InvalidArgument,
        "is no strategy: give an object",
    ),
    "an address where nothing is": (
        lambda _client: sw.connect("/nowhere/manager.sock"),
        sw.RuntimeLost,
        "stepwell serve",
    ),
}


@pytest.fixture
def client() -> Iterator[sw.Client]:
    with LocalRuntime() as runtime, runtime.client(projects=["shop"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="cart", body="def total(items): ..."))
        yield client


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(client: sw.Client, name: str) -> None:
    """The error is typed, says what to do, and the state is what it was."""
    mistake, kind, advice = MISTAKES[name]
    before = client.status().revision
    with pytest.raises(kind, match=advice):
        mistake(client)
    assert client.status().revision == before
    assert client.tiers.get("cart").text == "def total(items): ..."


def test_everything_in_the_wrong_order(client: sw.Client) -> None:
    """A plan that is not where the caller thinks says where it is, and stays there."""
    client.plans.create_action("fix", description="", definition_of_done="", strategy_actor="a", execution_actor="b")
    with pytest.raises(sw.AlreadyExists, match="local/fix"):
        client.plans.create_action(
            "fix", description="", definition_of_done="", strategy_actor="a", execution_actor="b"
        )
    plan = client.plans.use_action("fix", projects=["shop"])
    context = client.execution(plan.plan_id)
    for early in (
        lambda: client.plans.complete_strategize(plan.plan_id),
        lambda: client.plans.start_execute(plan.plan_id),
        context.start_changeset,
        lambda: context.apply("."),
        context.merge_children,
    ):
        with pytest.raises(sw.StepwellError, match=r"strategize|lease"):
            early()
    assert client.plans.get_plan(plan.plan_id) == plan


def test_after_the_end(tmp_path: Path) -> None:
    """A client of a closed runtime, and a closed client, say so at once; closing twice is no mistake."""
    with LocalRuntime(data_dir=tmp_path / "state") as runtime:
        client, other = runtime.client(projects=["shop"]), runtime.client()
        other.close()
        other.close()
        with pytest.raises(sw.RuntimeLost, match="closed"):
            other.tiers.get("cart", project="shop")
    runtime.close()
    with pytest.raises(sw.RuntimeLost, match="closed"):
        client.tiers.get("cart")


def test_results_are_values(client: sw.Client) -> None:
    """What was read cannot be changed by mistake, and outlives its client's next writes."""
    fragment = client.tiers.get("cart")
    with pytest.raises((AttributeError, TypeError)):
        setattr(fragment, "tier", sw.Tier.COLD)  # noqa: B010 - a type checker would refuse the assignment
    with pytest.raises(TypeError):
        fragment.body[0] = 0
    client.tiers.store(sw.Fragment(fragment_id="cart", body="another"))
    assert fragment.text == "def total(items): ..."
    request = sw.ContextRequest(projects=["shop"], query="total")
    assert pickle.loads(pickle.dumps(request)) == copy.deepcopy(request) == request  # noqa: S301 - its own


def test_threads_share_a_client(client: sw.Client) -> None:
    """All of them, without a lock of the caller's."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(20):
                client.tiers.store(sw.Fragment(fragment_id=f"{number}/{turn}", body="x"))
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(client.view()) == 161


def test_blocking_calls_in_a_coroutine(client: sw.Client) -> None:
    """They block, and nothing worse."""

    async def main() -> str:
        client.tiers.store(sw.Fragment(fragment_id="new", body="new"))
        return client.tiers.get("new").text

    assert asyncio.run(main()) == "new"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_forked_child_uses_its_parents_client(client: sw.Client) -> None:
    """It has a session of its own there, and the parent goes on."""

    def child() -> None:
        client.tiers.store(sw.Fragment(fragment_id="of a child", body="x"))
        assert client.tiers.get("cart").text

    in_forked_child(child)
    assert client.tiers.get("of a child").text == "x"


SCRIPT = """
import os, signal, sys
import stepwell as sw
runtime = sw.Runtime.start(workers=1{more})
client = runtime.client(projects=["shop"])
client.tiers.store(sw.Fragment(fragment_id="a", body="b"))
print(runtime.pid, *runtime.workers, flush=True)
{rest}
"""
"""A script that closes nothing."""


def scripted(rest: str, more: str = "") -> tuple[subprocess.CompletedProcess[str], list[int]]:
    """Return how such a script ended, after a check that no process of it is left."""
    program = SCRIPT.format(rest=rest, more=more)
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, check=False)
    pids = [int(word) for word in done.stdout.splitlines()[0].split()]
    eventually(lambda: not any(map(is_alive, pids)))
    return done, pids


@pytest.mark.parametrize(
    "rest, code",
    [("", 0), ("raise SystemExit(3)", 3), ("1 / 0", 1), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)],
    ids=["the end", "exit", "an exception", "kill -9"],
)
def test_scripts_that_close_nothing(rest: str, code: int) -> None:
    """However they end, no manager and no worker stays, and the last words are the script's own."""
    done, _ = scripted(rest)
    assert done.returncode == code
    assert done.stderr == "" or done.stderr.rstrip().endswith("ZeroDivisionError: division by zero")


def test_killed_manager_without_a_directory() -> None:
    """The state is gone, which the next call says in a line, instead of waiting."""
    done, _ = scripted(
        "with runtime:\n os.kill(runtime.pid, 9)\n while runtime.is_alive(): pass\n client.tiers.get('a')"
    )
    assert done.returncode == 1
    assert "RuntimeLost: " in done.stderr.splitlines()[-1]


def test_killed_manager_with_a_directory(tmp_path: Path) -> None:
    """The script does not notice."""
    more = f", data_dir={str(tmp_path / 'state')!r}"
    done, _ = scripted("os.kill(runtime.pid, 9)\nprint(client.tiers.get('a').text)", more)
    assert (done.returncode, done.stdout.splitlines()[1]) == (0, "b")


def test_strategies_that_misbehave() -> None:
    """One that raises, and one that returns something else, cost the answer what they would have found."""

    def raising(_request: object, _view: object, _budget_tokens: int) -> list[sw.ScoredFragment]:
        raise ValueError("oh")

    def lying(_request: object, _view: object, _budget_tokens: int) -> list[str]:
        return ["cart"]

    with LocalRuntime(strategies=[raising, lying]) as runtime, runtime.client(projects=["shop"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="cart", body="def total(items): ..."))
        answer = client.assemble(sw.ContextRequest(projects=["shop"], query="total"))
    assert [each.fragment_id for each in answer.fragments] == ["cart"]
    assert {each.strategy for each in answer.failures} == {"raising", "lying"}


@pytest.mark.parametrize(
    "arguments, code",
    [(["frobnicate"], 2), (["status"], 1), (["plan", "show", "x"], 1), (["serve", "--workers", "x"], 2)],
)
def test_command_line(arguments: list[str], code: int, tmp_path: Path) -> None:
    """A wrong command, and no manager: a line that says so, an exit code, and no traceback."""
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "stepwell", *arguments], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr
    assert "Traceback" not in done.stderr
