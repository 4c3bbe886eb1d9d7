"""Strategies in workers, as a client sees them: good ones, bad ones, and what becomes of the workers."""

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, as_completed, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

import stepwell as sw
from stepwell import limits
from stepwell.client.session.environment import SYSTEM
from stepwell.domain.tasks.commands import SubmitTask
from stepwell.pool import pickling
from stepwell.pool.strategy.background_pool import BackgroundPool
from stepwell.pool.strategy.settings import PoolSettings
from stepwell.strategies.payload import StrategyTask, ViewAt, encoder, result_decoder
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView
from stepwell.testing import LocalRuntime
from tests.support import strategies
from tests.support.logging_strategy import talkative
from tests.support.processes import is_alive
from tests.support.wait import eventually

FRAGMENTS = 20
ASKED = ContextRequest(projects=("p",), query="what")
SECONDS = 60


@contextmanager
def started() -> Iterator[sw.Runtime]:
    with sw.Runtime.start(workers=2, strategies=strategies.ALL) as runtime:
        with runtime.client(projects=["p"]) as client:
            client.tiers.store_many(
                sw.Fragment(fragment_id=f"f{number}", body=f"number {number} of some", source=f"{number}.py")
                for number in range(FRAGMENTS)
            )
        yield runtime


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> Iterator[sw.Runtime]:
    """A pool for one test: a worker that is replaced in a pool of several tests would be a leak of one of them.

    Its processes run the lines that those of `lasting` run, which are measured.
    """
    request.getfixturevalue("unmeasured")
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def lasting() -> Iterator[sw.Runtime]:
    """A pool that is ready before the first test, for tests that cost no worker its life and leave no fragment."""
    with started() as found, found.client(projects=["p"]) as client:
        settled(found, client)
        yield found


@pytest.fixture
def client(lasting: sw.Runtime) -> Iterator[sw.Client]:
    with lasting.client(projects=["p"]) as connected:
        yield connected


@pytest.fixture
def patient_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[sw.Client]:
    """A client of a manager that waits for evidence as long as a busy supervisor may take to send it."""
    monkeypatch.setattr(limits, "EVIDENCE_SECONDS", SECONDS)
    given = pickling.dumps([strategies.exiting, strategies.crashing, strategies.forking, talkative])
    with LocalRuntime(workers=0) as runtime, runtime.client(projects=["p"]) as connected:
        pool = BackgroundPool(PoolSettings(address=runtime.address, workers=2, pickled_strategies=given))
        try:
            yield connected
        finally:
            pool.close()


def settled(runtime: sw.Runtime, client: sw.Client) -> tuple[int, ...]:
    """Wait until every worker has joined; which they are."""
    eventually(lambda: len(client.strategies.list().workers) == len(runtime.workers) == 2, SECONDS)
    return runtime.workers


def test_built_in_and_given_ones_are_offered(lasting: sw.Runtime, client: sw.Client) -> None:
    """With what they can, and by whom."""
    pids = settled(lasting, client)
    found = client.strategies.list()
    names = {each.name: each for each in found.offers}
    assert {"keyword", "recency", "everything", "not-a-number"} <= names.keys()
    assert names["keyword"].is_partitioned
    assert not names["everything"].is_partitioned
    assert {each.pid for each in found.workers} == {*pids}


def test_result_says_where_it_comes_from(client: sw.Client) -> None:
    """The strategy, the revision, how sure it is, and why."""
    result = client.strategies.submit("keyword", ContextRequest(projects=["p"], query="number 7")).result(SECONDS)
    assert result.fragments[0].fragment_id == "f7"
    assert result.strategy == "keyword"
    assert result.revision == client.view().revision
    assert 0 < result.confidence <= 1
    assert result.explanation
    assert result.seconds > 0


def test_sees_what_was_stored_before(client: sw.Client) -> None:
    """A worker brings what it knows up to date, also with what was replaced and deleted."""
    asked = ASKED
    for word in ("alpha", "beta"):
        client.tiers.store(sw.Fragment(fragment_id="new", body=f"a word such as {word}"))
        asked = ContextRequest(projects=["p"], query=word)
        found = list(client.strategies.map("keyword", [asked] * 4))
        assert [each.fragments[0].fragment_id for each in found] == ["new"] * 4
    client.tiers.delete("new")
    assert not client.strategies.submit("keyword", asked).result(SECONDS).fragments


def test_on_the_view_that_was_given(client: sw.Client) -> None:
    """What has happened since is not seen, not even by a worker that knows of it."""
    view = client.view()
    client.tiers.store(sw.Fragment(fragment_id="later", body="later"))
    now = client.strategies.submit("everything", ASKED).result(SECONDS)
    then = client.strategies.submit("everything", ASKED, view=view).result(SECONDS)
    client.tiers.delete("later")
    assert (len(now.fragments), len(then.fragments)) == (FRAGMENTS + 1, FRAGMENTS)
    assert then.revision == view.revision < now.revision
    with pytest.raises(sw.InvalidArgument, match="whole view"):
        client.strategies.submit("everything", ASKED, view=client.view(since=view.revision))


def test_large_result_goes_through_shared_memory(client: sw.Client) -> None:
    """It is the same, and nothing of it stays."""
    result = client.strategies.submit("wordy", ASKED).result(SECONDS)
    assert [len(each.reason) for each in result.fragments] == [50_000] * FRAGMENTS
    bodies = client.tiers.metrics().body_bytes
    eventually(lambda: client.tiers.metrics().body_bytes <= bodies)


@pytest.mark.parametrize(
    "name, told",
    [
        ("raising", "raised ValueError: what"),
        ("mumbling", "raised ValueError: ?"),
        ("leaving", "raised SystemExit: 3"),
        ("inventing", "which its view does not have"),
        ("not-a-number", "which is no scored fragment"),
    ],
)
def test_failure_is_the_tasks_alone(lasting: sw.Runtime, client: sw.Client, name: str, told: str) -> None:
    """It says what and where, and costs no worker its life."""
    before = settled(lasting, client)
    with pytest.raises(sw.TaskFailed, match=told):
        client.strategies.submit(name, ASKED).result(SECONDS)
    assert len(client.strategies.submit("everything", ASKED).result(SECONDS).fragments) == FRAGMENTS
    assert lasting.workers == before


@pytest.mark.parametrize("name", ["hanging", "stopping", "busy-in-c"])
def test_deadline(runtime: sw.Runtime, name: str) -> None:
    """Whatever the strategy is doing: it is stopped, not tried again, and others go on."""
    with runtime.client(projects=["p"]) as client:
        before = settled(runtime, client)
        with pytest.raises(sw.DeadlineExceeded, match="took more than 200 ms"):
            client.strategies.submit(name, ASKED, deadline_s=0.2).result(SECONDS)
        assert len(client.strategies.submit("everything", ASKED).result(SECONDS).fragments) == FRAGMENTS
        eventually(lambda: sum(map(is_alive, before)) == 1)
        eventually(lambda: len({*settled(runtime, client)} - {*before}) == 1)


@pytest.mark.parametrize(
    "name, evidence",
    [
        ("exiting", "exit code 7\nthese are my last words"),
        ("crashing", "killed by SIGSEGV\nFatal Python error: Segmentation fault"),
        ("forking", "killed by SIGKILL"),
    ],
)
@pytest.mark.usefixtures("unmeasured")
def test_poison_is_quarantined_with_the_evidence(patient_client: sw.Client, name: str, evidence: str) -> None:
    """After exactly three deaths; a child that was left behind does not hide them."""
    with pytest.raises(sw.TaskQuarantined) as caught:
        patient_client.strategies.submit(name, ASKED).result(SECONDS)
    found = caught.value.details["evidence"]
    assert isinstance(found, list)
    assert len(found) == limits.TASK_DEATHS_MAX
    assert all(evidence in each for each in found), found


def test_what_a_strategy_logs_is_evidence(patient_client: sw.Client) -> None:
    """It goes where our own events go, from the level on from which they do."""
    with pytest.raises(sw.TaskQuarantined) as caught:
        patient_client.strategies.submit("talkative", ASKED).result(SECONDS)
    told = str(caught.value.details["evidence"])
    assert "strategy.said" in told
    assert "query=what" in told
    assert "nobody.wants_to_know" not in told


def test_cancel_stops_running_work(runtime: sw.Runtime) -> None:
    """Its worker is replaced, and whoever waits is told."""
    with runtime.client(projects=["p"]) as client:
        before = settled(runtime, client)
        future = client.strategies.submit("hanging", ASKED)
        eventually(lambda: client.strategies.list().leased == 1)
        assert future.cancel()
        assert future.cancelled()
        assert future in wait([future], timeout=0).done
        with pytest.raises(CancelledError):
            future.result(0)
        assert not future.cancel() or future.cancelled()
        eventually(lambda: sum(map(is_alive, before)) == 1)
        settled(runtime, client)


def test_cancel_of_what_waits(runtime: sw.Runtime) -> None:
    """It never begins; what is over cannot be cancelled."""
    with runtime.client(projects=["p"]) as client:
        hanging = [client.strategies.submit("hanging", ASKED) for _ in range(2)]
        waiting = client.strategies.submit("sayings", ASKED)
        assert waiting.cancel()
        assert all(each.cancel() for each in hanging)
        over = client.strategies.submit("everything", ASKED)
        over.result(SECONDS)
        assert not over.cancel()


def test_wait_and_as_completed(lasting: sw.Runtime) -> None:
    """As with every other future."""
    with lasting.client(projects=["p"]) as client:
        futures = [client.strategies.submit("everything", ASKED) for _ in range(6)]
        done, _ = wait(futures, SECONDS, FIRST_COMPLETED)
        assert done
        assert {*as_completed(futures, SECONDS)} == {*futures}


def test_map_keeps_the_order_and_ends_what_nobody_wants(runtime: sw.Runtime) -> None:
    with runtime.client(projects=["p"]) as client:
        queries = [ContextRequest(projects=["p"], query=str(number)) for number in range(20)]
        found = list(client.strategies.map("sayings", queries, timeout=SECONDS))
        assert [each.fragments[0].reason.split()[1] for each in found] == [request.query for request in queries]
        with pytest.raises(TimeoutError):
            list(client.strategies.map("hanging", [ASKED], timeout=0.05))
        eventually(lambda: client.strategies.list().leased == 0)


def test_progress(client: sw.Client) -> None:
    """The last of it is always told; a callback that fails costs nothing."""
    told: list[tuple[int, int, str]] = []
    heard = threading.Event()

    def listen(done: int, total: int, note: str) -> None:
        told.append((done, total, note))
        heard.set()
        raise ValueError(note)

    result = client.strategies.submit("telling", ASKED, on_progress=listen).result(SECONDS)
    assert len(result.fragments) == FRAGMENTS
    assert heard.wait(SECONDS)
    assert told[-1] == (3, 3, "step 3")


def test_shared_work_comes_to_the_same(lasting: sw.Runtime) -> None:
    """However many workers share it."""
    asked = ContextRequest(projects=["p"], query="number some", budget_tokens=40)
    with lasting.client(projects=["p"]) as client:
        view = client.view()
        for name, parts in itertools.product(("keyword", "recency"), (2, 3, 7)):
            whole = client.strategies.submit(name, asked, view=view).result(SECONDS)
            shared = client.strategies.submit(name, asked, view=view, parts=parts).result(SECONDS)
            assert shared.fragments == whole.fragments
            assert shared.revision == view.revision


def test_what_cannot_be_shared(client: sw.Client) -> None:
    with pytest.raises(sw.NotFound, match="that can be shared"):
        client.strategies.submit("everything", ASKED, parts=2)
    with pytest.raises(sw.InvalidArgument, match="at least 1"):
        client.strategies.submit("keyword", ASKED, parts=0)


def test_bad_questions(client: sw.Client, lasting: sw.Runtime) -> None:
    """Are answered at once, with what to do."""
    with pytest.raises(sw.NotFound, match=r"no worker has offered a strategy 'nonesuch'; offered: .*keyword"):
        client.strategies.submit("nonesuch", ASKED)
    with pytest.raises(sw.OutOfScope):
        client.strategies.submit("keyword", ContextRequest(projects=["q"]))
    with pytest.raises(sw.InvalidArgument, match="priority"):
        client.strategies.submit("keyword", ASKED, priority=10)
    with pytest.raises(sw.InvalidArgument, match="at most 512 KiB"):
        client.strategies.submit("keyword", ContextRequest(projects=["p"], focus=["x" * 1000] * 600))
    with sw.Runtime.start(workers=0) as idle, idle.client(projects=["p"]) as alone:
        with pytest.raises(sw.NotFound, match="start workers first"):
            alone.strategies.submit("keyword", ASKED)
    assert len(lasting.workers) == 2


def test_closed_client_leaves_nobody_waiting(runtime: sw.Runtime) -> None:
    client = runtime.client(projects=["p"])
    future = client.strategies.submit("hanging", ASKED)
    client.close()
    with pytest.raises(sw.RuntimeLost, match="closed before"):
        future.result(SECONDS)
    with runtime.client() as other:
        eventually(lambda: other.strategies.list().leased == 0)


def test_strategies_that_cannot_be_used() -> None:
    """Are refused before anything is started."""
    with pytest.raises(sw.InvalidArgument):
        sw.Runtime.start(workers=1, strategies=[42])
    with pytest.raises(sw.InvalidArgument, match="workers is 0 to"):
        sw.Runtime.start(workers=-1)


def test_memory_limit() -> None:
    """A strategy that wants more fails alone, and its worker makes way for a fresh one."""
    given = pickling.dumps([strategies.greedy, strategies.everything])
    with sw.Runtime.start(workers=0) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store(sw.Fragment(fragment_id="a", body="a"))
        pool = BackgroundPool(
            PoolSettings(address=runtime.address, workers=1, pickled_strategies=given, max_memory_bytes=512 << 20)
        )
        try:
            (first,) = pool.status.pids
            with pytest.raises(sw.MemoryExceeded, match="MemoryError"):
                client.strategies.submit("greedy", ASKED).result(SECONDS)
            assert len(client.strategies.submit("everything", ASKED).result(SECONDS).fragments) == 1
            eventually(lambda: not is_alive(first))
        finally:
            pool.close()


@pytest.mark.parametrize("before", [1, 10])
def test_reads_what_it_was_never_sent(runtime: sw.Runtime, before: int) -> None:
    """A view comes with the task; segments that were made since the last question are asked for. Nobody dies of it."""
    with runtime.client(projects=["p"]) as client:
        workers = settled(runtime, client)
        for _ in range(before):
            client.strategies.submit("everything", ASKED).result(SECONDS)
        client.tiers.store_many(
            sw.Fragment(fragment_id=f"large {number}", body=bytes([number]) * 400_000, tokens=1) for number in range(20)
        )
        found = client.strategies.submit("reading", ASKED).result(SECONDS)
        assert len(found.fragments) == FRAGMENTS + 20
        assert client.strategies.submit("everything", ASKED).result(SECONDS).fragments
        assert runtime.workers == workers


def test_old_view_of_what_lay_ahead(tmp_path: Path) -> None:
    """What was given ahead of time with a view whose bodies are gone is done on the state of now."""
    marker = tmp_path / "go"
    with sw.Runtime.start(workers=1, strategies=[patient, strategies.reading]) as runtime:
        with runtime.client(projects=["p"]) as client:
            for number in range(20):
                client.tiers.store(sw.Fragment(fragment_id=f"{number}", body=bytes([number]) * 400_000, tokens=1))
            first = client.strategies.submit("patient", ContextRequest(projects=("p",), query=str(marker)))
            eventually(lambda: client.strategies.list().leased == 1)
            second = client.strategies.submit("reading", ASKED)
            eventually(lambda: client.strategies.list().queued == 1)
            for number in range(1, 20):
                client.tiers.delete(f"{number}")
            marker.touch()
            assert first.result(SECONDS).fragments == ()
            assert second.result(SECONDS).fragments


def patient(request: ContextRequest, _view: StrategyView, _budget: int) -> list[ScoredFragment]:
    """Until there is a file of that name."""
    waiting = threading.Event()
    while not Path(request.query).exists():
        waiting.wait(0.01)
    return []


def test_asks_for_more_than_it_was_submitted_for(client: sw.Client, lasting: sw.Runtime) -> None:
    """The manager looks at the projects of a task; a worker that those in it are no others."""
    with lasting.client(projects=["secret"]) as other:
        other.tiers.store(sw.Fragment(fragment_id="s", body="nobody's business"))
        at = other.view()
    request = ContextRequest(projects=("secret",))
    for work in (StrategyTask(request, 100), StrategyTask(ASKED, 100, ViewAt(at.epoch, at.revision, at.ends))):
        command = SubmitTask(SYSTEM.new_id(), "everything", ("p",), encoder.encode(work))
        (future,) = client.strategies._tasks.submit_many([command], result_decoder.decode)
        with pytest.raises(sw.TaskFailed, match="OutOfScope"):
            future.result(SECONDS)
