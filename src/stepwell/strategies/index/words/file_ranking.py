"""The scores of fragments for a query: of the words in them, of the file that they are in, and of the places named.

A fragment's score is the sum of its parts, each from 0 to 1 before it is weighted:

| part | weight |
|---|---|
| BM25F of the fragment | 1 |
| score of its file | 0.8 |
| of a turn of a conversation instead: score of the passage around it | 0.5 |
| a traceback or a line number of the query points into it | 0.4 |
| logarithm of its size, of code only | 0.15 |

The score of a file is the weighted sum of features, each divided by the largest that a file has for the query:

| feature | weight |
|---|---|
| BM25F of its two best fragments | 1 |
| BM25 of the whole file, without weights of fields | 0.25 |
| BM25F of the title of the query | 0.25 |
| its path is in the query | 0.5 |
| a traceback has it: 1 for the innermost frame, 0.7 times that for each one further out | 0.25 |
| its module is in the query, such as `package.module` | 0.25 |
| commits whose message has the words have changed it | 0.2 |
| it was changed lately | 0.1 |
| logarithm of the number of files that import it | 0.1 |

Tests count half and documents, examples and vendored code 0.7, unless the title of the query asks for them. The rarity
of a term is counted in files, because all methods of a class have its words; with few files, it is counted in fragments
more and more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import lines_of
from stepwell.strategies.index.words.commits import CommitIndex
from stepwell.strategies.index.words.fields import WEIGHT_UNIT
from stepwell.strategies.index.words.files import (
    CLASS_WEIGHTS,
    DOCUMENT,
    IMPORT_TERM,
    ORDINARY,
    STEM_TERM,
    TEST,
    FileTable,
    module_of,
    stem_of,
)
from stepwell.strategies.index.words.passages import Passages
from stepwell.strategies.index.words.postings import Mask, Occurrences, Slots
from stepwell.strategies.index.words.query import Frame, ParsedQuery

Floats = NDArray[np.float64]
Numbers = NDArray[np.int32]

K1: Final = 1.2  # how much further occurrences of a term count: with 0, not at all
B: Final = 0.75  # how much the length counts: with 0, not at all

FILE, PASSAGE, POINTED, SIZE = 0.8, 0.5, 0.4, 0.15
WHOLE_FILE, TITLE, PATH, TRACEBACK, MODULE, COMMITS, RECENT, IMPORTED = 0.25, 0.25, 0.5, 0.25, 0.25, 0.2, 0.1, 0.1
FRAME_DECAY: Final = 0.7  # from a frame of a traceback to the next one further out
FEW_FILES: Final = 10.0  # with so many files, the rarity among them counts as much as that among fragments


class FileColumns(Struct, frozen=True):
    """The columns of an index at one moment, by slot and by file.

    `places` are the slots in order of their files, and `starts` says where each of `present`, the files with a live
    slot, begins there.
    """

    files: Numbers
    classes: NDArray[np.uint8]
    file_count: int
    norms: Floats
    file_norms: Floats
    sizes: Floats
    alive: Mask
    places: NDArray[np.intp]
    starts: NDArray[np.intp]
    present: Numbers
    live: int
    has_files: bool
    passages: Passages | None = None

    @classmethod
    def of(
        cls,
        *,
        files: Numbers,
        classes: NDArray[np.uint8],
        file_count: int,
        lengths: Floats,
        raw_lengths: Floats,
        is_code: Mask,
        alive: Mask,
        passages: Passages | None,
    ) -> FileColumns:
        """Return the columns for the data of the slots; dead slots have no weight.

        Lengths are in tenths: sums of whole numbers are exact, so that they do not depend on the order of the slots.
        """
        live_lengths = np.where(alive, lengths, 0.0)
        file_lengths = np.bincount(files, np.where(alive, raw_lengths, 0.0), file_count).astype(np.float64)
        live = int(np.count_nonzero(alive))
        by_file = np.argsort(files, kind="stable")
        places = by_file[alive[by_file]]
        ordered = files[places]
        starts = np.flatnonzero(np.diff(ordered, prepend=-1))
        present = ordered[starts]
        sizes = np.log1p(lengths / WEIGHT_UNIT)
        largest = float(sizes[alive].max(initial=0.0)) or 1.0
        return cls(
            files=files,
            classes=classes,
            file_count=file_count,
            norms=_norms(lengths, float(live_lengths.sum()), live),
            file_norms=_norms(file_lengths, float(file_lengths.sum()), len(present)),
            sizes=np.where(is_code, sizes / largest, 0.0),
            alive=alive,
            places=places,
            starts=starts,
            present=present,
            live=live,
            has_files=len(present) < live,
            passages=passages,
        )

    def files_with(self, slots: Slots) -> int:
        """Return the number of files that have some of the slots."""
        if not self.has_files:
            return len(slots)
        is_among = np.zeros(self.file_count, dtype=np.bool_)
        is_among[self.files[slots]] = True
        return int(np.count_nonzero(is_among))

    def rarity(self, slots: Slots) -> float:
        """Return the rarity of a term that is in these slots: among the files and, if these are few, among the
        fragments.
        """
        by_fragment = rarity(len(slots), self.live)
        if not self.has_files:
            return by_fragment
        share = len(self.present) / (len(self.present) + FEW_FILES)
        return share * rarity(self.files_with(slots), len(self.present)) + (1 - share) * by_fragment

    def two_best(self, scores: Floats) -> Floats:
        """Return the sum of the two best scores of each file."""
        found = np.zeros(self.file_count)
        if len(self.starts):
            ordered = scores[self.places]
            best = np.maximum.reduceat(ordered, self.starts)
            sizes = np.diff(self.starts, append=len(ordered))
            is_best = ordered == np.repeat(best, sizes)
            second = np.maximum.reduceat(np.where(is_best, 0.0, ordered), self.starts)
            is_tie = np.add.reduceat(is_best.astype(np.int64), self.starts) > 1
            found[self.present] = best + np.where(is_tie, best, second)
        return found

    def class_weights(self, query: ParsedQuery) -> Floats:
        """Return how much each slot counts for a query; a dead one counts nothing."""
        weights = np.ones(3)
        weights[ORDINARY] = CLASS_WEIGHTS[ORDINARY]
        weights[TEST] = 1.0 if query.asks_for_tests else CLASS_WEIGHTS[TEST]
        weights[DOCUMENT] = 1.0 if query.asks_for_documents else CLASS_WEIGHTS[DOCUMENT]
        return np.where(self.alive, weights[self.classes], 0.0)


class RankedIndex(Protocol):
    """The part of an index that a ranking uses."""

    @property
    def files(self) -> FileTable: ...
    @property
    def commits(self) -> CommitIndex | None: ...
    def columns(self) -> FileColumns: ...
    def find(self, terms: Iterable[str]) -> list[Occurrences]: ...
    def rows_of(self, slots: Iterable[int]) -> list[FragmentRow]: ...


class RankedSlots(Struct, frozen=True):
    """The score of each slot, 0 for a slot that has nothing of the query, and for each term the slots that have it."""

    scores: Floats
    found: dict[str, Slots]


class _WordScores(Struct, frozen=True):
    """The scores by words alone: BM25F of slots for the query, weighted by their classes, and for its title, and BM25
    of whole files.
    """

    fragments: Floats
    titles: Floats
    whole_files: Floats
    found: dict[str, Slots]


def rank(index: RankedIndex, query: ParsedQuery) -> RankedSlots:
    """Return the scores of all fragments of an index."""
    columns = index.columns()
    class_weights = columns.class_weights(query)
    words = _word_scores(index, columns, query, class_weights)
    places = _Places(index, columns, query)
    files = _file_scores(index, columns, query, words, places)
    is_candidate = (words.fragments > 0) | places.pointed
    around = _with_passages(index, columns, query, _scaled(files[columns.files] * class_weights))
    scores = _scaled(words.fragments) + FILE * around
    scores += (POINTED * places.pointed + SIZE * columns.sizes) * class_weights
    return RankedSlots(np.where(is_candidate, scores, 0.0), words.found)


def _with_passages(index: RankedIndex, columns: FileColumns, query: ParsedQuery, around: Floats) -> Floats:
    """Return the scores of the fragments' files, with that of the passage around it for each turn.

    The best passage stands for the best of the turns' own scores, so that turns compare with fragments of files.
    """
    passages = columns.passages
    if passages is None:
        return around
    terms = dict(islice(query.content_weights.items(), limits.PASSAGE_TERMS_MAX))
    found = np.zeros(len(passages.turns))
    for weight, occurrences in zip(terms.values(), index.find(terms), strict=True):
        if len(occurrences.slots):
            found += weight * columns.rarity(occurrences.slots) * passages.share(occurrences)
    scored = around.copy()
    scored[passages.turns] = PASSAGE / FILE * float(around[passages.turns].max(initial=0.0)) * _scaled(found)
    return scored


def rarity(frequency: int, total: int) -> float:
    """Return the inverse document frequency of a term that so many of all documents have: rarer terms weigh more."""
    return math.log(1 + (total - frequency + 0.5) / (frequency + 0.5))


def _norms(lengths: Floats, total: float, count: int) -> Floats:
    """Return the BM25 length norm of each length: the larger, the longer."""
    mean_length = total / count if total and count else 1.0
    return K1 * (1 - B + B * (lengths / mean_length))


def _scaled(values: Floats) -> Floats:
    """Return values divided by the largest one."""
    largest = float(values.max(initial=0.0))
    return values / largest if largest > 0 else values


def _word_scores(index: RankedIndex, columns: FileColumns, query: ParsedQuery, class_weights: Floats) -> _WordScores:
    """Return the scores by words. Terms are taken in the order of the query, so that sums are the same each time.

    Stop words decide between turns of a conversation, which often share nothing else with a query. But where none of
    the other words occurs, nothing is found.
    """
    content = query.content_weights
    weights = content if columns.has_files else query.weights
    every = index.find(weights)
    if not any(len(each.slots) for term, each in zip(weights, every, strict=True) if term in content):
        weights, every = dict[str, float](), list[Occurrences]()
    fragments, titles = np.zeros(len(columns.files)), np.zeros(len(columns.files))
    whole_files = np.zeros(columns.file_count)
    found: dict[str, Slots] = {}
    for (term, weight), occurrences in zip(weights.items(), every, strict=True):
        slots = found[term] = occurrences.slots
        if not len(slots):
            continue
        rare = columns.rarity(slots)
        frequencies = occurrences.weights / WEIGHT_UNIT
        parts = rare * (frequencies / (frequencies + columns.norms.take(slots)))
        fragments[slots] += weight * parts
        if term in query.title_weights:
            titles[slots] += query.title_weights[term] * parts
        if columns.has_files:
            counts = np.bincount(columns.files[slots], occurrences.counts, len(whole_files))
            whole_files += weight * rare * (counts / (counts + columns.file_norms))
    fragments *= class_weights
    return _WordScores(fragments, titles if query.title_weights else fragments, whole_files, found)


def _file_scores(
    index: RankedIndex,
    columns: FileColumns,
    query: ParsedQuery,
    words: _WordScores,
    places: _Places,
) -> Floats:
    """Return the scores of all files."""
    best = columns.two_best(words.fragments)
    total = _scaled(best)
    if not columns.has_files:
        return total
    total += WHOLE_FILE * _scaled(words.whole_files)
    total += TITLE * _scaled(columns.two_best(words.titles) if query.title_weights else best)
    total += PATH * _scaled(places.paths) + TRACEBACK * _scaled(places.frames) + MODULE * _scaled(places.modules)
    if index.commits is not None:
        commit_scores = index.commits.scores(query.content_weights)
        total += COMMITS * _scaled(_by_file(index, columns, commit_scores))
        total += RECENT * _by_file(index, columns, index.commits.recency)
    return total + IMPORTED * _scaled(_importers(index, columns, total))


def _by_file(index: RankedIndex, columns: FileColumns, values: Mapping[str, float]) -> Floats:
    """Return the values of sources in an array of all files."""
    found = np.zeros(columns.file_count)
    for source, value in values.items():
        number = index.files.find(source)
        if number is not None:
            found[number] = value
    return found


def _importers(index: RankedIndex, columns: FileColumns, totals: Floats) -> Floats:
    """Return the logarithm of the number of files that refer to each of the best files."""
    found = np.zeros(len(totals))
    best = np.flatnonzero(totals > 0)
    if len(best) > limits.FILES_COMPARED_MAX:
        least = np.partition(totals[best], -limits.FILES_COMPARED_MAX)[-limits.FILES_COMPARED_MAX]
        best = best[totals[best] >= least]
    sources = {number: index.files.sources[number] for number in best.tolist()}
    named = {number: source for number, source in sources.items() if source}
    importers = index.find([IMPORT_TERM + module_of(source) for source in named.values()])
    for number, occurrences in zip(named, importers, strict=True):
        found[number] = math.log1p(columns.files_with(occurrences.slots))
    return found


class _Places:
    """The places that a query names: files by path and by module, and fragments by line. It lives for one query.

    A path matches a file if its last parts do; of several files, those with the longest match count. A name without a
    directory that several files have counts less for each of them.
    """

    def __init__(self, index: RankedIndex, columns: FileColumns, query: ParsedQuery) -> None:
        self._index: Final = index
        self._columns: Final = columns
        self.paths: Final = np.zeros(columns.file_count)
        self.frames: Final = np.zeros(columns.file_count)
        self.modules: Final = np.zeros(columns.file_count)
        self.pointed: Final = np.zeros(len(columns.files), dtype=np.bool_)
        self._slots: Final = self._slots_by_stem(query)
        if self._slots:
            self._note_frames(query.frames)
            self._note_paths(query.paths)
            for name in query.dotted:
                self._note_module(_dotted_parts(name))

    def _slots_by_stem(self, query: ParsedQuery) -> dict[str, Slots]:
        """Return the slots of the files whose stem the query has in a path or a dotted name."""
        stems = {stem_of(path.replace("\\", "/")) for path in (*query.paths, *(frame.path for frame in query.frames))}
        stems.update(part for name in query.dotted for part in _dotted_parts(name))
        ordered = sorted(stems)
        found = self._index.find([STEM_TERM + stem for stem in ordered])
        return {stem: each.slots for stem, each in zip(ordered, found, strict=True) if len(each.slots)}

    def _files(self, stem: str) -> list[int]:
        """Return the files with a stem, in the order of their sources."""
        slots = self._slots.get(stem)
        if slots is None:
            return []
        numbers = np.unique(self._columns.files[slots])[: limits.QUERY_FILES_PER_NAME_MAX].tolist()
        return sorted(numbers, key=lambda number: self._index.files.sources[number])

    def _matching(self, path: str) -> list[int]:
        """Return the files that a path means."""
        wanted = path.lower().replace("\\", "/").strip("/").split("/")
        matches: dict[int, int] = {}
        for number in self._files(stem_of("/".join(wanted))):
            source = self._index.files.sources[number].lower().split("/")
            common = _common_end(wanted, source)
            if common >= min(2, len(wanted), len(source)):
                matches[number] = common
        most = max(matches.values(), default=0)
        return [number for number, common in matches.items() if common == most]

    def _note_paths(self, paths: Sequence[str]) -> None:
        for path in paths:
            numbers = self._matching(path)
            for number in numbers:
                self.paths[number] = max(self.paths[number], 1 / len(numbers))

    def _note_frames(self, frames: Sequence[Frame]) -> None:
        """Note the files and fragments of the frames that are inside of the project, the innermost first."""
        worth = 1.0
        for frame in frames:
            numbers = self._matching(frame.path)
            if len(numbers) != 1:
                continue
            self.frames[numbers[0]] = max(self.frames[numbers[0]], worth)
            worth *= FRAME_DECAY
            self._point(numbers[0], frame)

    def _point(self, number: int, frame: Frame) -> None:
        """Note the fragment that has the line or the function of a frame.

        Where the name of the function is known, the line is not needed: the report may be of another version.
        """
        slots = self._slots[stem_of(frame.path)]
        slots = slots[self._columns.files[slots] == number]
        for slot, row in zip(slots.tolist(), self._index.rows_of(slots.tolist()), strict=True):
            lines = lines_of(row.metadata)
            has_line = lines is not None and lines[0] <= frame.line <= lines[1]
            names = {name.rpartition(".")[2] for name in row.metadata.get("name", "").split(", ")}
            if frame.name in names or (has_line and not frame.name.isidentifier()):
                self.pointed[slot] = True

    def _note_module(self, parts: Sequence[str]) -> None:
        """Note the file that the longest beginning of a dotted name means, of two parts at least."""
        for end in range(len(parts), 1, -1):
            numbers = [
                number
                for number in self._files(parts[end - 1])
                if _common_end(parts[:end], module_of_path(self._index.files.sources[number])) >= min(2, end)
            ]
            if numbers:
                for number in numbers:
                    self.modules[number] = max(self.modules[number], 1 / len(numbers))
                return


def module_of_path(source: str) -> list[str]:
    """Return the parts of the dotted name of a file."""
    *directories, _ = source.lower().split("/")
    stem = stem_of(source)
    return (
        directories
        if directories and directories[-1] == stem and "/" + stem + "." not in source.lower()
        else [
            *directories,
            stem,
        ]
    )


def _dotted_parts(name: str) -> list[str]:
    return name.replace("::", ".").replace("\\", ".").lower().split(".")


def _common_end(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many of the last parts of two paths are the same."""
    common = 0
    for left, right in zip(reversed(one), reversed(other), strict=False):
        if left != right:
            break
        common += 1
    return common
