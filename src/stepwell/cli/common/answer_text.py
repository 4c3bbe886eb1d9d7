"""An answer as a person or a pipe reads it: its text, and tables of its strategies and candidates."""

from __future__ import annotations

import sys

from stepwell import limits
from stepwell.assembly.answer import Answer
from stepwell.assembly.receipt import Receipt
from stepwell.cli.common.output import write_result
from stepwell.terminal import is_terminal
from stepwell.text import plural


def print_answer(answer: Answer, *, with_receipt: bool) -> None:
    """Print the context to stdout, and on a terminal the table of strategies to stderr.

    The table is for a person who watches. A script gets the same numbers with `--json`.
    """
    write_result(f"{answer.text}\n" if answer.text else "")
    if with_receipt:
        write_result(f"\n{_receipt_table(answer.receipt)}\n")
    if is_terminal(sys.stderr):
        _print_table(answer)


def _print_table(answer: Answer) -> None:
    """Print the table of strategies: how confident each was, its weight, and how many of its candidates were kept."""
    from rich import box  # noqa: PLC0415 - a pipe needs no tables, and rich takes long to import
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    from stepwell.cli.common.console import error_console  # noqa: PLC0415

    receipt = f", receipt {answer.receipt_id}" if answer.receipt_id else ""
    table = Table(
        title=f"{plural(len(answer.fragments), 'fragment')}, {answer.total_tokens:,} of "
        f"{plural(answer.budget_tokens, 'token')}{receipt}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("strategy")
    for heading in ("confidence", "weight", "candidates", "kept", "seconds"):
        table.add_column(heading, justify="right")
    for each in answer.strategies:
        numbers = f"{each.confidence:.2f}", f"{each.weight:.2f}", f"{each.candidates:,}", f"{each.kept:,}"
        cells = (*numbers, f"{each.seconds:.3f}") if each.failure is None else (each.failure.kind, "", "", "", "")
        table.add_row(Text(each.strategy), *cells)
    error_console().print(table)


def _receipt_table(receipt: Receipt) -> str:
    """Return the best candidates, and the decision about each of them, as a Markdown table."""
    lines = ["| rank | fragment | tokens | score | by strategy | what became of it |", "|---|---|---|---|---|---|"]
    for rank, entry in enumerate(receipt.entries[: limits.RECEIPT_ENTRIES_SHOWN], 1):
        votes = ", ".join(f"{vote.strategy} {vote.rank}" for vote in entry.votes) or f"near {entry.near}"
        name = entry.fragment_id.replace("|", "\\|")
        outcome = f"{entry.decision}: {entry.reason}".replace("|", "\\|")
        lines.append(f"| {rank} | {name} | {entry.tokens} | {entry.scores.total:.3f} | {votes} | {outcome} |")
    if (more := len(receipt.entries) - limits.RECEIPT_ENTRIES_SHOWN) > 0:
        lines.append(f"\n{more:,} more: --json --explain has all of them")
    return "\n".join(lines)
