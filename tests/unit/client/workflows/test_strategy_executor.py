"""Strategies of one request, on real workers: what fails costs that one only, and all see one state."""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.workflows import strategy_executor
from stepwell.strategies import progress
from stepwell.strategies.payload import StrategyResult
from stepwell.strategies.protocol import StrategyView
from tests.support.processes import in_forked_child, kill
from tests.support.strategies import DEADLINES_S
from tests.support.wait import eventually

pytestmark = pytest.mark.usefixtures("processes_unmeasured")

Found = Sequence[sw.ScoredFragment]
PROJECTS = ("p", "q")
FRAGMENTS = 20
AGES_S = 240.0
"""Longer than any test: whoever waits for it was not stopped."""


def scored(view: StrategyView, descending: int) -> Found:
    rows = [row for project in view.projects for row in view.rows(project)]
    ordered = sorted(rows, key=lambda row: (descending * row.tokens, row.fragment_id))
    return [
        sw.ScoredFragment(row.project, row.fragment_id, float(-place), row.tokens, row.revision)
        for place, row in enumerate(ordered)
    ]


def small(_request: sw.ContextRequest, view: StrategyView, _budget: int) -> Found:
    """Prefers small ones."""
    return scored(view, 1)


def large(_request: sw.ContextRequest, view: StrategyView, _budget: int) -> Found:
    """Prefers large ones."""
    return scored(view, -1)


def frugal(_request: sw.ContextRequest, view: StrategyView, budget: int) -> Found:
    """Takes as many as its budget has tokens."""
    return scored(view, 1)[:budget]


def raises(request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Found:
    noted(request, "raises")
    raise KeyError("no such luck")


def rubbish(_request: sw.ContextRequest, _view: StrategyView, _budget: int) -> object:
    return [("p", "f0", 1.0, 1, 1)]


def invents(_request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Found:
    return [sw.ScoredFragment("p", "nobody-stored-this", 1.0, 1, 1)]


def hangs(request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Found:
    noted(request, "hangs")
    threading.Event().wait(AGES_S)
    return []


def poison(_request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Found:
    os._exit(13)


def greedy(_request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Found:
    raise MemoryError


def convalescent(request: sw.ContextRequest, view: StrategyView, _budget: int) -> Found:
    """Fails until there is a cure."""
    if not Path(request.query, "cure").exists():
        raise RuntimeError("still ill")
    return scored(view, 1)


def bereft(request: sw.ContextRequest, view: StrategyView, _budget: int) -> Found:
    """What it looks at is gone, until somebody has put something in its place."""
    noted(request, "bereft")
    consolation = Path(request.query, "consolation")
    if consolation.exists():
        return scored(view, 1)
    never = threading.Event()
    while not consolation.exists():
        progress.report(1, 2, "bereft")  # again: whoever begins to listen only now has not heard it
        never.wait(0.01)
    raise sw.BodyGone("this body was deleted")


def forlorn(request: sw.ContextRequest, _view: StrategyView, _budget: int) -> Found:
    noted(request, "forlorn")
    raise sw.BodyGone("this body was deleted")


def noted(request: sw.ContextRequest, name: str) -> None:
    with Path(request.query, name).open("a") as file:
        file.write(f"{os.getpid()}\n")


def times(directory: Path, name: str) -> int:
    """How often a strategy was really asked."""
    file = directory / name
    return len(file.read_text().splitlines()) if file.exists() else 0


STRATEGIES = [small, large, frugal, raises, rubbish, invents, hangs, poison, greedy, convalescent, bereft, forlorn]


@contextmanager
def running(workers: int = 2) -> Iterator[tuple[sw.Runtime, sw.Client]]:
    started = sw.Runtime.start(workers=workers, strategies=STRATEGIES, log_level="error")
    with started as runtime, runtime.client(projects=PROJECTS) as client:
        for number in range(FRAGMENTS):
            project = PROJECTS[number % len(PROJECTS)]
            fragment = sw.Fragment(fragment_id=f"f{number}", project=project, body="x", tokens=1 + number % 7)
            client.tiers.store(fragment)
        yield runtime, client


@pytest.fixture(scope="module")
def runtime() -> Iterator[sw.Runtime]:
    """For tests that cost no worker its life.

    It has one worker. Of several, one that was slow to begin a task may find that another one has it, and is replaced.
    """
    with running(workers=1) as (runtime, _):
        yield runtime


@pytest.fixture
def client(runtime: sw.Runtime) -> Iterator[sw.Client]:
    with runtime.client(projects=PROJECTS) as client:
        yield client


@pytest.fixture
def of_its_own() -> Iterator[sw.Client]:
    """Of a runtime of which workers may die."""
    with running() as (_, client):
        yield client


def asking(directory: Path | None = None) -> sw.ContextRequest:
    return sw.ContextRequest(projects=PROJECTS, query="" if directory is None else str(directory))


def executed(client: sw.Client, request: sw.ContextRequest, asked: Sequence[str]) -> sw.types.Execution:
    """Return the execution with the first deadline that all strategies meet, except the one that hangs."""
    late: list[str] = []
    for deadline_s in DEADLINES_S:
        execution = sw.DefaultStrategyExecutor(client).execute(request, asked, deadline_s=deadline_s)
        late = [name for name, error in execution.failures.items() if isinstance(error, sw.DeadlineExceeded)]
        if late == ["hangs"]:
            return execution
    raise AssertionError(f"stopped after {DEADLINES_S[-1]:g} s: {late}")


def timeless(execution: sw.types.Execution) -> object:
    """All but how long it took, and in which process."""
    return (
        [(name, msgspec.structs.replace(result, seconds=0.0)) for name, result in execution.results.items()],
        [(name, type(error), error.message) for name, error in execution.failures.items()],
        execution.revision,
    )


def test_each_failure_is_that_strategys_own(
    of_its_own: sw.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One raises, one hangs, one kills its workers, one eats memory, some return rubbish, and one does not exist: the
    good ones answer, in the order asked for, and of each other one the answer says why it does not.
    """
    monkeypatch.setattr(limits, "EXECUTOR_GRACE_SECONDS", 60.0)  # three workers have to come up, one after the other
    asked = ["large", "raises", "hangs", "poison", "greedy", "rubbish", "invents", "nowhere", "small"]
    execution = executed(of_its_own, asking(tmp_path), asked)
    assert [*execution.results] == ["large", "small"]
    assert {name: type(error) for name, error in execution.failures.items()} == {
        "raises": sw.TaskFailed,
        "hangs": sw.DeadlineExceeded,
        "poison": sw.TaskQuarantined,
        "greedy": sw.MemoryExceeded,
        "rubbish": sw.TaskFailed,
        "invents": sw.TaskFailed,
        "nowhere": sw.NotFound,
    }
    assert "no such luck" in execution.failures["raises"].message
    assert [*execution.failures] == [name for name in asked if name not in execution.results]
    view = of_its_own.view()
    assert (execution.epoch, execution.revision) == (view.epoch, view.revision)
    assert execution.results["small"].fragments == tuple(small(asking(), view, 0))
    assert execution.results["large"].fragments == tuple(large(asking(), view, 0))


def test_number_of_workers_makes_no_difference(tmp_path: Path) -> None:
    """Nor does the order in which they happen to end."""
    asked = ["small", "raises", "large", "nowhere", "keyword", "rubbish", "frugal"]
    found: list[object] = []
    for workers in (1, 3):
        with running(workers) as (_, client):
            executor = sw.DefaultStrategyExecutor(client, breaker=sw.BreakerSettings(failures_max=100))
            with ThreadPoolExecutor(4) as threads:
                many = [threads.submit(executor.execute, asking(tmp_path), asked) for _ in range(12)]
                found += [timeless(each.result()) for each in many]
    assert found == [found[0]] * len(found)


def test_one_worker_does_them_one_after_the_other(tmp_path: Path) -> None:
    """Several that take all of their time cost those behind them nothing of theirs."""
    with running(workers=1) as (_, client):
        execution = executed(client, asking(tmp_path), ["hangs", "small"])
    assert ([*execution.results], [*execution.failures]) == (["small"], ["hangs"])


def test_who_is_asked(client: sw.Client) -> None:
    """Those that are named, each once; or those that the request prefers; or all."""
    executor = sw.DefaultStrategyExecutor(client)
    preferring = sw.ContextRequest(projects=("p",), strategies=("large", "small"))
    assert [*executor.execute(preferring, ["frugal", "small", "frugal"]).results] == ["frugal", "small"]
    assert [*executor.execute(preferring).results] == ["large", "small"]
    assert executor.execute(preferring, []).results == {}


def test_all_that_are_offered(tmp_path: Path) -> None:
    """If nobody says otherwise."""
    with sw.Runtime.start(workers=1, strategies=[small, large]) as runtime, runtime.client(["p"]) as client:
        execution = sw.DefaultStrategyExecutor(client).execute(sw.ContextRequest(projects=("p",), query=str(tmp_path)))
        assert {*execution.results} == {each.name for each in client.strategies.list().offers} > {"small", "large"}


def test_budgets_are_each_ones_own(client: sw.Client) -> None:
    """Whoever has none has that of the request."""
    request = sw.ContextRequest(projects=("p", "q"), budget_tokens=5)
    executor = sw.DefaultStrategyExecutor(client)
    assert len(executor.execute(request, ["frugal"]).results["frugal"].fragments) == 5
    assert len(executor.execute(request, ["frugal"], budgets={"frugal": 2}).results["frugal"].fragments) == 2


def test_all_see_the_view_that_is_given(client: sw.Client) -> None:
    """Whatever was stored since."""
    view = client.view()
    client.tiers.store(sw.Fragment(fragment_id="later", project="p", body="x", tokens=1))
    execution = sw.DefaultStrategyExecutor(client).execute(asking(), ["small", "large"], view=view)
    assert execution.revision == view.revision
    assert {each.revision for each in execution.results.values()} == {view.revision}
    assert {len(each.fragments) for each in execution.results.values()} == {FRAGMENTS}
    client.tiers.delete("later", project="p")


def test_all_look_again_if_the_view_is_gone_for_one(client: sw.Client, tmp_path: Path) -> None:
    """At a new one, and together: a result of the old one is none any more."""

    def store(name: str, done: int, total: int, note: str) -> None:
        reports.append((name, done, total, note))
        if len(reports) == 1:
            client.tiers.store(sw.Fragment(fragment_id="new", project="p", body="x", tokens=1))
            (tmp_path / "consolation").touch()

    reports: list[object] = []
    before = client.view().revision
    executor = sw.DefaultStrategyExecutor(client)
    execution = executor.execute(asking(tmp_path), ["small", "bereft", "raises"], on_progress=store)
    assert reports[0] == ("bereft", 1, 2, "bereft")
    assert ([*execution.results], [*execution.failures]) == (["small", "bereft"], ["raises"])
    assert execution.revision > before
    assert {each.revision for each in execution.results.values()} == {execution.revision}
    assert {len(each.fragments) for each in execution.results.values()} == {FRAGMENTS + 1}
    assert [times(tmp_path, name) for name in ("bereft", "raises")] == [2, 2]
    client.tiers.delete("new", project="p")


def test_view_of_another_manager_is_gone(client: sw.Client) -> None:
    """As it is for whoever held one while the manager was replaced."""
    with sw.Runtime.start(workers=0) as other, other.client(PROJECTS) as stranger:
        view = stranger.view()
        execution = sw.DefaultStrategyExecutor(client).execute(asking(), ["small", "large"], view=view)
    assert (execution.epoch, execution.failures) == (client.epoch, {})
    assert {len(each.fragments) for each in execution.results.values()} == {FRAGMENTS}


def test_looking_again_has_an_end(client: sw.Client, tmp_path: Path) -> None:
    """Twice is enough; and a strategy is not blamed for what is not there."""
    executor = sw.DefaultStrategyExecutor(client, breaker=sw.BreakerSettings(failures_max=1))
    for number in (1, 2):
        execution = executor.execute(asking(tmp_path), ["forlorn", "small"])
        assert ([*execution.results], [*execution.failures]) == (["small"], ["forlorn"])
        assert times(tmp_path, "forlorn") == 2 * number


def test_overload_does_not_hang_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no worker has begun in time is given up, and does not stay in the queue."""
    monkeypatch.setattr(limits, "EXECUTOR_GRACE_SECONDS", 0.3)
    with running(workers=1) as (_, client):
        blocking = client.strategies.submit("hangs", asking(tmp_path))
        eventually(lambda: times(tmp_path, "hangs"))
        begun_s = time.monotonic()
        execution = sw.DefaultStrategyExecutor(client).execute(asking(), ["small", "large"], deadline_s=0.2)
        assert time.monotonic() - begun_s < AGES_S / 4
        assert {name: type(error) for name, error in execution.failures.items()} == {
            "small": sw.DeadlineExceeded,
            "large": sw.DeadlineExceeded,
        }
        found = client.strategies.list()
        assert (found.queued, found.leased) == (0, 1)
        blocking.cancel()


def test_strategy_that_keeps_failing_is_not_asked(
    client: sw.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three times, and then it is not; the others are, and another executor has its own opinion."""
    monkeypatch.setattr(strategy_executor, "time", SimpleNamespace(monotonic=lambda: 1_000.0))
    executor = sw.DefaultStrategyExecutor(client)
    found = [executor.execute(asking(tmp_path), ["raises", "small"]) for _ in range(5)]
    kinds = [type(each.failures["raises"]) for each in found]
    assert kinds == [sw.TaskFailed] * 3 + [sw.CircuitOpen] * 2
    assert times(tmp_path, "raises") == 3
    assert all("small" in each.results for each in found)
    assert found[-1].failures["raises"].details["retry_s"] == limits.BREAKER_PAUSE_SECONDS
    again = sw.DefaultStrategyExecutor(client).execute(asking(tmp_path), ["raises"])
    assert type(again.failures["raises"]) is sw.TaskFailed


def test_strategy_that_has_recovered_is_asked_again(client: sw.Client, tmp_path: Path) -> None:
    """After the pause, without anybody saying so."""
    settings = sw.BreakerSettings(failures_max=1, pause_s=0.05, pause_s_max=0.05)
    executor = sw.DefaultStrategyExecutor(client, breaker=settings)
    assert executor.execute(asking(tmp_path), ["convalescent"]).failures
    (tmp_path / "cure").touch()
    eventually(lambda: executor.execute(asking(tmp_path), ["convalescent"]).results)
    assert executor.execute(asking(tmp_path), ["convalescent"]).results


def test_asking_for_what_does_not_exist_opens_nothing(client: sw.Client) -> None:
    """It is the caller's mistake, each time."""
    executor = sw.DefaultStrategyExecutor(client)
    kinds = [type(executor.execute(asking(), ["nowhere"]).failures["nowhere"]) for _ in range(5)]
    assert kinds == [sw.NotFound] * 5


def test_forked_child_has_its_own_opinion(client: sw.Client, tmp_path: Path) -> None:
    """And asks as a session of its own."""
    settings = sw.BreakerSettings(failures_max=1, pause_s=AGES_S, pause_s_max=AGES_S)
    executor = sw.DefaultStrategyExecutor(client, breaker=settings)
    executor.execute(asking(tmp_path), ["raises"])

    def ask() -> None:
        execution = executor.execute(asking(tmp_path), ["raises", "small"])
        assert type(execution.failures["raises"]) is sw.TaskFailed
        assert [*execution.results] == ["small"]

    in_forked_child(ask, is_measured=True)
    assert type(executor.execute(asking(tmp_path), ["raises"]).failures["raises"]) is sw.CircuitOpen


BAD_ARGUMENTS: list[dict[str, object]] = [
    {"request": "small"},
    {"strategies": "small"},
    {"strategies": ["Not A Name"]},
    {"strategies": [3]},
    {"strategies": ["s"] * (limits.STRATEGIES_MAX + 1)},
    {"budgets": {"small": 0}},
    {"budgets": {"small": 1.5}},
    {"budgets": {"large": 5}},
    {"deadline_s": 0},
    {"deadline_s": float("nan")},
    {"deadline_s": 1e6},
    {"deadline_s": "1"},
    {"view": "now"},
]


def test_what_concerns_all_is_raised() -> None:
    """A bad request, one out of scope, and that nobody is there."""
    with sw.Runtime.start(workers=0) as runtime, runtime.client(PROJECTS) as client:
        executor = sw.DefaultStrategyExecutor(client)
        unchecked: Callable[..., object] = executor.execute
        bad_views: list[dict[str, object]] = [{"view": client.view(["p"])}, {"view": client.view(since=0)}]
        for bad in BAD_ARGUMENTS + bad_views:
            with pytest.raises(sw.InvalidArgument):
                unchecked(**{"request": asking(), "strategies": ["small"], **bad})
        with pytest.raises(sw.OutOfScope):
            executor.execute(sw.ContextRequest(projects=("elsewhere",)), ["small"])
        with pytest.raises(sw.NotFound, match="start workers"):
            executor.execute(asking())
        runtime.close()
        with pytest.raises(sw.RuntimeLost):
            executor.execute(asking(), ["small"])


def test_manager_that_dies_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its strategies hears of it, and does not wait for them."""
    is_waiting, wait_for_endings = threading.Event(), strategy_executor._wait_for_endings

    def noted_wait(futures: Collection[Future[StrategyResult]], patience_s: float) -> None:
        is_waiting.set()  # all are submitted: a submission that was under way would have another error
        wait_for_endings(futures, patience_s)

    with running() as (runtime, client), ThreadPoolExecutor(1) as thread:
        executor = sw.DefaultStrategyExecutor(client)
        assert executor.execute(asking(), ["small"]).results  # so that the client follows its tasks
        monkeypatch.setattr(strategy_executor, "_wait_for_endings", noted_wait)
        waiting = thread.submit(executor.execute, asking(tmp_path), ["hangs", "small"])
        assert is_waiting.wait(AGES_S / 4)
        kill(runtime.pid)
        with pytest.raises(sw.RuntimeLost):
            waiting.result(AGES_S / 4)
