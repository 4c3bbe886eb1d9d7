"""Texts as vectors, and those of a project side by side: what means the same points in the same direction.

The model (`wordllama`) has a vector for each token, and the mean of its tokens' vectors is a text's. Here a text is cut
into words first, whose vectors are remembered: that is more than twice as fast, and the vector of a text depends on
nothing but the text. It is kept in whole numbers from -127 to 127, whose products and sums are exact: the same
fragments get the same scores, to the last bit, wherever they stand.
"""

from __future__ import annotations

import codecs
import functools
import importlib.util
import logging
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from stepwell import limits
from stepwell.domain.tiers.model import FragmentRow
from stepwell.domain.tiers.source_outline import NAME_CHARS_MAX, Outline, is_content
from stepwell.strategies.index.columns import SLOTS_MIN, ColumnIndex, Floats, with_room_for
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


def is_installed() -> bool:
    """Whether there is a model, without loading it."""
    return importlib.util.find_spec(MODEL) is not None


@functools.cache
def load() -> Embed:
    """The model, which comes with its package: nothing is downloaded. It takes up to 110 MB and half a second, once."""
    return WordEmbedder(_model()).embed


class WordEmbedder:
    """The words that were met last, with their vectors."""

    def __init__(self, model: WordLlamaInference, words_max: int = limits.EMBEDDED_WORDS_REMEMBERED_MAX) -> None:
        assert model.embedding.shape[1] == DIMENSIONS
        assert words_max >= limits.EMBEDDED_BYTES_MAX + NAME_CHARS_MAX, "the words of one text have room"
        self._model: Final = model
        self._numbers: dict[str, int] = {}
        self._vectors: Final = np.empty((words_max, DIMENSIONS), dtype=np.float32)

    def embed(self, text: str) -> Vector:
        """The direction of a text; of one without words, nowhere."""
        words = _WORD.findall(text)
        if len(self._numbers) + len(words) > len(self._vectors):
            self._numbers.clear()
        numbers = [self._numbers[word] if word in self._numbers else self._number(word) for word in words]
        return _quantized(np.add.reduce(self._vectors[numbers], axis=0, dtype=np.float32))

    def _number(self, word: str) -> int:
        number = len(self._numbers)
        tokens = self._model.tokenizer.encode(word, add_special_tokens=False).ids
        self._vectors[number] = np.add.reduce(self._model.embedding[tokens], axis=0, dtype=np.float32)
        self._numbers[word] = number
        return number


def _model() -> WordLlamaInference:
    """Its package sends every library's messages to standard error, unless somebody has a say there already."""
    root, silent = logging.getLogger(), logging.NullHandler()
    root.addHandler(silent)
    try:
        import wordllama  # noqa: PLC0415 - an extra, which may not be there

        return wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    finally:
        root.removeHandler(silent)


def _quantized(vector: NDArray[np.float32]) -> Vector:
    """The same direction, as well as whole numbers can tell."""
    largest = np.abs(vector).max()
    return np.rint(vector * (_LARGEST / largest)).astype(np.int8) if largest else np.zeros(DIMENSIONS, dtype=np.int8)


class EmbeddingIndex(ColumnIndex):
    """The vectors of one project's fragments: 256 bytes each."""

    def __init__(self, project: str, embed: Embed) -> None:
        super().__init__(project)
        self._embed: Final = embed
        self._vectors: Vectors = np.zeros((SLOTS_MIN, DIMENSIONS), dtype=np.int8)
        self._lengths: Floats = np.zeros(SLOTS_MIN, dtype=np.float64)
        """0 where there is no text that the model has words for."""

    def similarities(self, text: str) -> Floats:
        """The cosine of the angle to a text, by slot in use; 0 where there is nothing to compare."""
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


def _length(vector: Vector) -> float:
    return math.sqrt(int(np.square(vector, dtype=np.int64).sum()))


def _name(row: FragmentRow) -> str:
    return Outline.of(row.metadata).name


def _text(fragment: SeenFragment) -> str:
    """What it is called, and the beginning of its body; nothing of one that is not UTF-8, or stands for a file."""
    if not is_content(fragment.row):
        return ""
    body, bytes_max = fragment.body, limits.EMBEDDED_BYTES_MAX
    try:
        text = codecs.utf_8_decode(body[:bytes_max], "strict", len(body) <= bytes_max)[0]
    except UnicodeDecodeError:
        return ""
    return f"{_name(fragment.row)}\n{text}"
