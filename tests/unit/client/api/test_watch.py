"""Watching: an iterator that gives every committed event once, in order, and can be ended or resumed at any place."""

import gc
import os
import pickle
import threading
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

import stepwell as sw
from stepwell import limits
from stepwell.client.api.watch import Watch
from stepwell.domain.events import FragmentStored
from stepwell.domain.tiers.model import Tier
from stepwell.protocol.codec import encode_frame
from stepwell.protocol.messages import Events, ManagerMessage, Refusal, Rejected, Response, WatchLagged
from stepwell.testing import LocalRuntime
from tests.support.client.fake_manager import WELCOME, Reply, fake_manager
from tests.support.client.sessions import act, executing, fragment, refused
from tests.support.managers import Stage, served
from tests.support.processes import descriptors, in_forked_child
from tests.support.wait import eventually


@pytest.fixture
def stage() -> Iterator[Stage]:
    """A manager in a thread, whose bounds a test can change."""
    with served() as started:
        yield started


def store(client: sw.Client, *names: str) -> int:
    """Fragments, one after the other; the last revision."""
    return [client.tiers.store(fragment(name)).revision for name in names][-1]


def take(watch: Watch, count: int) -> list[sw.events.AnyEvent]:
    """So many events, which are there, or soon will be."""
    found = [watch.get(timeout_s=60) for _ in range(count)]
    return [event for event in found if event is not None]


def names(events: list[sw.events.AnyEvent]) -> list[str]:
    return [event.fragment_id for event in events if isinstance(event, sw.events.FragmentStored)]


def test_from_now_on(client: sw.Client) -> None:
    """What is committed after `watch` has returned is told, and nothing from before."""
    store(client, "before")
    with client.watch() as watch:
        begun = watch.revision
        revision = store(client, "a", "b")
        assert names(take(watch, 2)) == ["a", "b"]
        assert (begun, watch.revision) == (revision - 2, revision)


def test_from_a_revision_on(client: sw.Client) -> None:
    """Resuming from where one was gives what has happened since."""
    revision = store(client, "a")
    store(client, "b", "c")
    with client.watch(since=revision) as watch:
        assert names(take(watch, 2)) == ["b", "c"]
        assert watch.get(timeout_s=0) is None


def test_revision_is_what_has_been_given_out(client: sw.Client) -> None:
    """However much has been received: a transaction counts once all of it has been given out."""
    begun = store(client, "a")
    with client.transaction() as transaction:
        for number in range(3):
            transaction.tiers.store(fragment(f"{number}"))
    store(client, "b")
    with client.watch(since=begun) as watch:
        revisions: list[int] = []
        for _ in range(4):
            take(watch, 1)
            revisions.append(watch.revision)
        assert revisions == [begun, begun, begun + 1, begun + 2]
        with client.watch(since=begun + 1) as resumed:
            assert names(take(resumed, 1)) == ["b"]


def test_every_kind_of_thing_is_told(client: sw.Client) -> None:
    """Fragments, actions, plans, decisions and changesets, as they happen."""
    assert client.projects
    with client.watch() as watch:
        client.tiers.store(fragment("a"))
        client.tiers.demote("a")
        client.tiers.promote("a")
        client.tiers.delete("a")
        plan = executing(client, "told", client.projects[0])
        client.plans.record_decision(plan.plan_id, question="which?", choice="this")
        context = client.execution(plan.plan_id)
        changeset_id = context.start_changeset()
        context.record_change(sw.Change(path="a.py", before=None, after=b"new"))
        context.close_changeset(changeset_id)
        # By more than at first: a renewal within the same millisecond would change nothing, and be no event.
        client.plans.renew_lease(plan.plan_id, lease_ms=2 * limits.LEASE_MS)
        client.plans.cancel_plan(plan.plan_id)
        told = take(watch, 16)
    assert [type(event).__name__ for event in told] == [
        "FragmentStored",
        "FragmentDemoted",
        "FragmentPromoted",
        "FragmentDeleted",
        "ActionCreated",
        "ActionUsed",
        "PlanCreated",
        "PlanMoved",
        "PlanMoved",
        "PlanMoved",
        "PlanMoved",
        "DecisionRecorded",
        "ChangesetStarted",
        "ChangeRecorded",
        "ChangesetEnded",
        "LeaseRenewed",
    ]


def test_only_some_projects(everything: sw.Client) -> None:
    """Of those that one may see, those that one names."""
    with everything.watch(projects=["wanted", "wanted"]) as watch:
        for project in ("unwanted", "wanted", "unwanted"):
            everything.tiers.store(sw.Fragment(fragment_id=project, project=project, body="x", tokens=1))
        assert names(take(watch, 1)) == ["wanted"]
        latest = everything.status().revision

        def knows() -> bool:
            return watch.get(timeout_s=0.01) is None and watch.revision >= latest

        eventually(knows)


@pytest.mark.parametrize("since", [-1, 2**63, "1", 1.5])
def test_since_is_a_revision(client: sw.Client, since: int) -> None:
    with refused(client, sw.InvalidArgument, "since"):
        client.watch(since=since)


def test_since_has_to_be_there(client: sw.Client) -> None:
    with refused(client, sw.InvalidArgument, "no revision of this epoch"):
        client.watch(since=client.status().revision + 1)


@pytest.mark.parametrize(
    "projects, kind, advice",
    [
        pytest.param("p", sw.InvalidArgument, r"give \['p'\]", id="a text"),
        pytest.param([], sw.InvalidArgument, "projects", id="none"),
        pytest.param(["no such name!"], sw.InvalidArgument, "a project is", id="no name"),
        pytest.param(["elsewhere"], sw.OutOfScope, "connect with it", id="out of scope"),
    ],
)
def test_projects_are_names_in_scope(
    client: sw.Client, projects: list[str], kind: type[sw.StepwellError], advice: str
) -> None:
    with refused(client, kind, advice):
        client.watch(projects=projects)


def test_closed_from_another_thread(client: sw.Client) -> None:
    """Whoever waits for the next event finds the end of the iteration, at once."""
    watch = client.watch()
    given: list[sw.events.AnyEvent] = []
    ended = threading.Event()

    def follow() -> None:
        given.extend(watch)
        ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    store(client, "a")
    eventually(lambda: given)
    watch.close()
    assert ended.wait(60)
    thread.join()
    assert (names(given), watch.get(), [*watch]) == (["a"], None, [])
    watch.close()


def test_closed_by_many_at_once(client: sw.Client) -> None:
    watch = client.watch()
    threads = [threading.Thread(target=watch.close) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [*watch] == []


def test_what_was_received_is_not_given_out_after_closing(client: sw.Client) -> None:
    """So that its revision stays where one can resume."""
    begun = store(client, "a")
    store(client, "b", "c")
    watch = client.watch(since=begun)
    take(watch, 1)
    watch.close()
    assert (watch.get(), watch.revision) == (None, begun + 1)


def test_it_ends_with_its_client(runtime: LocalRuntime) -> None:
    client = runtime.client()
    watch = client.watch()
    client.close()
    assert [*watch] == []
    with pytest.raises(sw.RuntimeLost, match="this client is closed"):
        client.watch()


def test_left_alone(client: sw.Client) -> None:
    """Whoever breaks out of the loop, and forgets it, leaves nothing behind: the next test looks."""
    revision = store(client, "a")
    for event in client.watch(since=revision - 1):
        assert isinstance(event, sw.events.FragmentStored)
        break
    gc.collect()
    assert not len(client._watches._open)


def test_many_threads_share_one(client: sw.Client) -> None:
    """Each event goes to one of them."""
    watch = client.watch()
    given: list[sw.events.AnyEvent] = []
    threads = [threading.Thread(target=lambda: given.extend(watch)) for _ in range(4)]
    for thread in threads:
        thread.start()
    expected = [f"{number}" for number in range(100)]
    client.tiers.store_many([fragment(name) for name in expected])
    eventually(lambda: len(given) == 100)
    watch.close()
    for thread in threads:
        thread.join()
    assert sorted(names(given)) == sorted(expected)


def test_missed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised once, with where it goes on; and it goes on there."""
    monkeypatch.setattr(limits, "EVENTS_BUFFERED", 5)
    with sw.connect(stage.address, ["p"]) as client:
        store(client, *(f"{number}" for number in range(20)))
        with client.watch(since=2) as watch:
            with pytest.raises(sw.EventsMissed, match="behind revision 15") as caught:
                next(watch)
            assert caught.value.details["resume"] == watch.revision == 15
            assert names(take(watch, 5)) == ["15", "16", "17", "18", "19"]


def test_connection_that_breaks_is_made_again(client: sw.Client) -> None:
    """Nothing is missed, and nothing told twice, whether it was received already or not."""
    begun = store(client, "a")
    store(client, "b", "c")
    with client.watch(since=begun) as watch:
        assert names(take(watch, 1)) == ["b"]
        for name in ("d", "e"):
            assert watch._push._connection
            watch._push._connection.interrupt()
            store(client, name)
        assert names(take(watch, 3)) == ["c", "d", "e"]
        assert watch.get(timeout_s=0) is None


def test_manager_that_is_gone() -> None:
    """What it told last is given out; then it is lost, each time one asks."""
    with LocalRuntime() as runtime, sw.connect(runtime.address, ["p"]) as client:
        watch = client.watch()
        store(client, "a")
        runtime.close()
        assert names(take(watch, 1)) == ["a"]
        for _ in range(2):
            with pytest.raises(sw.RuntimeLost):
                watch.get(timeout_s=60)


def together(*messages: ManagerMessage) -> bytes:
    """Messages that come at once."""
    out = bytearray()
    for message in messages:
        encode_frame(message, out)
    return bytes(out)


FIRST = FragmentStored(4, 0, "p", "a", Tier.HOT, None, 1, 1, b"", "text")
BEGUN: list[Reply] = [WELCOME, Events((), 3)]


@pytest.mark.parametrize(
    "answer, kind",
    [
        (WatchLagged(3), sw.ProtocolError),
        (Response(0, (Refusal(0, "Busy", "later"),)), sw.Busy),
        (Rejected(Refusal(0, "ProtocolError", "no")), sw.ProtocolError),
        (None, sw.RuntimeLost),
    ],
)
def test_not_accepted(answer: Reply, kind: type[sw.StepwellError]) -> None:
    """Whatever the manager answers instead is raised, and nothing is left open."""
    with fake_manager([WELCOME, answer]) as address:
        client = sw.Client(address)
        with pytest.raises(kind):
            client.watch()
        client.close()


def test_manager_that_was_replaced() -> None:
    """Its revisions are others: there is nothing to resume."""
    with fake_manager(BEGUN, [replace(WELCOME, epoch="another")]) as address:
        client = sw.Client(address)
        watch = client.watch()
        assert watch._push._connection
        watch._push._connection.interrupt()
        with pytest.raises(sw.RuntimeLost, match="replaced"):
            watch.get(timeout_s=60)
        client.close()


def test_durable_manager_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up on us until it is there again, and then goes on from where we are."""
    durable = replace(WELCOME, database="/somewhere")
    with fake_manager([durable, Events((), 3)], [None], [None], [durable, Events((FIRST,), 4)]) as address:
        client = sw.Client(address)
        watch = client.watch()
        assert watch._push._connection
        watch._push._connection.interrupt()
        assert watch.get(timeout_s=0) is None
        eventually(lambda: watch.get(timeout_s=0.01) or watch._push._connection)
        client.close()
    monkeypatch.setattr(limits, "RECONNECT_SECONDS_MAX", 0.1)
    with fake_manager([durable, Events((), 3)]) as address:
        client = sw.Client(address)
        watch = client.watch()
        assert watch._push._connection
        watch._push._connection.interrupt()
    with pytest.raises(sw.RuntimeLost):
        watch.get(timeout_s=60)
    client.close()


@pytest.mark.parametrize(
    "message, kind", [(WELCOME, sw.ProtocolError), (Rejected(Refusal(0, "Busy", "later")), sw.Busy)]
)
def test_told_something_else(message: ManagerMessage, kind: type[sw.StepwellError]) -> None:
    """It is raised, and the connection given up."""
    with fake_manager([WELCOME, together(Events((), 3), message)]) as address:
        client = sw.Client(address)
        watch = client.watch()
        with pytest.raises(kind):
            watch.get(timeout_s=60)
        assert watch._push._connection is None
        client.close()


def test_in_a_forked_child(client: sw.Client) -> None:
    """Both go on from where they were, each over a connection of its own, and neither ends the other."""
    begun = store(client, "a")
    store(client, "b", "c")
    with client.watch(since=begun) as watch:
        take(watch, 1)

        def follow() -> None:
            assert names(take(watch, 1)) == ["c"]
            store(client, "d")
            assert names(take(watch, 1)) == ["d"]
            watch.close()

        in_forked_child(follow, is_measured=True)
        assert names(take(watch, 2)) == ["c", "d"]


def test_stays_in_its_process(client: sw.Client) -> None:
    with client.watch() as watch, pytest.raises(sw.InvalidArgument, match="send its client and its revision"):
        pickle.dumps(watch)
    assert repr(watch) == f"<stepwell.Watch at revision {watch.revision}, closed>"


def test_descriptors_are_given_back(client: sw.Client) -> None:
    """However a watch ends."""
    before = descriptors(os.getpid())
    for _ in range(3):
        client.watch().close()
        with pytest.raises(sw.InvalidArgument):
            client.watch(since=10**9)
    gc.collect()
    eventually(lambda: descriptors(os.getpid()) == before)  # the manager, in this process, closes its own ends
    assert act(client, "still-here") == "local/still-here"
