"""The strategies that everybody has, in workers: what they say does not depend on who says it."""

import pytest

import stepwell as sw
from stepwell.domain.tiers.source_outline import Outline
from stepwell.strategies.protocol import ContextRequest, DecisionSeen, PlanSeen
from stepwell.strategies.registry import Registry

SECONDS = 60
WORDS = ("budget", "tier", "worker", "plan", "decision", "memory", "index")
DECISIONS = (DecisionSeen("D1", "P1", "which index?", "`Part3.run` it is", "see src/m2.py", 0),)
REQUEST = ContextRequest(projects=["p"], query="budget of a worker", plan=PlanSeen("P1", "execute", DECISIONS))


def fragment(number: int, version: str = "") -> sw.Fragment:
    module, order = divmod(number, 10)
    name = f"Part{order}.run"
    said = " ".join(WORDS[(number * each) % len(WORDS)] for each in range(1, 9))
    outline = Outline(name=name, order=order, refs=(f"m{(module + 1) % 8}.{name}",))
    return sw.Fragment(
        fragment_id=f"src/m{module}.py#{name}",
        body=f"{said} {number} {version}",
        source=f"src/m{module}.py",
        kind="code",
        metadata=outline.metadata(),
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_the_number_of_workers_does_not_show(workers: int) -> None:
    """Each says what one says that has seen nothing but this view, though they have followed different ones."""
    with sw.Runtime.start(workers=workers) as runtime, runtime.client(projects=["p"]) as client:
        client.tiers.store_many([fragment(number) for number in range(80)])
        for version in range(3):
            client.tiers.store_many([fragment(number, f"version {version}") for number in range(version, 80, 7)])
            view = client.view()
            expected = {name: Registry()[name].assemble(REQUEST, view, 400) for name in Registry()}
            asked = [
                (name, client.strategies.submit(name, REQUEST, view=view, budget_tokens=400))
                for name in expected
                for _ in range(workers)
            ]
            for name, future in asked:
                result = future.result(SECONDS)
                assert result.fragments == tuple(expected[name])
                assert result.fragments
                assert result.confidence > 0
