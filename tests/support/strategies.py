"""Strategies for tests of workers: some behave well, and others raise, hang, crash or waste memory."""

import os
import signal
import threading
from collections.abc import Sequence

from stepwell.strategies import progress
from stepwell.strategies.protocol import ContextRequest, ScoredFragment, StrategyView

DEADLINES_S = (2.0, 8.0, 32.0, 128.0)
"""Deadlines to try in turn, where one strategy is to exceed its deadline and another is to meet it.

The first ones may be too short for the other one on a busy machine.
"""


def scored(view: StrategyView, reason: str = "") -> list[ScoredFragment]:
    rows = [row for project in view.projects for row in view.rows(project)]
    return [ScoredFragment(row.project, row.fragment_id, 1.0, row.tokens, row.revision, reason) for row in rows]


def everything(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    return scored(view)


def sayings(request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Return all fragments, with the process id and the query as the reason."""
    return scored(view, f"{os.getpid()} {request.query}")


def wordy(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Return a result that is too large for a message, and so is uploaded."""
    return scored(view, "x" * 50_000)


def raising(request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    raise ValueError(request.query)


def mumbling(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Raise an error, and report progress, with a text that is not UTF-8."""
    progress.report(1, 2, "\udc80")
    raise ValueError("\udc80")


def reading(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Read every byte of the view."""
    for project in view.projects:
        for row in view.rows(project):
            seen = view.get(row.fragment_id, project=project)
            assert seen is not None
            assert len(bytes(seen.body)) == row.size
    return scored(view)


def leaving(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    raise SystemExit(3)


def inventing(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    return [ScoredFragment("p", "nobody has stored this", 1.0, 1, 1)]


def not_a_number(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    row = view.rows("p")[0]
    return [ScoredFragment(row.project, row.fragment_id, float("nan"), row.tokens, row.revision)]


def hanging(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    threading.Event().wait(600)
    return []


def busy_in_c(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Hold the interpreter for minutes in one call, so that no signal handler runs."""
    sum(range(10**11))
    return []


def stopping(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    os.kill(os.getpid(), signal.SIGSTOP)
    return []


def exiting(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    os.write(2, b"these are my last words\n")
    os._exit(7)


def crashing(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    os.kill(os.getpid(), signal.SIGSEGV)
    return []


def forking(_request: ContextRequest, _view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    """Die, and leave a child behind that holds the worker's socket for a second longer."""
    if os.fork() == 0:
        signal.alarm(1)
        signal.pause()
    os.kill(os.getpid(), signal.SIGKILL)
    return []


def greedy(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    held = [bytearray(64 << 20) for _ in range(100)]
    return scored(view)[: len(held)]


def telling(_request: ContextRequest, view: StrategyView, _budget: int) -> Sequence[ScoredFragment]:
    for done in range(3):
        progress.report(done + 1, 3, f"step {done + 1}")
    return scored(view)


ALL = [
    everything,
    sayings,
    wordy,
    raising,
    mumbling,
    reading,
    leaving,
    inventing,
    not_a_number,
    hanging,
    busy_in_c,
    stopping,
    exiting,
    crashing,
    forking,
    greedy,
    telling,
]
