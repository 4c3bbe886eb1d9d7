"""The diagram in ARCHITECTURE.md, made from the tables: `python -m tests.architecture.lifecycle_diagram`."""

from __future__ import annotations

import re
from pathlib import Path

from stepwell.domain.plans.lifecycle import LEGAL, START, TERMINAL, PlanEvent
from stepwell.domain.plans.model import Position

ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
LEFT_OUT = {PlanEvent.CANCEL_PLAN, PlanEvent.RENEW_LEASE}
_PLACE = re.compile(r"(?<=<!-- lifecycle -->\n).*?(?=<!-- /lifecycle -->)", re.DOTALL)


def diagram() -> str:
    """A mermaid diagram of every legal event but those that the text explains."""
    edges: dict[tuple[Position, Position], list[str]] = {}
    for (event, source), target in LEGAL.items():
        if event not in LEFT_OUT:
            edges.setdefault((source, target), []).append(event)
    lines = [f"    [*] --> {_node(START)}: use_action"]
    lines += [f"    {_node(a)} --> {_node(b)}: {', '.join(events)}" for (a, b), events in edges.items()]
    lines += [f"    {_node(end)} --> [*]" for end in sorted(TERMINAL) if any(target == end for _, target in edges)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


def written() -> str:
    """The diagram that ARCHITECTURE.md has."""
    found = _PLACE.search(ARCHITECTURE.read_text())
    assert found, "ARCHITECTURE.md has lost its place for the diagram"
    return found.group()


def _node(position: Position) -> str:
    return f"{position.phase}_{position.state}"


if __name__ == "__main__":
    ARCHITECTURE.write_text(_PLACE.sub(lambda _: diagram(), ARCHITECTURE.read_text()))
