"""Answers: the same bytes whoever worked on them, how many there were, how long they took, and whoever died."""

import os
import random
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

import stepwell as sw
from stepwell.domain.outline import Outline
from stepwell.strategies.base import ContextRequest, ScoredFragment, StrategyView
from tests.waiting import eventually

STRATEGIES = ["delayed", "graph", "keyword", "recency", "semantic", "tiered"]
WORDS = [
    "budget",
    "tier",
    "hot",
    "warm",
    "cold",
    "manager",
    "worker",
    "plan",
    "lease",
    "order",
    "store",
    "fragment",
    "view",
    "task",
    "death",
    "budget",
]


def delayed(request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """As long as it likes; and while a file says so, it does not come back at all."""
    marker = Path(request.focus[0]) if request.focus else None
    if marker is not None and marker.exists():
        marker.with_suffix(f".{os.getpid()}").touch()
        signal.pause()
    burnt = sum(range(random.Random(os.getpid()).randrange(2_000_000)))
    assert burnt >= 0
    rows = view.rows("p")[::7]
    return [
        ScoredFragment(row.project, row.fragment_id, 1 / (1 + row.serial), row.tokens, row.revision) for row in rows
    ]


def fill(client: sw.Client) -> None:
    generator = random.Random(7)
    client.tiers.store_many(
        sw.Fragment(
            fragment_id=f"f{number:03}",
            source=f"s{number // 20}",
            kind="turn",
            body=" ".join(generator.choices(WORDS, k=generator.randrange(3, 40))),
            metadata=Outline(order=number % 20, speaker=f"speaker {number % 3}").metadata(),
        )
        for number in range(300)
    )


def ask(client: sw.Client, view: sw.View, marker: Path | None = None) -> list[sw.Answer]:
    focus = () if marker is None else (str(marker),)
    requests = [
        sw.ContextRequest(query=query, projects=["p"], budget_tokens=budget, focus=focus)
        for query in ("who dies of the budget?", "warm order of a plan", "")
        for budget in (64, 700)
    ]
    return [client.assemble(each, strategies=STRATEGIES, view=view) for each in requests]


def test_however_many_workers(tmp_path: Path) -> None:
    """1, 2 and 8; in other processes, with other delays; and after one was killed while it was at it."""
    texts: dict[int, list[tuple[str, object]]] = {}
    data_dir = tmp_path / "data"
    for workers in (1, 2, 8):
        with sw.Runtime.start(workers=workers, strategies=[delayed], data_dir=data_dir, log_level="error") as runtime:
            with runtime.client(projects=["p"]) as client:
                if not texts:
                    fill(client)
                answers = ask(client, client.view())
                assert not any(answer.failures for answer in answers)
                texts[workers] = [(answer.text, answer.receipt.entries) for answer in answers]
    assert texts[1] == texts[2] == texts[8]
    assert all(text for text, _ in texts[1])


def test_after_a_death(tmp_path: Path) -> None:
    """The worker that has a strategy in hand is killed: the answer is the one that it would have been."""
    marker = tmp_path / "stay"
    with sw.Runtime.start(workers=2, strategies=[delayed], log_level="error") as runtime:
        with runtime.client(projects=["p"]) as client:
            fill(client)
            request = sw.ContextRequest(query="cold death", projects=["p"], budget_tokens=300, focus=[str(marker)])
            view = client.view()
            undisturbed = client.assemble(request, strategies=STRATEGIES, view=view)
            marker.touch()
            future = client.strategies.submit("delayed", request, view=view)
            eventually(lambda: [*tmp_path.glob("stay.*")])
            (held,) = tmp_path.glob("stay.*")
            marker.unlink()
            os.kill(int(held.suffix[1:]), signal.SIGKILL)
            again = client.assemble(request, strategies=STRATEGIES, view=view)
            assert future.result(60).fragments
    assert (again.text, again.receipt) == (undisturbed.text, undisturbed.receipt)


def test_nobody_sees_another_project() -> None:
    """Nothing that a session gets has anything of another project, nor is it changed by what that holds."""
    request = sw.ContextRequest(query="budget of the hot tier", projects=["p"], budget_tokens=500)
    with sw.Runtime.start(workers=1) as runtime, runtime.client(projects=["p"]) as client:
        fill(client)
        before = client.assemble(request, keep_receipt=False)
        with runtime.client(projects=["secret"]) as other:
            other.tiers.store_many(
                sw.Fragment(fragment_id=f"x{number}", body="budget of the hot tier xyzzy") for number in range(500)
            )
            other.assemble(sw.ContextRequest(query="xyzzy", projects=["secret"]))
        after = client.assemble(request, keep_receipt=False)
        assert (after.text, after.receipt.entries) == (before.text, before.receipt.entries)
        for projects in (["secret"], ["p", "secret"]):
            with pytest.raises(sw.OutOfScope):
                client.assemble(sw.ContextRequest(query="xyzzy", projects=projects))
        assert client.receipts.list().receipts == ()
