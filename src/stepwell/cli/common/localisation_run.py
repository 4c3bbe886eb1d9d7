"""The localisation of bug reports: which share of the answers shows the file and the function that the fix changed.

The sources of each package are ingested into a project of their own, each once. Plain BM25 ranks whole files for the
measure by files, and fragments for the measure by functions.
"""

from __future__ import annotations

import tarfile
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from msgspec import Struct

from stepwell import limits
from stepwell.assembly.components import SINGLE_STRATEGY
from stepwell.assembly.localisation import (
    CODE_KIND,
    BugReport,
    Localised,
    LocalisedShare,
    localise,
    localise_ranking,
    shares,
    wanted_bodies,
)
from stepwell.cli.common import progress_bar
from stepwell.cli.common.recall_run import FLOOR, FUSION, Evaluation
from stepwell.client.api.views import View
from stepwell.client.client import Client
from stepwell.domain.tiers.model import FragmentRow
from stepwell.errors import InvalidArgument
from stepwell.strategies.index.words.plain_bm25 import PlainBm25
from stepwell.strategies.protocol import ContextRequest


class LocalisationMeasurement(Struct, frozen=True):
    """The shares of the reports for each row and budget, and the last failure of each strategy."""

    shares: Mapping[str, Mapping[int, LocalisedShare]]
    failures: Mapping[str, str]


def measure_localisation(
    client: Client, reports: Sequence[BugReport], sources: Path, names: Sequence[str], budgets: Sequence[int]
) -> LocalisationMeasurement:
    """Ingest the sources, ask for every report, and return the shares."""
    found: dict[str, dict[int, list[Localised]]] = {
        name: {each: [] for each in budgets} for name in (FLOOR, *names, FUSION)
    }
    failures: dict[str, str] = {}
    groups: dict[str, list[BugReport]] = defaultdict(list)
    for report in reports:
        groups[report.directory].append(report)
    done = 0
    with progress_bar.count_bar("asking") as advance:
        for directory, group in groups.items():
            with _unpacked(sources, directory) as root:
                client.ingest(root, project=directory)
            asker = _Asker(client, directory, names, budgets)
            for report in group:
                for (name, budget), localised in asker.ask(report).items():
                    found[name][budget].append(localised)
                failures.update(asker.failures)
                done += 1
                advance(done, len(reports), "")
    by_name = {name: {budget: shares(each) for budget, each in by_budget.items()} for name, by_budget in found.items()}
    return LocalisationMeasurement(by_name, dict(sorted(failures.items())))


@contextmanager
def _unpacked(sources: Path, directory: str) -> Generator[Path]:
    """Give the directory with the sources of a package: one that is there, or an archive unpacked for the time."""
    wanted = _normalised(directory)
    entries = sorted(sources.iterdir()) if sources.is_dir() else []
    for entry in entries:
        if entry.is_dir() and _normalised(entry.name) == wanted:
            yield entry
            return
    for entry in entries:
        if entry.name.endswith(".tar.gz") and _normalised(entry.name.removesuffix(".tar.gz")) == wanted:
            with TemporaryDirectory() as unpacked, tarfile.open(entry) as archive:
                archive.extractall(unpacked, filter="data")
                inner = [each for each in Path(unpacked).iterdir() if each.is_dir()]
                yield inner[0] if len(inner) == 1 else Path(unpacked)
                return
    raise InvalidArgument(
        f"{sources} has neither a directory {directory} nor {directory}.tar.gz: get it with "
        f"`pip download --no-deps --no-binary :all: {directory.rpartition('-')[0]}=={directory.rpartition('-')[2]}`"
    )


def _normalised(name: str) -> str:
    """Return a name as package indexes compare it."""
    return name.lower().replace("_", "-")


class _Asker:
    """Asks for the reports of one package, whose sources are ingested. One thread uses it."""

    def __init__(self, client: Client, project: str, names: Sequence[str], budgets: Sequence[int]) -> None:
        self._view: Final[View] = client.view([project])
        self._project: Final = project
        self._evaluation: Final = Evaluation(client)
        self._names: Final = names
        self._budgets: Final = budgets
        self._rows: Final = [row for row in self._view.rows(project) if row.kind == CODE_KIND]
        self._plain: Final = _PlainRanking(self._view, self._rows)
        self.failures: dict[str, str] = {}

    def ask(self, report: BugReport) -> dict[tuple[str, int], Localised]:
        """Return what each row has of a report at each budget."""
        query = report.query[: limits.TEXT_CHARS_MAX]
        request = ContextRequest(projects=[self._project], query=query, budget_tokens=max(self._budgets))
        asked = self._evaluation.ask(request, self._names, self._view)
        self.failures.update(asked.failures)
        bodies = wanted_bodies(report, self._rows)
        files, ranked = self._plain.rankings(query)
        found: dict[tuple[str, int], Localised] = {}
        for budget in self._budgets:
            found[FLOOR, budget] = localise_ranking(report, bodies, files, _fitting(ranked, budget))
            for name in self._names:
                answer = asked.answer([name], budget, SINGLE_STRATEGY)
                found[name, budget] = localise(report, bodies, answer)
            found[FUSION, budget] = localise(report, bodies, asked.answer(self._names, budget, {}))
        return found


class _PlainRanking:
    """Plain BM25 over the files and over the fragments of a project."""

    def __init__(self, view: View, rows: Sequence[FragmentRow]) -> None:
        texts: dict[str, list[str]] = defaultdict(list)
        fragments: list[str] = []
        for row in rows:
            seen = view.get(row.fragment_id, project=row.project)
            text = "" if seen is None else seen.text
            fragments.append(text)
            texts[row.source].append(text)
        self._rows: Final = rows
        self._sources: Final = [*texts]
        self._files: Final = PlainBm25(["".join(parts) for parts in texts.values()])
        self._fragments: Final = PlainBm25(fragments)

    def rankings(self, query: str) -> tuple[list[str], list[FragmentRow]]:
        """Return the files and the fragments, the best first."""
        files = [self._sources[place] for place in self._files.ranking(query)]
        return files, [self._rows[place] for place in self._fragments.ranking(query)]


def _fitting(ranked: Sequence[FragmentRow], budget: int) -> set[str]:
    """Return the best fragments that fit into a budget, without any text around them."""
    shown: set[str] = set()
    for row in ranked:
        if row.tokens <= budget:
            budget -= row.tokens
            shown.add(row.fragment_id)
    return shown
