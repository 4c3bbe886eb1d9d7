"""The commits of a project as an index ranks files by them: by their messages, and by how lately they were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from stepwell.domain.tiers.commit_history import Commit
from stepwell.strategies.index.words.terms import term_counts

K1: Final = 1.2
B: Final = 0.75
HALF_LIFE_COMMITS: Final = 100.0
"""The number of later commits after which a change counts half as recent."""


class CommitIndex(Struct, frozen=True, array_like=True):
    """The words of some commits, the latest first. The index of a project owns it, and stores it in its snapshots."""

    sources: tuple[tuple[str, ...], ...]
    """The files that each commit has changed."""
    postings: dict[str, list[tuple[int, int]]]
    """For each term the numbers of the commits that have it, and how often."""
    norms: list[float]
    recency: dict[str, float]
    """For each source, how recent its last change is: 1 for the latest commit."""

    @classmethod
    def of(cls, commits: Sequence[Commit]) -> CommitIndex:
        """Return the index of some commits."""
        postings: dict[str, list[tuple[int, int]]] = {}
        lengths: list[int] = []
        for number, commit in enumerate(commits):
            counts = term_counts(commit.message)
            lengths.append(sum(counts.values()))
            for term, count in counts.items():
                postings.setdefault(term, []).append((number, count))
        mean_length = sum(lengths) / len(lengths) if any(lengths) else 1.0
        recency: dict[str, float] = {}
        for number, commit in enumerate(commits):
            for source in commit.sources:
                recency.setdefault(source, 0.5 ** (number / HALF_LIFE_COMMITS))
        norms = [K1 * (1 - B + B * length / mean_length) for length in lengths]
        return cls(tuple(each.sources for each in commits), postings, norms, recency)

    def scores(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return, for each source, the BM25 scores of the commits that changed it, each shared among its files."""
        by_commit = [0.0] * len(self.sources)
        for term, weight in weights.items():
            found = self.postings.get(term, ())
            rare = math.log(1 + (len(self.sources) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found:
                by_commit[number] += weight * rare * count / (count + self.norms[number])
        found_scores: dict[str, float] = {}
        for sources, score in zip(self.sources, by_commit, strict=True):
            if score > 0:
                for source in sources:
                    found_scores[source] = found_scores.get(source, 0.0) + score / len(sources)
        return found_scores
