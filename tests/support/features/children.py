"""The work of an agent on a child: functions of a client, importable in a spawned process."""

from __future__ import annotations

from contextlib import closing

import stepwell as sw
from tests.support.features.work import PROJECT, create_action

FILE = "shared.txt"
LINES_APART = 4


def base(count: int) -> bytes:
    """A file with a line for each child, and some between them."""
    return b"".join(b"line %d\n" % number for number in range(LINES_APART * count))


def line_of(number: int) -> bytes:
    return b"line %d of child %d\n" % (LINES_APART * number, number)


def edited(before: bytes, number: int) -> bytes:
    return before.replace(b"line %d\n" % (LINES_APART * number), line_of(number))


def declare(client: sw.Client, count: int) -> sw.Plan:
    """A plan that is executed, with so many children."""
    create_action(client, "local/family", "with children")
    plan_id = client.plans.use_action("local/family", projects=[PROJECT]).plan_id
    client.plans.start_strategize(plan_id)
    client.plans.proceed(plan_id)
    children = [sw.subplan("local/family", alias=str(number)) for number in range(count)]
    return client.plans.declare_subplans(plan_id, children, max_parallel=count)


def work(client: sw.Client, parent: sw.Plan, bodies: dict[str, bytes], before: bytes) -> sw.types.WorkDone:
    """Be an agent until everything is over; `bodies` has what each child leaves in the file."""

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        changeset_id = context.start_changeset()
        context.record_change(sw.Change(path=FILE, before=before, after=bodies[plan.plan_id], tool="editor"))
        context.close_changeset(changeset_id)

    return client.plans.work_on(parent.plan_id, run)


def work_from_elsewhere(
    client: sw.Client, parent: sw.Plan, bodies: dict[str, bytes], before: bytes
) -> sw.types.WorkDone:
    with closing(client):
        return work(client, parent, bodies, before)


def take_and_wait(address: str, parent_plan_id: str) -> None:
    """Take a child, and never finish it."""
    with sw.connect(address) as client, client.watch() as watch:
        client.plans.start_ready(parent_plan_id, straight=True)
        for _ in watch:
            pass
