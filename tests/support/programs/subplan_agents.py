"""Agents in processes of their own, what each child is to do, and what has to come of it all.

A child's work follows from the seed and its number, and from nothing else: so every agent, in every
attempt, leaves the same. The merged result is computed here without any merging: edits are of lines that are far from
each other, and where several children change the same path, the first in declared order stays.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from unittest import mock

from multiprocess.connection import Connection

import stepwell as sw
from stepwell.client.workflows.heartbeat import Heartbeat
from tests.support.client.subplans import Given, Work, parent_of, record

RETRIES = 2
UNLUCKY = "unlucky"
FILE, RUN = 0o100644, 0o100755
SHARED, HOT = "shared.txt", "hot.txt"
LEASE_MS = 50_000  # shorter than the step in which a test advances the manager's clock

Tree = dict[str, tuple[bytes, int | None] | None]


def alias_of(number: int) -> str:
    return f"c{number:02}"


class Script:
    """What is to be done, and how it goes: which children fail, and how often before they succeed."""

    def __init__(self, seed: int, count: int) -> None:
        chance = random.Random(seed)
        self.count = count
        self.failures = [chance.choice([0, 0, 0, 1, RETRIES]) for _ in range(count)]
        self.doomed = {*chance.sample(range(count), max(1, count // 10))}
        self.base = b"".join(b"line %d\n" % number for number in range(4 * count))

    def line(self, number: int) -> tuple[bytes, bytes]:
        """What a child finds in the shared file, and what it puts there."""
        return b"line %d\n" % (4 * number), b"line %d by %d\n" % (4 * number, number)

    def work(self, number: int) -> Work:
        """All that a child does."""
        work: dict[str, tuple[Given, Given]] = {
            f"own/{alias_of(number)}": (None, (b"of %d\n" % number, RUN if number % 2 else FILE)),
            SHARED: (self.base, self.base.replace(*self.line(number))),
        }
        if number % 3 == 0:
            work[HOT] = (b"cold\n", b"%d was here\n" % number)
        if number % 5 == 1:
            work[f"old/{number}"] = (b"old\n", None)
        if number % 5 == 2:
            work[f"src/{number}"] = ((b"moved %d\n" % number, FILE), None)
            work[f"dst/{number}"] = (None, (b"moved %d\n" % number, FILE))
        return work

    def done(self) -> list[int]:
        """The children that come to an end, in declared order."""
        return [number for number in range(self.count) if number not in self.doomed]

    def merged(self) -> tuple[Tree, list[tuple[str, str]]]:
        """What the parent has in the end, and the conflicts: as if one had worked after the other."""
        tree: Tree = {}
        text = self.base
        for number in self.done():
            text = text.replace(*self.line(number))
            for path, (_, after) in self.work(number).items():
                if path not in {SHARED, HOT}:
                    tree[path] = after if after is None or isinstance(after, tuple) else (after, None)
        hot = [number for number in self.done() if number % 3 == 0]
        tree[HOT] = (b"%d was here\n" % hot[0], None)
        tree[SHARED] = (text, None)
        return dict(sorted(tree.items())), [(HOT, alias_of(number)) for number in hot[1:]]


def own_failures(plan: sw.Plan) -> int:
    """Return how often the child failed by itself, and not because its agent died."""
    return sum(UNLUCKY in fault.message for fault in plan.errors)


def agent(address: str, parent_plan_id: str, script: Script) -> None:
    """Work until everything is over. It may be killed at any moment."""
    pause = threading.Event()
    with sw.connect(address) as client:
        parent = client.plans.get_plan(parent_plan_id)
        assert parent.subplans is not None
        numbers = {child.plan_id: number for number, child in enumerate(parent.subplans.children)}

        def run(plan: sw.Plan, context: sw.WorkContext) -> None:
            number = numbers[plan.plan_id]
            work = script.work(number)
            fails = number in script.doomed or own_failures(plan) < script.failures[number]
            for path, (before, after) in work.items():
                if fails and path == SHARED:
                    raise RuntimeError(f"{UNLUCKY} {number}")
                pause.wait(random.random() * 0.01)  # so that an agent that dies leaves unfinished work
                record(context, {path: (before, after)}, f"tool-{number}")
                context.check()

        client.plans.work_on(parent_plan_id, run)


def hold_two(address: str, pipe: Connection) -> None:
    """Execute two parents, of which one is merged, and try everything when told to go on; say what came of it.

    It is told by how many seconds the manager's clock was advanced meanwhile. Its own clock is advanced as far.
    """
    works: dict[str, Work] = {"a": {"f": (b"1\n", b"2\n")}, "b": {"f": (b"1\n", b"3\n")}}
    with sw.connect(address) as client, ExitStack() as stack:
        unmerged = _held(client, parent_of(client, works, lease_ms=LEASE_MS), stack)
        merged = _held(client, parent_of(client, works, lease_ms=LEASE_MS), stack)
        assert merged.merge_children().open_conflicts
        changeset_id = unmerged.start_changeset()
        pipe.send((unmerged.plan_id, merged.plan_id))
        later_s, clock = pipe.recv(), time.clock_gettime
        stack.enter_context(mock.patch.object(time, "clock_gettime", lambda number: clock(number) + later_s))
        pipe.send(
            {name: _outcome(partial(deed, client, unmerged, merged, changeset_id)) for name, deed in DEEDS.items()}
        )


def _held(client: sw.Client, context: sw.PlanExecutionContext, stack: ExitStack) -> sw.WorkContext:
    token = client.session.leases[context.plan_id]
    heartbeat = stack.enter_context(Heartbeat(client.session, context.plan_id, token, LEASE_MS))
    return sw.WorkContext(client.session, context.plan_id, token, heartbeat)


def _outcome(deed: Callable[[], object]) -> str:
    try:
        deed()
    except sw.StepwellError as error:
        return error.kind
    return "done"


Deed = Callable[[sw.Client, sw.WorkContext, sw.WorkContext, str], object]

DEEDS: dict[str, Deed] = {
    "check": lambda _client, unmerged, _merged, _id: unmerged.check(),
    "start": lambda _client, unmerged, _merged, _id: unmerged.start_changeset(),
    "record": lambda _client, unmerged, _merged, changeset_id: unmerged.record_change(
        sw.Change(path="late", after=b""), changeset_id=changeset_id
    ),
    "close": lambda _client, unmerged, _merged, changeset_id: unmerged.close_changeset(changeset_id),
    "merge": lambda _client, unmerged, _merged, _id: unmerged.merge_children(),
    "merge again": lambda _client, _unmerged, merged, _id: merged.merge_children(),
    "resolve": lambda _client, _unmerged, merged, _id: merged.resolve("f", accept="theirs"),
    "complete": lambda client, unmerged, _merged, _id: client.plans.complete_execute(
        unmerged.plan_id, lease=unmerged.lease
    ),
    "fail": lambda client, unmerged, _merged, _id: client.plans.fail_execute(
        unmerged.plan_id, "late", lease=unmerged.lease
    ),
    "renew": lambda client, _unmerged, merged, _id: client.plans.renew_lease(merged.plan_id, lease=merged.lease),
}
"""The operations that need a lease."""
