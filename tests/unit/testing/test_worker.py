"""Strategies in a test: they run in a thread, on the code that runs them in a process."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.errors import RuntimeFault
from stepwell.pool.strategy.worker import StrategyWorker
from stepwell.strategies.protocol import StrategyView
from stepwell.testing import Clock, LocalRuntime
from tests.support.client.sessions import fragment
from tests.support.entry_points import BROKEN, REASONS, install
from tests.support.strategies import everything, raising, sayings

REQUEST = sw.ContextRequest(query="body", projects=["p"], budget_tokens=10)


class Stubborn:
    """Does not come to an end before it is let go."""

    name = "stubborn"
    capabilities: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.begun, self.over = threading.Event(), threading.Event()

    def can_handle(self, _request: sw.ContextRequest, _view: StrategyView) -> float:
        return 1.0

    def assemble(self, request: sw.ContextRequest, view: StrategyView, budget: int) -> Sequence[sw.ScoredFragment]:
        self.begun.set()
        self.over.wait(60)
        return everything(request, view, budget)

    def explain(self) -> str:
        return "waits"


def test_in_this_process() -> None:
    """What a test gives is run as it is, here: with its state, its patches, its breakpoints."""
    with LocalRuntime(strategies=[sayings]) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment())
        result = client.strategies.submit("sayings", REQUEST).result(60)
        assert [each.reason for each in result.fragments] == [f"{os.getpid()} body"]
        listed = client.strategies.list()
        assert {"keyword", "sayings"} <= {each.name for each in listed.offers}


def test_there_from_the_first_question() -> None:
    """Nobody has to wait for the worker, which begins when it is asked for; and one that fails harms nobody."""
    with LocalRuntime(strategies=[everything, raising]) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment())
        answer = client.assemble(REQUEST, strategies=["everything", "raising"])
        assert [each.fragment_id for each in answer.fragments] == ["a"]
        assert [report.failure is None for report in answer.strategies] == [True, False]


def test_without() -> None:
    """Without a worker it is as without workers."""
    with LocalRuntime(workers=0) as runtime:
        client = runtime.client(projects=["p"])
        assert client.strategies.list().offers == ()
        with pytest.raises(sw.NotFound):
            client.strategies.submit("keyword", REQUEST)


def test_killed_manager_has_a_worker_again(tmp_path: Path) -> None:
    """What was asked of the one is done for the other."""
    stubborn = Stubborn()
    with LocalRuntime(strategies=[stubborn], data_dir=tmp_path) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment())
        future = client.strategies.submit("stubborn", REQUEST)
        stubborn.begun.wait(60)
        runtime.kill()
        stubborn.over.set()
        assert len(future.result(60).fragments) == 1


def test_deadline_costs_nobody_their_life(stepwell_clock: Clock) -> None:
    """A manager kills a worker that takes too long. This one is the test itself: it is only not listened to."""
    stubborn = Stubborn()
    with LocalRuntime(strategies=[stubborn, everything], clock=stepwell_clock) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment())
        late = client.strategies.submit("stubborn", REQUEST, deadline_s=5)
        stubborn.begun.wait(60)
        next_one = client.strategies.submit("everything", REQUEST)
        stepwell_clock.advance(6)
        with pytest.raises(sw.DeadlineExceeded):
            late.result(60)
        stubborn.over.set()
        assert len(next_one.result(60).fragments) == 1


def test_faults_do_not_count_it() -> None:
    """What its worker asks of the manager is no request of the test's."""
    with LocalRuntime(strategies=[everything]) as runtime:
        client = runtime.client(projects=["p"])
        client.tiers.store(fragment())
        runtime.faults.drop_reply(nth=3)
        for _ in range(2):
            client.strategies.submit("everything", REQUEST).result(60)
        client.tiers.store(fragment())


def test_reply_that_waits_for_it_can_be_lost() -> None:
    with LocalRuntime() as runtime:
        client = runtime.client(projects=["p"])
        with runtime.faults.drop_reply():
            assert client.strategies.list().offers


def test_one_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread cannot be stopped: the runtime says so instead of waiting for ever."""
    monkeypatch.setattr(limits, "WORKER_END_SECONDS_MAX", 0.01)
    stubborn = Stubborn()
    with pytest.raises(RuntimeFault, match="still running"), LocalRuntime(strategies=[stubborn]) as runtime:
        client = runtime.client(projects=["p"])
        client.strategies.submit("stubborn", REQUEST)
        stubborn.begun.wait(60)
    stubborn.over.set()


def test_one_that_breaks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a worker that does not come, and why it does not is said at the end."""

    def break_down(_worker: StrategyWorker) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(StrategyWorker, "_join", break_down)
    with pytest.raises(ZeroDivisionError), LocalRuntime() as runtime:
        assert runtime.client().strategies.list().offers == ()


def test_broken_entry_points_are_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """However often the worker is started; and a question for one of them is answered with the reason."""
    install(tmp_path, BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    with LocalRuntime(data_dir=tmp_path / "data") as runtime, runtime.client(projects=["p"]) as client:
        for _ in range(2):
            assert [each.name for each in client.strategies.list().problems] == [*REASONS]
            runtime.kill()
        with pytest.raises(sw.NotFound, match=r"could not be loaded: a-broken .*: ModuleNotFoundError"):
            client.strategies.submit("a-broken", REQUEST)
    logged = capfd.readouterr().err
    assert logged.count("strategy.not_loaded") == len(REASONS)
