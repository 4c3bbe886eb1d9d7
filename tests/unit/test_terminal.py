"""Text on a terminal: unsafe characters are escaped there, and nowhere else."""

import io
import json

import pytest

from stepwell.terminal import escape_json, escape_line, escape_terminal, is_terminal, write


class Stream(io.TextIOWrapper):
    """A stream in memory that may claim to be a terminal."""

    def __init__(self, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def text(self) -> str:
        self.seek(0)
        return self.read()


def test_what_is_escaped() -> None:
    """Control characters, and those that turn a line around, are spelled out; lines stay lines, but not in a name."""
    assert escape_terminal("a\x1b[2J\r\n\tb\x7f\x9b\u202e\ud800é") == "a\\x1b[2J\\x0d\n\tb\\x7f\\x9b\\u202e\\ud800é"
    assert escape_line("a\nb\tc") == "a\\nb\\tc"


@pytest.mark.parametrize(
    "codes",
    [
        [*range(0x09), *range(0x0B, 0x20)],
        range(0x7F, 0xA0),
        [0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)],
        [0xAD, 0x180E, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xE0001, 0xE0041],
        [0x2028, 0x2029],
        [0xD800, 0xDBFF, 0xDC00, 0xDFFF],
    ],
    ids=["C0", "C1 and DEL", "direction", "no width", "separators", "surrogates"],
)
def test_classes_of_characters(codes: list[int]) -> None:
    """Each is escaped as Python and JSON read it back, and twice is as good as once."""
    for code in codes:
        escaped = escape_terminal(f"a{chr(code)}b")
        assert escaped.isascii()
        assert escaped.isprintable()
        assert escaped.encode().decode("unicode_escape") == f"a{chr(code)}b"
        assert escape_terminal(escaped) == escaped
        if code > 0x20:
            document = json.dumps(f"a{chr(code)}b", ensure_ascii=False)
            assert escape_json(document).isascii()
            assert json.loads(escape_json(document)) == f"a{chr(code)}b"


def test_what_is_not_escaped() -> None:
    """Text of all languages, signs and emoji."""
    text = "naïve 日本語 עברית العربية 😀 ✓ → \\x1b \t\n"
    assert escape_terminal(text) == escape_json(text) == text


def test_write() -> None:
    """Escaped on a terminal; as it is elsewhere; and what an encoding does not have is spelled out."""
    terminal, pipe, latin = Stream(terminal=True), Stream(), Stream(encoding="latin-1")
    for stream in (terminal, pipe, latin):
        write(stream, "\x1b[2J\u202eä\n")
    assert terminal.text == "\\x1b[2J\\u202eä\n"
    assert pipe.text == "\x1b[2J\u202eä\n"
    assert latin.text == "\x1b[2J\\u202eä\n"
    undecodable = Stream()
    write(undecodable, "\udcff\n")
    assert undecodable.text == "\\udcff\n"


def test_is_terminal() -> None:
    """A closed stream, and none at all, are no terminals."""
    closed = io.StringIO()
    closed.close()
    assert [is_terminal(each) for each in (Stream(terminal=True), Stream(), closed, None)] == [
        True,
        False,
        False,
        False,
    ]
