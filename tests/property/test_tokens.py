"""Counts are exact, offline, and never less than what is sent."""

import contextlib
import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from string import ascii_letters, ascii_lowercase, digits, printable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from splintr import AnyTokenizer, Tokenizer

import stepwell
from stepwell import limits
from stepwell.client.session import tokens
from stepwell.client.session.tokens import ENCODINGS, ESTIMATE, counter, estimate_tokens
from stepwell.domain.tiers.model import ENCODING
from stepwell.errors import InvalidArgument
from tests.support.processes import in_forked_child
from tests.support.seeds import seeded

VOCABULARIES = [encoding for encoding in ENCODINGS if encoding != ESTIMATE]
THREADS = 8

# What decides where a token ends, in small parts: a text made of them has a border nearly everywhere.
PARTS = st.sampled_from(
    [*"\n\t aB7é./'\"{_\0\x85\xa0\u0301\u2028\u02bcª½🙂", "\r\n", "  ", "word", "Word", "日本", "12345", "٣٤", "//"]
)


class Recording(tokens._Exact):
    """Keeps the pieces in which it counts."""

    def __init__(self) -> None:
        super().__init__(ENCODING, Tokenizer.from_pretrained(ENCODING))
        self.pieces: list[str] = []

    def _tokens(self, text: str) -> int:
        self.pieces.append(text)
        return super()._tokens(text)


@functools.cache
def tokenizer(encoding: str) -> AnyTokenizer:
    """One of splintr's own, to compare with."""
    return Tokenizer.from_pretrained(encoding)


def sources() -> str:
    """Real text, longer than a piece: this package, with its indentation."""
    files = sorted(Path(stepwell.__file__).parent.rglob("*.py"))
    return "".join(file.read_text() for file in files)[:300_000]


def shuffled(letters: str) -> Callable[[Random], str]:
    return lambda random: "".join(random.choices(letters, k=150_000))


@pytest.fixture(params=["alone", "together"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All long texts are counted in one thread, or all of them on all cores, in groups of a few pieces."""
    together = request.param == "together"
    monkeypatch.setattr(limits, "COUNTED_ALONE_CHARS_MAX", limits.TOKENIZED_CHARS_MAX if together else 2**40)
    monkeypatch.setattr(limits, "COUNTED_TOGETHER_PIECES", 3)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has counted yet."""
    fresh = {name: tokens._Lazy(name) if name in VOCABULARIES else known for name, known in tokens._counters.items()}
    monkeypatch.setattr(tokens, "_counters", fresh)


@pytest.fixture
def without_splintr(unloaded: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - only to come first
    """A platform for which there is no wheel."""
    monkeypatch.setitem(sys.modules, "splintr", None)


@pytest.mark.parametrize(
    "text, cl100k_base, o200k_base",
    [
        ("hello world", 2, 2),
        ("tiktoken is great!", 6, 6),
        ("antidisestablishmentarianism", 6, 6),
        ("2 + 2 = 4", 7, 7),
        ("お誕生日おめでとう", 9, 8),
        ("👍", 3, 1),
        ("rer", 1, 1),
        ("'rer", 2, 2),
        ("today\n ", 3, 3),
        ("today\n \n", 2, 2),
        (" \x850", 4, 4),
    ],
)
def test_published_counts(text: str, cl100k_base: int, o200k_base: int) -> None:
    """What OpenAI's tokenizer says in its own tests and in its cookbook; o200k's of the last six are splintr's."""
    assert counter("cl100k_base").count(text.encode()) == cl100k_base
    assert counter("o200k_base").count(text.encode()) == o200k_base


def test_encodings_are_distinct_vocabularies() -> None:
    """Each loads offline, says which it is, and counts the same text its own way."""
    text = "12345678 日本語 naïveté 👍🏽 здравствуйте\n \n"
    assert {counter(encoding).encoding: counter(encoding).count(text.encode()) for encoding in ENCODINGS} == {
        "o200k_base": 14,
        "cl100k_base": 22,
        "llama3": 18,
        "deepseek_v3": 16,
        "qwen3": 24,
        "mistral_v3": 26,
        "estimate": 22,
    }


def test_default_encoding() -> None:
    """The default is one of the known, and the same counter each time."""
    assert ENCODING in VOCABULARIES
    assert counter() is counter(ENCODING)


@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_special_tokens_are_text(encoding: str) -> None:
    """A special token that is spelled out counts as its letters: as itself it would count 1."""
    for special in Tokenizer.from_pretrained(encoding).special_tokens():
        assert counter(encoding).count(special.encode()) > 1
    assert counter(encoding).count(b"<|endoftext|>") == 7


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_empty_body_counts_one(encoding: str) -> None:
    """Nothing costs nothing only if it is not kept."""
    assert counter(encoding).count(b"") == 1


@pytest.mark.parametrize("body", [b"\xff" * 30, b"hello world, caf\xe9 and so on", b"\xed\xa0\x80", b"\xf0\x9f\x98"])
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_not_utf8_is_estimated(encoding: str, body: bytes) -> None:
    """There is no text to count: neither latin-1, nor a lone surrogate, nor half a character is UTF-8."""
    assert counter(encoding).count(body) == estimate_tokens(body)


@pytest.mark.parametrize("length, expected", [(0, 1), (1, 1), (3, 1), (4, 2), (6, 2), (7, 3), (3_000_001, 1_000_001)])
def test_estimate(length: int, expected: int) -> None:
    """A third of the bytes, rounded up, at least 1."""
    assert estimate_tokens(bytes(length)) == counter(ESTIMATE).count(bytes(length)) == expected


@pytest.mark.parametrize("encoding", ["", "gpt-4o", "O200K_BASE", "o200k_base ", "llama2"])
def test_unknown_encoding_is_refused(encoding: str) -> None:
    """The refusal lists what there is; splintr's other names are not among it."""
    with pytest.raises(InvalidArgument, match=r"give one of o200k_base, cl100k_base, .*, estimate"):
        counter(encoding)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(body=st.binary() | st.text().map(str.encode) | st.lists(PARTS).map(lambda parts: "".join(parts).encode()))
def test_anything_counts(encoding: str, body: bytes) -> None:
    """At least 1 for any bytes, and the same each time."""
    count = counter(encoding).count(body)
    assert count >= 1
    assert counter(encoding).count(body) == count


@pytest.mark.parametrize("encoding", VOCABULARIES)
@given(parts=st.lists(PARTS, min_size=2))
@example(["I'm"])
@example([";\n\n//"])
def test_borders_are_exact(encoding: str, parts: list[str]) -> None:
    """At a border, what comes before and what comes after have together the very tokens of the whole."""
    encode = tokenizer(encoding).encode_ordinary
    text = "".join(parts)
    for border in tokens._BORDER.finditer(text):
        assert encode(text[: border.end()]) + encode(text[border.end() :]) == encode(text)


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_long_text_is_counted_exactly(encoding: str) -> None:
    """The pieces of real text, and of what has no spaces but other borders, add up to the whole."""
    random = seeded(1)
    for text in (sources(), shuffled(ascii_letters + digits)(random), shuffled(printable)(random)):
        assert counter(encoding).count(text.encode()) == len(tokenizer(encoding).encode_ordinary(text))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _: "a" * 200_000, id="one letter"),
        pytest.param(lambda _: " " * 200_000, id="spaces"),
        pytest.param(lambda _: "\n" * 200_000, id="newlines"),
        pytest.param(lambda _: "\0" * 200_000, id="null bytes"),
        pytest.param(lambda _: "e" + "\u0301" * 150_000, id="combining marks"),
        pytest.param(shuffled(ascii_lowercase), id="letters"),
        pytest.param(shuffled(digits), id="digits"),
        pytest.param(shuffled("٠١٢٣٤٥٦٧٨٩½"), id="digits that are several tokens each"),
        pytest.param(lambda _: "२०७" * 50_000, id="digits that are a token if grouped from the first"),
        pytest.param(lambda _: "७२०" * 50_000, id="digits that are a token if grouped from the second"),
        pytest.param(shuffled("日本語中文字漢"), id="ideographs"),
        pytest.param(shuffled("👩\u200d👧🙂🏽"), id="emoji"),
        pytest.param(shuffled(" \n\t/."), id="spaces and signs"),
    ],
)
@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("encoding", VOCABULARIES)
def test_text_without_borders_never_counts_less(encoding: str, make: Callable[[Random], str]) -> None:
    """Cut where it has no border, a text counts a few more for each cut than it has, and never less."""
    text = make(seeded(2))
    whole = len(tokenizer(encoding).encode_ordinary(text))
    cuts = len(text) // limits.TOKENIZED_CHARS
    assert whole <= counter(encoding).count(text.encode()) <= whole + 2 * tokens._CUT_TOKENS * cuts


KINDS = st.sampled_from(
    [
        "def f(a):\n    return {'a': [a, 1.5]}\n",
        "A sentence of several words, and another one. ",
        '{"id": 12345, "at": "2026-01-31T23:59:59Z"}\n',
        "aGVsbG8gd29ybGQsIHRoaXMgaXMgYmFzZTY0",
        "日本語の文章です。",
        "0123456789",
        "x",
        " \t",
        "\r\n",
        "🙂\u200d",
        "<|endoftext|>",
        "</s>[INST]",
        "<think>",
        "<\uff5cUser\uff5c>",
    ]
)


@pytest.mark.parametrize("encoding", VOCABULARIES)
@settings(max_examples=25)
@given(parts=st.lists(st.tuples(KINDS, st.integers(1, 3_000)), min_size=1, max_size=8))
def test_all_cores_count_as_one_thread(encoding: str, parts: list[tuple[str, int]]) -> None:
    """The same for any mixture of kinds of text, also where special tokens are spelled out; and no less than it has."""
    text = "".join(kind * times for kind, times in parts)
    counting = tokens._Exact(encoding, tokenizer(encoding))
    count = counting._tokens_together(text)
    assert count == counting._tokens_one_by_one(text)
    assert count >= len(tokenizer(encoding).encode_ordinary(text))


def test_only_long_texts_are_counted_on_all_cores() -> None:
    """No piece of them is counted in the caller's thread, where it would hold up all others, except for a special
    token that is spelled out.
    """
    recording = Recording()
    short, long = ("word " * (limits.COUNTED_ALONE_CHARS_MAX // 5 + more) for more in (0, 1))
    assert (len(short), len(long) > limits.COUNTED_ALONE_CHARS_MAX) == (limits.COUNTED_ALONE_CHARS_MAX // 5 * 5, True)
    assert recording.count(short.encode()) + 1 == recording.count(long.encode())
    assert "".join(recording.pieces) == short
    recording.pieces.clear()
    spelled = f"{long}<|endoftext|>"
    assert recording.count(spelled.encode()) == len(tokenizer(ENCODING).encode_ordinary(spelled))
    (spelled_out,) = recording.pieces
    assert spelled_out.endswith("<|endoftext|>")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_waits_for_all_cores() -> None:
    """A child that is forked while threads count, or after they have, counts by itself, and to the same result."""
    text = ("a line of text\n" * (limits.COUNTED_ALONE_CHARS_MAX // 10)).encode()
    expected, forked = counter().count(text), threading.Event()

    def count() -> None:
        while not forked.is_set():
            assert counter().count(text) == expected

    def child() -> None:
        assert counter().count(text) == expected

    with ThreadPoolExecutor(2) as pool:
        counts = [pool.submit(count) for _ in range(2)]
        try:
            for _ in range(5):
                in_forked_child(child)
        finally:
            forked.set()
        for each in counts:
            each.result()


@pytest.mark.parametrize("text", [sources(), "a" * 1_000_000, "1" * 1_000_000, "\n \n" * 300_000, "日\n" * 200_000])
def test_pieces_are_bounded(text: str) -> None:
    """No call of the tokenizer, which holds up all threads, is longer than a piece; together they are the text."""
    recording = Recording()
    recording.count(text.encode())
    assert max(map(len, recording.pieces)) <= limits.TOKENIZED_CHARS_MAX
    assert "".join(recording.pieces) == text


def test_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What splintr remembers is dropped before it is more than so many characters, however long its entries are."""
    monkeypatch.setattr(limits, "TOKENIZER_CACHED_CHARS_MAX", 100_000)
    random = seeded(3)
    vocabulary = Tokenizer.from_pretrained(ENCODING)
    counting = tokens._Exact(ENCODING, vocabulary)
    most = 0
    for _ in range(1_000):
        counting.count("".join(random.choices(ascii_lowercase, k=1_000)).encode())
        most = max(most, vocabulary.cache_len)
    assert 50 <= most <= 100


def test_importing_loads_no_vocabulary() -> None:
    """Neither the import nor the choice of an encoding loads anything; the first count does."""
    program = """
import sys, stepwell
from stepwell.client.session.tokens import counter
chosen = counter("cl100k_base")
assert "splintr" not in sys.modules
assert chosen.count(b"hello world") == 2
assert "splintr" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.usefixtures("without_splintr")
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_without_splintr_everything_is_estimated(encoding: str) -> None:
    """The last resort counts, and says that it is an estimate."""
    assert counter(encoding).count(b"hello world") == estimate_tokens(b"hello world") == 4
    assert counter(encoding).encoding == ESTIMATE


@pytest.mark.usefixtures("unloaded")
@pytest.mark.parametrize("synchronised", [True, False], ids=["synchronised", "unsynchronised twin"])
def test_many_threads_load_once(monkeypatch: pytest.MonkeyPatch, *, synchronised: bool) -> None:
    """However many threads count first at once, one loads and the others wait for it; without the lock, several do."""
    load, together, loads = tokens._load, threading.Barrier(2), list[str]()
    started = threading.Barrier(THREADS)

    def slow(encoding: str) -> tokens.TokenCounter:
        loads.append(encoding)
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait(0.2)  # for another that loads too
        return load(encoding)

    def count(_: int) -> int:
        started.wait()
        return counter().count(b"hello world")

    monkeypatch.setattr(tokens, "_load", slow)
    if not synchronised:
        monkeypatch.setattr(tokens, "_fork_lock", contextlib.nullcontext())
    with ThreadPoolExecutor(THREADS) as pool:
        assert [*pool.map(count, range(THREADS))] == [2] * THREADS
    assert (len(loads) == 1) == synchronised


def test_many_threads_count_alike() -> None:
    """One counter serves all threads, also while one of them has the cache cleared."""
    random = seeded(4)
    bodies = ["".join(random.choices(printable, k=2_000)).encode() for _ in range(20)]
    expected = [len(tokenizer(ENCODING).encode_ordinary(body.decode())) for body in bodies]
    counting = tokens._Exact(ENCODING, Tokenizer.from_pretrained(ENCODING))

    def count(turn: int) -> list[int]:
        if turn % 3 == 0:
            counting._cached_chars = limits.TOKENIZER_CACHED_CHARS_MAX
        return [*map(counting.count, bodies)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert [*pool.map(count, range(50))] == [expected] * 50


@pytest.mark.usefixtures("unloaded")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_fork_waits_for_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that is forked while another thread loads has what was loaded, and no lock that nobody will release."""
    load, loading, never = tokens._load, threading.Event(), threading.Event()
    counting = tokens._Lazy(ENCODING)

    def slow(encoding: str) -> tokens.TokenCounter:
        loading.set()
        never.wait(0.2)  # long enough for the fork to begin
        return load(encoding)

    def child() -> None:
        assert counting._loaded is not None
        assert counting.count(b"hello world") == 2
        monkeypatch.setattr(tokens, "_load", load)
        assert counter("llama3").count(b"hello world") == 2

    monkeypatch.setattr(tokens, "_load", slow)
    thread = threading.Thread(target=counting.count, args=[b""])
    thread.start()
    loading.wait()
    in_forked_child(child)
    thread.join()
