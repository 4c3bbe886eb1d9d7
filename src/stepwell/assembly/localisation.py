"""Evaluation of answers about programs: whether an answer to a bug report shows the place that the fix changed.

The data is JSONL, an object to a line: `{"id", "package", "version", "query", "files", "functions"}`. `query` is the
report, `files` are the sources that the fix changed, and `functions` what changed in them, which may be nothing known.
The sources of each package and version are given beside the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from stepwell.assembly.answer import Answer
from stepwell.domain.bounded_types import Source
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline
from stepwell.errors import InvalidArgument

FORMAT: Final = "see `stepwell eval --help` for what a line has"
FILES_AT: Final = (1, 3, 5, 10)
"""The numbers of files among which the right one is looked for."""
CODE_KIND: Final = "code"
SHOWN_WHOLE: Final = frozenset({"full", "cut"})
"""The depths at which an answer has the code of a fragment: as it is, or without its docstring."""


class BugReport(Struct, frozen=True, kw_only=True):
    """A report, the package that it is about, and the places that its fix changed."""

    id: str
    package: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9._-]{1,100}\Z")]
    version: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9.+!_-]{1,50}\Z")]
    query: str
    files: Annotated[tuple[Source, ...], Meta(min_length=1)]
    functions: tuple[str, ...] = ()

    @property
    def directory(self) -> str:
        """The name of the directory that has the sources, as the package's source distribution unpacks to."""
        return f"{self.package}-{self.version}"


class Localised(Struct, frozen=True):
    """The part of a report's fix that an answer, or a ranking, shows.

    `file_rank` is the number of files before the first right one, or None. `has_body` says whether all of a changed
    function is shown; it is None where no function is known.
    """

    file_rank: int | None
    has_body: bool | None


class LocalisedShare(Struct, frozen=True):
    """The shares of all reports: with a right file among the first ones, and with the body of a changed function."""

    files_at: Mapping[int, float]
    bodies: float


_decoder: Final = msgspec.json.Decoder(BugReport)


def is_localisation(line: bytes) -> bool:
    """Return True if the first line of a file looks like a bug report, and not like a document or a question."""
    try:
        return isinstance(msgspec.json.decode(line, type=_Shape).files, msgspec.UnsetType) is False
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False


class _Shape(Struct):
    """The field by which a line is recognised."""

    files: list[str] | msgspec.UnsetType = msgspec.UNSET


def parse_reports(lines: Iterable[bytes]) -> list[BugReport]:
    """Return the reports of a file. Raise `InvalidArgument`, with the number of the line, if a line is malformed."""
    reports: list[BugReport] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                reports.append(_decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidArgument(f"line {number}: {error}: {FORMAT}") from None
    return reports


def wanted_bodies(report: BugReport, rows: Iterable[FragmentRow]) -> list[frozenset[str]]:
    """Return the ids of the fragments that each changed function is made of; a large function has several."""
    wanted = {name.rpartition(".")[2] for name in report.functions}
    found: dict[str, set[str]] = {}
    for row in rows:
        if row.source in report.files:
            for name in Outline.of(row.metadata).name.split(", "):
                if name.rpartition(".")[2] in wanted:
                    found.setdefault(name, set()).add(row.fragment_id)
    return [frozenset(ids) for ids in found.values()]


def localise(report: BugReport, bodies: Sequence[frozenset[str]], answer: Answer) -> Localised:
    """Return what an answer has of a report. Only files of code count, in the order of the text."""
    files = dict.fromkeys(each.source for each in answer.fragments if each.kind == CODE_KIND)
    shown = {each.fragment_id for each in answer.fragments if each.depth in SHOWN_WHOLE}
    return localise_ranking(report, bodies, [*files], shown)


def localise_ranking(
    report: BugReport, bodies: Sequence[frozenset[str]], files: Sequence[str], shown: set[str]
) -> Localised:
    """Return what a ranking of files and a set of whole fragments have of a report."""
    rank = next((place for place, source in enumerate(files) if source in report.files), None)
    return Localised(rank, any(ids <= shown for ids in bodies) if report.functions else None)


def shares(found: Sequence[Localised]) -> LocalisedShare:
    """Return the shares of several reports. Reports without a known function do not count for the bodies."""
    at = {
        count: sum(each.file_rank is not None and each.file_rank < count for each in found) / max(1, len(found))
        for count in FILES_AT
    }
    with_functions = [each.has_body for each in found if each.has_body is not None]
    return LocalisedShare(at, sum(with_functions) / max(1, len(with_functions)))
