"""Agents with different abilities, in processes of their own, which share the children of one plan."""

from __future__ import annotations

from multiprocess.connection import Connection

import stepwell as sw
from tests.support.client.subplans import record

Question = tuple[str, tuple[str, ...] | None, bool | None]
"""The parent, and the labels and kinds of children that the agent can do."""
Finding = tuple[list[tuple[str, tuple[str, ...], bool]], sw.types.WorkDone]
"""The children that the agent was given, with labels and kind, and the result of its work."""


def work(address: str, pipe: Connection) -> None:
    """Work on the children of a plan when told to, and report what was given; until told None."""
    with sw.connect(address) as client:
        while (question := pipe.recv()) is not None:
            pipe.send(_work(client, question))


def _work(client: sw.Client, question: Question) -> Finding:
    parent_plan_id, labels, read_only = question
    given: list[tuple[str, tuple[str, ...], bool]] = []

    def run(plan: sw.Plan, context: sw.WorkContext) -> None:
        given.append((plan.plan_id, plan.labels, plan.read_only))
        if plan.attempt == 1 and plan.description == "once":
            raise ValueError("at the first attempt")
        if not plan.read_only:
            record(context, {plan.plan_id: (None, b"done")})

    return given, client.plans.work_on(parent_plan_id, run, labels=labels, read_only=read_only)
