"""The tables of the README: a few works of a run, with single calls beside single calls and batches beside batches.

They stand between two marks, and are written anew by `python -m benchmarks --from FILE --readme README.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from benchmarks.report import Results, number
from benchmarks.section import OURS

BEGIN, END = "<!-- figures: generated -->\n", "<!-- /figures -->\n"
_CONTENDERS: Final = ("stepwell", "SyncManager dict", "BaseManager class", "Redis")
_WITHOUT_BATCHES: Final = "SyncManager dict"
_WORKS: Final = {
    "`get`, one at a time, 1 process": "get, one at a time, 1 client",
    "`get`, one at a time, 4 processes": "get, one at a time, 4 clients",
    "90 % `get`, 10 % replacing `store`, 4 processes": "90 % get and 10 % replacing store, one at a time, 4 clients",
    "`store`, one at a time, 1 process": "store, one at a time, 1 client",
    "`store`, one at a time, 4 processes": "store, one at a time, 4 clients",
    "replacing `store`, 4 processes": "replacing store, one at a time, 4 clients",
    "the same, beside a busy process": "replacing store, one at a time, 4 clients, beside 1 busy process",
    "`get`, batches of 100, 4 processes": "get, batches of 100, 4 clients",
    "`store`, batches of 100, 4 processes": "store, batches of 100, 4 clients",
}


class Row(Struct, frozen=True):
    """A row of the second table: a work in the section whose title begins with `section`, and who takes part."""

    label: str
    section: str
    work: str
    ours: str
    peers: Sequence[str]


_READ: Final = "Large bodies"
_DISK: Final = "Records of 1,024 bytes, durability disk"
_TASKS: Final = "Tasks that take the processor"
_QUESTIONS: Final = "Questions to 100,000 fragments"
_MANY: Final = "1,000 tasks of 0.1 ms, each with a body of 1 MiB"
_RANKED: Final = ["SQLite FTS5", "bm25s"]
_POOLS: Final = ["ProcessPoolExecutor", "loky", "multiprocess.Pool"]
_ROWS: Final = (
    Row("a body of 1 MiB, read by 4", _READ, "1,024 KiB, read by 4", "stepwell, get", ["SyncManager dict", "Redis"]),
    Row("1,000 tasks of 0.1 ms, each with a body of 1 MiB", _TASKS, _MANY, "stepwell, strategies", _POOLS),
    Row("64 tasks of 20 ms, 2 workers", _TASKS, "64 tasks of 20 ms", "stepwell, strategies", _POOLS),
    Row(
        "a question to 100,000 fragments; the others return ids",
        _QUESTIONS,
        "a further one",
        "stepwell, assemble",
        _RANKED,
    ),
    Row("the same, after 100 fragments were added", _QUESTIONS, "100 added", "stepwell, assemble", _RANKED),
    Row(
        "durable records, 8 processes, one at a time",
        _DISK,
        "8 clients",
        "stepwell, one at a time",
        ["SQLite, a commit each", "Redis, one at a time"],
    ),
    Row(
        "durable records, 8 processes, 16 outstanding each",
        _DISK,
        "8 clients",
        "stepwell, 16 outstanding",
        ["Redis, pipelines of 16"],
    ),
)


def written(readme: str, results: Results) -> str:
    """Return the text of the README with the tables of a run between the marks."""
    before, begin, rest = readme.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the README has no {BEGIN.strip()} … {END.strip()}")
    return f"{before}{begin}{_tables(results)}{end}{after}"


def _tables(results: Results) -> str:
    return "\n".join([*_rates(results), "", *_others(results), ""])


def _rates(results: Results) -> Iterator[str]:
    """Yield the table of rates, in thousands a second; the fastest of a row is bold."""
    yield "| thousands a second | stepwell | `SyncManager` | `BaseManager` | Redis |"
    yield "|---|---|---|---|---|"
    for label, work in _WORKS.items():
        left_out = _WITHOUT_BATCHES if "batches" in work else ""
        rates = [0.0 if each == left_out else _rate(results, work, each) for each in _CONTENDERS]
        cells = [f"**{_short(rate)}**" if rate == max(rates) else _short(rate) for rate in rates]
        yield f"| {label} | {' | '.join(cells)} |"


def _rate(results: Results, work: str, contender: str) -> float:
    """Return the figure of the first section that has the work, or 0 if the contender cannot do it."""
    for section in results.sections:
        if section.unit == "/s" and any(each.work == work for each in section.figures):
            return next((f.median for f in section.figures if (f.work, f.contender) == (work, contender)), 0.0)
    return 0.0


def _short(rate: float) -> str:
    return "" if not rate else f"{rate / 1_000:,.0f}" if rate >= 100_000 else f"{rate / 1_000:.1f}"


def _others(results: Results) -> Iterator[str]:
    """Yield the table of other works."""
    yield "| | stepwell | others |"
    yield "|---|---|---|"
    for row in _ROWS:
        section = next(each for each in results.sections if each.title.startswith(row.section))
        figures = {each.contender: each.median for each in section.figures if each.work == row.work}
        unit = section.unit if section.unit == "/s" else f" {section.unit}"
        peers = ", ".join(f"{number(figures[peer])}{unit} {peer}" for peer in row.peers if peer in figures)
        assert row.ours.startswith(OURS)
        yield f"| {row.label} | {number(figures[row.ours])}{unit} | {peers} |"
