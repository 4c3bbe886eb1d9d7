"""Processes that apply plans to one tree, each in its turn."""

from __future__ import annotations

from multiprocess.connection import Connection

import stepwell as sw


def work(address: str, root: str, pipe: Connection) -> None:
    """Apply the plan that is sent, with its priority, and report each place and the outcome; until told None."""
    with sw.connect(address, projects=["p"]) as client:
        while (question := pipe.recv()) is not None:
            plan_id, priority = question
            context = client.execution(plan_id)
            pipe.send(_outcome(context, root, priority, pipe))


def _outcome(context: sw.PlanExecutionContext, root: str, priority: int, pipe: Connection) -> str:
    def on_place(found: sw.types.ApplyQueued) -> None:
        pipe.send((found.place, found.plans))

    try:
        context.apply(root, wait=True, priority=priority, on_place=on_place)
    except sw.StepwellError as error:
        return error.kind
    return "applied"


def places_until_outcome(pipe: Connection) -> tuple[list[tuple[int, int]], str]:
    """Return the places that a process reports, and the outcome."""
    places: list[tuple[int, int]] = []
    while isinstance(found := pipe.recv(), tuple):
        places.append(found)
    return places, found
