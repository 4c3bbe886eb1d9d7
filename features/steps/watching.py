"""Committed events in order, each once."""

from __future__ import annotations

import threading
from functools import partial

from behave import given, then, when
from behave.runner import Context

import stepwell as sw
from stepwell import limits
from tests.support.features.outcomes import no_errors
from tests.support.features.schedules import attempt
from tests.support.features.work import PROJECT, make_fragments
from tests.support.wait import PATIENCE_SECONDS


@given("a watcher")
def step_watcher(context: Context) -> None:
    watch_from_now_on(context, None)


@given("a watcher of the project {project}")
def step_watcher_of(context: Context, project: str) -> None:
    watch_from_now_on(context, [project])


@given("a thread that waits for what happens")
def step_waiting_thread(context: Context) -> None:
    thread = context.thread = threading.Thread(target=lambda: [*context.watch])
    thread.start()


@when("{callers:d} threads each store {count:d} fragments of {tokens:d} tokens that are watched")
def step_store_watched(context: Context, callers: int, count: int, tokens: int) -> None:
    def store(caller: int) -> list[tuple[int, str]]:
        placed = [context.services.tiers.store(each) for each in make_fragments(f"{caller}", count, tokens)]
        return [(each.revision, each.fragment_id) for each in placed]

    context.outcomes = context.schedule.run([partial(store, caller) for caller in range(callers)])


@when("{count:d} fragments are stored in one transaction")
def step_store_together(context: Context, count: int) -> None:
    with context.services.transaction() as transaction:
        for fragment in make_fragments("together", count, 1):
            transaction.tiers.store(fragment)


@when("{count:d} fragments are stored, and it leaves after the first {first:d} of them")
def step_leave(context: Context, count: int, first: int) -> None:
    store_one_by_one(context, count)
    assert len(told(context.watch, first)) == first
    context.watch.close()


@when("its connection breaks while {count:d} fragments are stored")
def step_break(context: Context, count: int) -> None:
    expected: list[int] = []
    context.expected = expected
    for fragment in make_fragments("broken", count, 1):
        context.watch._push._connection.interrupt()
        expected.append(context.services.tiers.store(fragment).revision)


@when("a fragment is stored in theirs, and one in ours")
def step_store_in_both(context: Context) -> None:
    for project in ("theirs", "ours"):
        context.services.tiers.store(sw.Fragment(fragment_id=project, project=project, body="x", tokens=1))


@when("more happens than is remembered")
def step_much(context: Context) -> None:
    fragments = make_fragments("much", 500, 1)
    for _ in range(limits.EVENTS_BUFFERED // len(fragments) + 1):
        context.services.tiers.store_many(fragments)


@when("another thread closes the watcher")
def step_close(context: Context) -> None:
    context.watch.close()


@then("the watcher is told of {count:d} stores, each with the revision that its caller got")
def step_told_with_revisions(context: Context, count: int) -> None:
    context.told = told(context.watch, count)
    answered = [pair for pairs in no_errors(context.outcomes) for pair in pairs]
    stored = [each for each in context.told if isinstance(each, sw.events.FragmentStored)]
    assert [(each.revision, each.fragment_id) for each in stored] == sorted(answered)


@then("what it was told leads to where every fragment is")
def step_leads(context: Context) -> None:
    places = {}
    for event in context.told:
        places[event.fragment_id] = event.tier if isinstance(event, sw.events.FragmentStored) else event.target
    rows = context.services.tiers.scoped(project=PROJECT)
    assert {row.fragment_id: row.tier for row in rows} == places, places


@then("the watcher is told of {count:d} stores at one revision")
def step_told_together(context: Context, count: int) -> None:
    assert len({event.revision for event in told(context.watch, count)}) == 1


@then("a new watcher from its revision on is told of the other {count:d}")
def step_resumed(context: Context, count: int) -> None:
    with context.services.watch(since=context.watch.revision) as resumed:
        revisions = [event.revision for event in told(resumed, count)]
        assert revisions == context.expected[-count:], revisions
        assert resumed.get(timeout_s=0) is None


@then("the watcher is told of {count:d} stores")
def step_told(context: Context, count: int) -> None:
    revisions = [event.revision for event in told(context.watch, count)]
    assert revisions == context.expected, revisions
    assert context.watch.get(timeout_s=0) is None


@then("the watcher is told of the one in ours alone")
def step_told_ours(context: Context) -> None:
    (event,) = told(context.watch, 1)
    assert event.scope == ("ours",), event
    assert context.watch.get(timeout_s=0) is None


@then("a watcher from the beginning is told that it missed some, and then of all that followed")
def step_missed(context: Context) -> None:
    latest = context.services.status().revision
    with context.services.watch(since=0) as watch:
        outcome = attempt(partial(watch.get, PATIENCE_SECONDS))
        assert isinstance(outcome, sw.EventsMissed), outcome
        resume = watch.revision
        assert outcome.details["resume"] == resume
        revisions = {event.revision for event in told(watch, latest - resume)}
    assert 0 < resume < latest
    assert revisions == {*range(resume + 1, latest + 1)}, (resume, latest)


@then("the waiting thread comes to its end")
def step_ended(context: Context) -> None:
    context.thread.join(PATIENCE_SECONDS)
    assert not context.thread.is_alive()


def watch_from_now_on(context: Context, projects: list[str] | None) -> None:
    watch = context.watch = context.services.watch(projects=projects)
    context.add_cleanup(watch.close)


def store_one_by_one(context: Context, count: int) -> None:
    context.expected = [context.services.tiers.store(each).revision for each in make_fragments("one", count, 1)]


def told(watch: sw.Watch, stores: int) -> list[sw.events.AnyEvent]:
    """Events, up to and with that many stores."""
    found: list[sw.events.AnyEvent] = []
    while stores:
        event = watch.get(PATIENCE_SECONDS)
        assert event is not None, f"{stores} more were not told"
        found.append(event)
        stores -= isinstance(event, sw.events.FragmentStored)
    return found
