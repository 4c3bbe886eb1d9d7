"""Plain BM25 over whole texts: the floor that rankings are compared with, and nothing that an answer is made of.

Words are runs of letters, digits and underscores in lower case. There are no stems, no fields and no stop words, so the
ranking is what any search engine gives without further work.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

K1: Final = 1.2
B: Final = 0.75

_WORD: Final = re.compile(r"\w+")


class PlainBm25:
    """The words of some texts. One thread uses it."""

    def __init__(self, texts: Sequence[str]) -> None:
        counts = [Counter(_WORD.findall(text.lower())) for text in texts]
        self._postings: Final[dict[str, list[tuple[int, int]]]] = {}
        for place, words in enumerate(counts):
            for word, count in words.items():
                self._postings.setdefault(word, []).append((place, count))
        lengths = np.array([words.total() for words in counts], dtype=np.float64)
        mean_length = float(lengths.mean()) if len(texts) and lengths.any() else 1.0
        self._norms: Final[NDArray[np.float64]] = K1 * (1 - B + B * lengths / mean_length)

    def ranking(self, query: str) -> list[int]:
        """Return the places of the texts that have a word of the query, the best first; ties in the order of places.

        A word that the query repeats counts as often.
        """
        total = len(self._norms)
        scores = np.zeros(total)
        for word, repeated in Counter(_WORD.findall(query.lower())).items():
            found = self._postings.get(word, [])
            weight = repeated * math.log(1 + (total - len(found) + 0.5) / (len(found) + 0.5))
            for place, count in found:
                scores[place] += weight * count / (count + self._norms[place])
        order = np.argsort(-scores, kind="stable")
        return [place for place in order.tolist() if scores[place] > 0]
