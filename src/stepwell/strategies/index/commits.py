"""The commits of a project as an index ranks files by them: by their messages, and by how lately they were made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from stepwell.domain.tiers.commit_history import Commit
from stepwell.strategies.index.terms import term_counts

K1: Final = 1.2
B: Final = 0.75
HALF_LIFE_COMMITS: Final = 100.0
"""The number of later commits after which a change counts half as recent."""


class CommitIndex:
    """The words of some commits, the latest first. The index of a project owns it."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self._commits: Final = commits
        self._postings: Final[dict[str, list[tuple[int, int]]]] = {}
        lengths: list[int] = []
        for number, commit in enumerate(commits):
            counts = term_counts(commit.message)
            lengths.append(sum(counts.values()))
            for term, count in counts.items():
                self._postings.setdefault(term, []).append((number, count))
        mean_length = sum(lengths) / len(lengths) if any(lengths) else 1.0
        self._norms: Final = [K1 * (1 - B + B * length / mean_length) for length in lengths]
        self.recency: Final[dict[str, float]] = {}
        """For each source, how recent its last change is: 1 for the latest commit."""
        for number, commit in enumerate(commits):
            for source in commit.sources:
                self.recency.setdefault(source, 0.5 ** (number / HALF_LIFE_COMMITS))

    def scores(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return, for each source, the BM25 scores of the commits that changed it, each shared among its files."""
        by_commit = [0.0] * len(self._commits)
        for term, weight in weights.items():
            found = self._postings.get(term, ())
            rare = math.log(1 + (len(self._commits) - len(found) + 0.5) / (len(found) + 0.5))
            for number, count in found:
                by_commit[number] += weight * rare * count / (count + self._norms[number])
        found_scores: dict[str, float] = {}
        for commit, score in zip(self._commits, by_commit, strict=True):
            if score > 0:
                for source in commit.sources:
                    found_scores[source] = found_scores.get(source, 0.0) + score / len(commit.sources)
        return found_scores
