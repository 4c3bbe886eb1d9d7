"""Whatever is in a file, every byte of it is in exactly one part, and each part says truly on which lines it is."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepwell
from stepwell.client.session.tokens import counter
from stepwell.domain.tiers.model import Fragment
from stepwell.domain.tiers.source_outline import part_ids
from stepwell.ingest.split import Part, split
from stepwell.ingest.splitters.headings import HEADINGS
from stepwell.ingest.splitters.languages import LANGUAGES
from stepwell.ingest.splitters.turns import ENDINGS
from stepwell.ingest.splitters.windows import DEFINITION_BYTES_MAX, PART_BYTES_MAX

SUFFIXES = sorted(
    {suffix for language in LANGUAGES for suffix in language.suffixes} | {*HEADINGS} | {*ENDINGS} | {".txt", ""}
)
SOURCES = st.sampled_from(SUFFIXES).map(lambda suffix: f"x{suffix}" if suffix.startswith(".") else suffix or "x")

# What the splitters look for, in small parts, so that a text has much of it in every wrong place.
SIGNS = "\n\r\t #=-*`~.(){}[]<>:;,@/'\"\\é🙂\x0b\x0c\x85\u2028"
WORDS = """
    def f():|class C:|# Title|```|---|=====|function f() {|fn f() {|impl X for Y {|func (s *S) F() {|[section]
    |key: value|public int f(int x) {|import a.b|@deco|return 1|{"speaker": "A", "text": "b"}
"""
LONG = ["x" * 300, "y" * (PART_BYTES_MAX + 10), "word " * 100, "日本" * 100]
PIECES = st.sampled_from([*SIGNS, "\n\n", "\r\n", "    ", *map(str.strip, WORDS.split("|")), *LONG])
TEXTS = st.lists(PIECES, max_size=60).map("".join)


def check(source: str, data: bytes) -> list[Part]:
    """All of it, in order, on the lines that are said; and under ids and with metadata that can be stored."""
    found = split(source, data)
    assert b"".join(data[part.start : part.end] for part in found) == data
    assert [part.outline.order for part in found] == [*range(len(found))]
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for part, part_id in zip(found, part_ids(source, (part.label for part in found)), strict=True):
        assert part.outline.lines is not None
        first, last = part.outline.lines
        assert starts[first - 1] <= part.start < starts[first]
        assert starts[last - 1] < part.end <= starts[last]
        assert 0 < part.end - part.start <= DEFINITION_BYTES_MAX
        body = data[part.start : part.end].decode()
        Fragment(fragment_id=part_id, body=body, source=source, kind=part.kind, metadata=part.outline.metadata())
    return found


@given(SOURCES, TEXTS)
def test_texts_of_pieces(source: str, text: str) -> None:
    check(source, text.encode())


@given(SOURCES, st.text(max_size=300))
def test_any_text(source: str, text: str) -> None:
    check(source, text.encode())


@given(SOURCES, TEXTS)
def test_the_same_text_has_the_same_parts(source: str, text: str) -> None:
    assert split(source, text.encode()) == split(source, text.encode())


def own_files() -> list[Path]:
    return sorted(Path(stepwell.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize("suffix", [".py", ".js", ".c", ".md", ".txt"])
def test_real_files(suffix: str) -> None:
    """This package, as what it is and as what it is not."""
    for path in own_files():
        check(f"x{suffix}", path.read_bytes())


@given(st.sampled_from(own_files()), st.integers(0, 20_000), st.integers(0, 200), TEXTS)
def test_files_that_somebody_is_editing(path: Path, at: int, removed: int, text: str) -> None:
    """With something taken out, and something else put in: syntax errors and all."""
    before = path.read_text()
    check("x.py", (before[:at] + text + before[at + removed :]).encode())


def test_parts_are_of_a_readable_size() -> None:
    """Of this package: hardly any has fewer than 20 tokens, or more than 1,000."""
    count = counter().count
    sizes: list[int] = []
    for path in own_files():
        data = path.read_bytes()
        sizes += [count(data[part.start : part.end]) for part in split("x.py", data)]
    sizes.sort()
    assert sizes[len(sizes) * 3 // 100] >= 20
    assert sizes[-1 - len(sizes) // 200] <= 1_000
