"""Counting of tokens, offline, with the vocabulary of the model that will read the text.

Budgets are made of counts, so a count must not be lower than what is really sent:
- A special token that is spelled out in a body (`<|endoftext|>`) counts as the text that it is there.
- An empty body counts 1, because an entry that costs nothing would never be evicted.
- A body that is not UTF-8 has no tokens until a program decides how to write it out: it counts by `estimate_tokens`.

A long text is counted in pieces. The tokenizer holds the interpreter's lock during a call, and retains for its thread
60 bytes for each character of the longest run of letters, spaces or signs that it met. One call with megabytes of them
would stop every other thread for a second and never return the memory. The pieces end where every vocabulary ends a
token whatever stands around it, so their counts add up to the count of the whole. A text that has no such place for 32
Ki characters (half a megabyte of one letter) is cut all the same. Such a cut changes the count by a few tokens in
either direction, and nothing proves how few. So each one adds `_CUT_TOKENS`, twice the most that one was seen to save,
and the sum is not less than the whole.

A text of more than `limits.COUNTED_ALONE_CHARS_MAX` is counted on all cores: many pieces in one call, for which the
tokenizer has threads of its own and releases the interpreter's lock. The pieces are the same, and so is the count: no
size is estimated.
"""

from __future__ import annotations

import os
import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import re2

from stepwell import limits
from stepwell.domain.checks import require_instance
from stepwell.domain.tiers.model import ENCODING
from stepwell.errors import InvalidArgument

if TYPE_CHECKING:
    from splintr import AnyTokenizer

ESTIMATE: Final = "estimate"

_VOCABULARIES: Final = (
    "o200k_base",  # OpenAI: GPT-4o and later, o1 and later, gpt-oss
    "cl100k_base",  # OpenAI: GPT-4, GPT-3.5-turbo
    "llama3",  # Meta: Llama 3 to 3.3
    "deepseek_v3",  # DeepSeek: V3, R1
    "qwen3",  # Alibaba: Qwen 2 to 3
    "mistral_v3",  # Mistral: NeMo, Large 2, Pixtral
)
"""All of them are byte-level, on which the borders and `clear_cache` rely; some other names of splintr are not."""

ENCODINGS: Final = (*_VOCABULARIES, ESTIMATE)

_BYTES_PER_TOKEN: Final = 3  # English has about 4, code about 3; an estimate should not be too low
_CUT_TOKENS: Final = 8  # a million random cuts without a border saved 4 at most
_ID_BYTES: Final = 4  # of each token, in the result for many pieces
_UNUSUAL: Final = "Größe"
_DIGITS_PER_GROUP: Final = 3  # digits are grouped from the left: a cut inside a group would shift all later groups

# No vocabulary has tokens that reach over the end of a line if the next line has text. o200k's may include slashes that
# follow. A word ends where ASCII goes on with anything but a letter; an apostrophe may belong to the word.
_BORDER: Final = re.compile(r"\n(?=[ \t]*[^\s/])|(?<=[A-Za-z])(?=[\x00-&(-@\[-`{-\x7f])")


class TokenCounter(Protocol):
    """Counts the tokens of bodies. Any number of threads may use it, and a forked child too."""

    @property
    def encoding(self) -> str:
        """The encoding that is really used: "estimate" if the requested vocabulary is not available here."""
        ...

    def count(self, body: bytes) -> int:
        """Return the number of tokens, at least 1, of any bytes."""
        ...

    def prepare(self) -> None:
        """Do now what the first count of an unusual text would do: it takes 0.1 s, and other threads go on."""
        ...


def counter(encoding: str = ENCODING) -> TokenCounter:
    """Return the counter of an encoding; there is one for each, which loads its vocabulary in 0.1 s at its first use.

    Where there is no splintr for the platform, every encoding counts as "estimate" does.
    """
    require_instance(encoding, (str,), "an encoding is a name")
    known = _counters.get(encoding)
    if known is None:
        raise InvalidArgument(f"there is no encoding {encoding!r}: give one of {', '.join(ENCODINGS)}")
    return known


def estimate_tokens(body: bytes | memoryview) -> int:
    """Return a third of the bytes, rounded up, at least 1: the last resort, for bodies that no vocabulary can count."""
    return max(1, -(-len(body) // _BYTES_PER_TOKEN))


class _Estimate:
    """Counts by the number of bytes, without a vocabulary."""

    def __init__(self) -> None:
        self.encoding: Final = ESTIMATE

    def count(self, body: bytes) -> int:
        return estimate_tokens(body)

    def prepare(self) -> None:
        """Do nothing: there is no vocabulary."""


class _Exact:
    """Counts with a vocabulary, in pieces if the text is long, and on all cores if it is very long.

    A call for one piece needs no lock: splintr holds the interpreter's lock, so that no fork can happen inside one
    either. A call for many pieces holds `_fork_lock`.
    """

    def __init__(self, encoding: str, tokenizer: AnyTokenizer) -> None:
        self.encoding: Final = encoding
        self._tokenizer: Final = tokenizer
        self._special: Final = re2.compile("|".join(map(re2.escape, tokenizer.special_tokens())))
        self._cached_chars = 0
        """Characters since the cache was cleared. A race between threads may lose some, which only delays clearing."""

    def count(self, body: bytes) -> int:
        """Return the number of tokens of a body, at least 1."""
        try:
            text = str(body, "utf-8")
        except UnicodeDecodeError:
            return estimate_tokens(body)
        return max(1, self._tokens_together(text) if _has_threads(text) else self._tokens_one_by_one(text))

    def prepare(self) -> None:
        """Have the tokenizer compile its patterns for letters outside of ASCII, without the interpreter's lock."""
        self._tokens_of_all([_UNUSUAL])

    def _tokens_one_by_one(self, text: str) -> int:
        """Return the number of tokens of a text, counted in this thread."""
        return sum(piece.extra_tokens + self._tokens(piece.text) for piece in _pieces(text))

    def _tokens_together(self, text: str) -> int:
        """Return the number of tokens of a long text, counted on all cores."""
        total, pieces = 0, _pieces(text)
        while group := [*islice(pieces, limits.COUNTED_TOGETHER_PIECES)]:
            total += sum(piece.extra_tokens for piece in group) + self._tokens_of_all([piece.text for piece in group])
        return total

    def _tokens(self, text: str) -> int:
        """Return the number of tokens of a piece."""
        self._bound_cache(len(text))
        return len(self._tokenizer.encode_ordinary(text))

    def _tokens_of_all(self, texts: Sequence[str]) -> int:
        """Return the number of tokens of many pieces.

        The call for many pieces knows special tokens. A piece that spells one out is counted by itself, because there
        it is a text.
        """
        global _threads_pid  # noqa: PLW0603 - the tokenizer's threads are those of the process, too
        spelled_out = [text for text in texts if self._special.search(text)]
        plain = [text for text in texts if not self._special.search(text)] if spelled_out else texts
        with _fork_lock:
            _threads_pid = os.getpid()
            self._bound_cache(sum(map(len, plain)))
            ids, _ = self._tokenizer.encode_batch_flat(plain)
        return len(ids) // _ID_BYTES + sum(map(self._tokens, spelled_out))

    def _bound_cache(self, chars: int) -> None:
        """Clear the tokenizer's cache before it has seen too many characters, of which `chars` are next."""
        self._cached_chars += chars
        if self._cached_chars > limits.TOKENIZER_CACHED_CHARS_MAX:
            self._cached_chars = chars
            self._tokenizer.clear_cache()


class _Piece(NamedTuple):
    """A part of a text, and the tokens to add because it was cut off where a token may have been."""

    text: str
    extra_tokens: int


def _has_threads(text: str) -> bool:
    """Return True if a text is counted on all cores: it is long, and the tokenizer's threads run in this process.

    A forked child has none of the threads that its parent had, and would wait for them for ever.
    """
    return len(text) > limits.COUNTED_ALONE_CHARS_MAX and _threads_pid in {None, os.getpid()}


def _pieces(text: str) -> Iterator[_Piece]:
    """Yield the pieces of a text, which can be counted one by one."""
    start = 0
    while len(text) - start > limits.TOKENIZED_CHARS_MAX:
        border = _BORDER.search(text, start + limits.TOKENIZED_CHARS, start + limits.TOKENIZED_CHARS_MAX)
        end = _between_groups(text, start, start + limits.TOKENIZED_CHARS_MAX) if border is None else border.end()
        yield _Piece(text[start:end], _CUT_TOKENS if border is None else 0)
        start = end
    yield _Piece(text[start:], 0)


def _between_groups(text: str, start: int, end: int) -> int:
    """Return the position at or just before `end` that is not inside a group of digits."""
    first = end
    while first > start and unicodedata.category(text[first - 1]).startswith("N"):
        first -= 1
    return end - (end - first) % _DIGITS_PER_GROUP


class _Lazy:
    """A counter that loads its vocabulary, once, at its first use."""

    def __init__(self, encoding: str) -> None:
        self._asked: Final = encoding
        self._loaded: TokenCounter | None = None

    @property
    def encoding(self) -> str:
        return self._counter().encoding

    def count(self, body: bytes) -> int:
        return self._counter().count(body)

    def prepare(self) -> None:
        self._counter().prepare()

    def _counter(self) -> TokenCounter:
        return self._loaded or self._load()

    def _load(self) -> TokenCounter:
        """Load the vocabulary, unless another thread has done so."""
        with _fork_lock:
            if self._loaded is None:
                self._loaded = _load(self._asked)
            return self._loaded


def _load(encoding: str) -> TokenCounter:
    """Return a counter with the vocabulary of an encoding, or the estimating one if splintr is not installed."""
    try:
        from splintr import Tokenizer  # noqa: PLC0415 - 38 MB, which a process that counts nothing does not need
    except ImportError:
        return _counters[ESTIMATE]
    return _Exact(encoding, Tokenizer.from_pretrained(encoding))


_counters: Final[dict[str, TokenCounter]] = {ESTIMATE: _Estimate(), **{name: _Lazy(name) for name in _VOCABULARIES}}

_threads_pid: int | None = None
"""The process in which the tokenizer has started its threads, if it has."""

_fork_lock: Final = threading.RLock()
# A fork waits until no thread is loading: its child could neither finish the import nor begin it again. And it waits
# for a call that counts many pieces: its child would have the tokenizer's cache locked for ever.
os.register_at_fork(before=_fork_lock.acquire, after_in_parent=_fork_lock.release, after_in_child=_fork_lock.release)
