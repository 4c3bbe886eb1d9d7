"""The meaning of texts as vectors, and the vectors of one project's fragments.

The model (`wordllama`) has a vector for each token; the vector of a text is the mean of its tokens' vectors. Here a
text is cut into words first, and the vectors of words are cached. That is more than twice as fast, and the vector of a
text depends on nothing but the text.

A vector is stored in whole numbers from -127 to 127. Their products and sums are exact, so the same fragments get the
same scores, to the last bit, whatever other fragments and slots the index has.
"""

from __future__ import annotations

import codecs
import functools
import importlib.util
import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import Outline, is_content
from stepwell.strategies.index.columns import SLOTS_MIN, ColumnIndex, Floats, with_room_for
from stepwell.strategies.index.snapshot import IndexSnapshot, RowPlaces, require
from stepwell.strategies.protocol import SeenFragment

if TYPE_CHECKING:
    from wordllama import WordLlamaInference

MODEL: Final = "wordllama"
DIMENSIONS: Final = 256
_WORD: Final = re.compile(r"\w{1,64}")
_LARGEST: Final = 127

Vector = NDArray[np.int8]
Vectors = NDArray[np.int8]
Embed = Callable[[str], Vector]
"""A function from a text to its vector."""


def is_installed() -> bool:
    """Return True if the model's package is installed. The model is not loaded."""
    return importlib.util.find_spec(MODEL) is not None


def installed_at() -> Path | None:
    """Return the file of the model's package, or None if it is not installed. The model is not loaded."""
    found = importlib.util.find_spec(MODEL)
    return None if found is None or found.origin is None else Path(found.origin)


@functools.cache
def load() -> Embed:
    """Return the embedding function of the model, which is loaded once in a process.

    The model comes with its package: nothing is downloaded. Loading takes up to 110 MB and half a second.
    """
    return WordEmbedder(_model()).embed


def embed(text: str) -> Vector:
    """Return the vector of a text. The first call of a process loads the model."""
    return load()(text)


class WordEmbedder:
    """The vectors of the words that were met last, and of texts made of them.

    The cache has a fixed number of rows. When it has no room for the words of a text, it is emptied: that is simpler
    than evicting single words, and rare, because few words are most of every text. Only one thread uses it.
    """

    def __init__(self, model: WordLlamaInference, words_max: int = limits.EMBEDDED_WORDS_REMEMBERED_MAX) -> None:
        assert model.embedding.shape[1] == DIMENSIONS
        assert words_max >= limits.EMBEDDED_BYTES_MAX + limits.OUTLINE_NAME_CHARS_MAX, "the words of one text have room"
        self._model: Final = model
        self._numbers: dict[str, int] = {}
        self._vectors: Final = np.empty((words_max, DIMENSIONS), dtype=np.float32)

    def embed(self, text: str) -> Vector:
        """Return the quantized vector of a text; zeros for a text without words."""
        words = _WORD.findall(text)
        if len(self._numbers) + len(words) > len(self._vectors):
            self._numbers.clear()
        numbers = [self._numbers[word] if word in self._numbers else self._number(word) for word in words]
        return _quantized(np.add.reduce(self._vectors[numbers], axis=0, dtype=np.float32))

    def _number(self, word: str) -> int:
        """Return the row of a new word in the cache."""
        number = len(self._numbers)
        tokens = self._model.tokenizer.encode(word, add_special_tokens=False).ids
        self._vectors[number] = np.add.reduce(self._model.embedding[tokens], axis=0, dtype=np.float32)
        self._numbers[word] = number
        return number


def _model() -> WordLlamaInference:
    """Load the model without letting it configure logging.

    Its package calls `logging.basicConfig`, which would send every library's messages to standard error. A root logger
    that has a handler is left as it is, so it gets one for the time of the import.
    """
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    try:
        import wordllama  # noqa: PLC0415 - an extra, which may not be there

        return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    finally:
        root.removeHandler(silent)


def _quantized(vector: NDArray[np.float32]) -> Vector:
    """Return a vector of whole numbers with nearly the same direction."""
    largest = np.abs(vector).max()
    return np.rint(vector * (_LARGEST / largest)).astype(np.int8) if largest else np.zeros(DIMENSIONS, dtype=np.int8)


class EmbeddingIndex(ColumnIndex):
    """The vectors of one project's fragments: 256 bytes each. The cache of a worker owns it, and one thread uses it."""

    def __init__(self, project: str, embed: Embed) -> None:
        super().__init__(project)
        self._embed: Final = embed
        self._vectors: Vectors = np.zeros((SLOTS_MIN, DIMENSIONS), dtype=np.int8)
        self._lengths: Floats = np.zeros(SLOTS_MIN, dtype=np.float64)
        """The Euclidean length of each vector; 0 if the text has no word that the model knows."""

    def similarities(self, text: str) -> Floats:
        """Return the cosine of the angle to a text for each slot; 0 if either has no words."""
        query = self._embed(text)
        lengths = self._lengths[: len(self._rows)] * _length(query)
        products: Floats = np.einsum("ij,j->i", self._vectors[: len(self._rows)], query, dtype=np.int32)
        return products / np.where(lengths > 0, lengths, np.inf)

    def _is_unaffected_by(self, slot: int, row: FragmentRow) -> bool:
        before = self.at(slot)
        return before.kind == row.kind and before.digest == row.digest and _name(before) == _name(row)

    def _fill_slot(self, slot: int, fragment: SeenFragment) -> None:
        vector = self._embed(_text(fragment))
        super()._fill_slot(slot, fragment)
        self._vectors, self._lengths = with_room_for(self._vectors, slot), with_room_for(self._lengths, slot)
        self._vectors[slot], self._lengths[slot] = vector, _length(vector)

    def snapshot(self, places: Mapping[str, int]) -> IndexSnapshot:
        kinds = super().snapshot(places)
        return IndexSnapshot({**kinds.arrays, "vectors": self._vectors, "lengths": self._lengths}, kinds.values)

    def _restore(self, snapshot: IndexSnapshot, places: RowPlaces) -> None:
        super()._restore(snapshot, places)
        self._vectors, self._lengths = snapshot.arrays["vectors"], snapshot.arrays["lengths"]
        vectors, dimensions = self._vectors.shape
        require(dimensions == DIMENSIONS, "a vector has all dimensions")
        require(min(vectors, len(self._lengths)) >= len(self._rows), "each slot has a vector and its length")


def _length(vector: Vector) -> float:
    return math.sqrt(int(np.square(vector, dtype=np.int64).sum()))


def _name(row: FragmentRow) -> str:
    return Outline.of(row.metadata).name


def _text(fragment: SeenFragment) -> str:
    """Return the text that stands for a fragment: its name, and the beginning of its body.

    A listing of a file and a body that is not UTF-8 have none, and so are similar to nothing.
    """
    if not is_content(fragment.row):
        return ""
    body, bytes_max = fragment.body, limits.EMBEDDED_BYTES_MAX
    try:
        text = codecs.utf_8_decode(body[:bytes_max], "strict", len(body) <= bytes_max)[0]
    except UnicodeDecodeError:
        return ""
    return f"{_name(fragment.row)}\n{text}"
