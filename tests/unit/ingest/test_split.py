"""Where files are split: at definitions, headings and turns, into parts of a readable size."""

import json
import sys
import time
import warnings

import pytest

from stepwell import limits
from stepwell.ingest.splitters.grammars import grammar_of
from stepwell.ingest.splitters.languages import LANGUAGES, ending, language_of
from stepwell.ingest.splitters.lines import Border, Lines, stretches
from stepwell.ingest.splitters.windows import PART_BYTES_MAX
from tests.support.ingest import BODY, FILLER, lines, named, parts

LONG = f"{FILLER}\n" * 40
INDENTED = "    " + BODY


def test_python() -> None:
    """Definitions, with the comments and decorators right above them; imports together."""
    text = (
        f'"""{FILLER}"""\n\nimport os\nimport sys\n\n'
        f"# why\n@cache\ndef f():\n{BODY}\n\nasync def g():\n{BODY}\n"
        f"X = {FILLER!r}\n'''What X is.'''\nY: int = {FILLER!r}\n"
    )
    found = named("a.py", text)
    assert [*found] == ["", "f", "g", "X, Y"]
    assert found["f"].startswith("# why\n@cache\ndef f")
    assert found["X, Y"].count("What X is.") == 1


def test_a_small_class_is_one_part() -> None:
    text = f"class C:\n    x = 1\n\n    def m(self):\n{INDENTED}"
    assert [*named("a.py", text)] == ["C"]


def test_a_large_class_is_its_header_and_its_methods() -> None:
    """Attributes before the first method belong to the header; names are qualified, those of nested classes too."""
    method = f"    def {{}}(self):\n{INDENTED}{INDENTED}\n"
    text = (
        f"class C(Base):\n    '''{FILLER}{FILLER}'''\n    x: int = 1\n\n"
        + "".join(method.format(name) for name in "abc")
        + f"    after = '{FILLER}{FILLER}'\n\n    class D:\n"
        + "".join("    " + line for line in method.format("e").splitlines(keepends=True)) * 3
    )
    found = named("a.py", text)
    assert [*found] == ["C", "C.a", "C.b", "C.c", "C.after, C.D", "C.D.e"]
    assert "x: int = 1" in found["C"]


def test_tiny_members_share_a_part() -> None:
    """Short functions stand together, with both names."""
    found = named("a.py", "def f():\n    return 1\n\n\ndef g():\n    return 2\n")
    assert [*found] == ["f, g"]


def test_python_with_a_mistake_is_split_all_the_same() -> None:
    """By its lines, if the syntax tree cannot be had."""
    text = f"def f(:\n{BODY}\nclass C:\n    def m(self):\n{INDENTED}{INDENTED}"
    assert [*named("a.py", text)] == ["f", "C"]


@pytest.mark.parametrize(
    "data", [b"\xef\xbb\xbfx = 1\n", b"x = 1\r\ny = 2\r\n", b"x = 1\ry = 2\r", b"", b"\n\n", b"\x0c\n"]
)
def test_whatever_ends_its_lines(data: bytes) -> None:
    assert "".join(body for _, body in parts("a.py", data.decode())) == data.decode()


def test_other_peoples_warnings_stay_theirs() -> None:
    """What Python has to say about an escape sequence in a file is not said, and nothing else is silenced."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parts("a.py", "x = '\\d'\n")
        warnings.warn("mine", stacklevel=1)
    assert [str(each.message) for each in caught] == ["mine"]


def test_deep_nesting() -> None:
    """What no parser can read is split by its lines."""
    parts("a.py", "x = " + "(" * 5_000 + ")" * 5_000 + "\n")
    parts("a.py", "x = " + "-" * 50_000 + "1\n")


EXAMPLES: dict[str, tuple[str, list[str]]] = {
    "a.ts": (
        """
/** Says. */
export class Thing extends Base {
  run(a: number): void {
    LONG
  }

  async stop() {
    TEXT
  }
}

export function free(x) {
  TEXT
}
export const arrow = (b) => {
  TEXT
};
""",
        ["Thing", "Thing.run", "Thing.stop", "free", "arrow"],
    ),
    "a.go": (
        """
type Server struct {
	TEXT
}

// Run runs.
func (s *Server) Run() error {
	TEXT
}
func main() {
	TEXT
}
""",
        ["Server", "Server.Run", "main"],
    ),
    "a.rs": (
        """
pub struct Well {
    TEXT
}

impl<T> Draw for Well {
    /// Draws.
    pub fn draw(&self) {
        LONG
    }
    fn fill(&self) {
        TEXT
    }
}
""",
        ["Well", "Well::draw", "Well::fill"],
    ),
    "A.java": (
        """
public class A {
    private int x;

    @Override
    public String toString() {
        LONG
    }
    static <T> int count(List<T> items) throws E {
        TEXT
    }
}
""",
        ["A", "A.toString", "A.count"],
    ),
    "a.c": (
        """
/* Adds. */
static int
add(int a, int b)
{
    TEXT
}

int main (void) {
    TEXT
}
""",
        ["add", "main"],
    ),
    "a.cpp": (
        """
int Well::draw(const std::string& name) {
    TEXT
}

void free_one() {
    TEXT
}
""",
        ["Well::draw", "free_one"],
    ),
    "a.rb": (
        """
class K
  def hello(name)
    LONG
  end

  def self.build(x)
    TEXT
  end
end
""",
        ["K", "K.hello", "K.build"],
    ),
    "a.sh": ("build() {\n  TEXT\n}\n\nfunction deploy {\n  TEXT\n}\n", ["build", "deploy"]),
    "a.sql": ("CREATE TABLE IF NOT EXISTS t (\n  TEXT\n);\ncreate or replace view v as\n  TEXT;\n", ["t", "v"]),
    "a.toml": ("[one]\nx = 'TEXT'\n\n[[two.three]]\nx = 'TEXT'\n", ["one", "two.three"]),
    "a.yaml": ("one:\n  - TEXT\ntwo:\n  x: TEXT\n", ["one", "two"]),
}
"""Texts, and what is defined there."""


@pytest.mark.parametrize("source", EXAMPLES)
def test_other_languages(source: str) -> None:
    """By syntax trees or by lines that look like definitions; methods of a large class are parts of their own."""
    text, expected = EXAMPLES[source]
    grammar = grammar_of(ending(source))
    mark = "" if grammar is None else "# " if "ruby" in grammar.module or "bash" in grammar.module else "// "
    filler, long = mark + 2 * FILLER, "".join(f"{mark}{line}\n" for line in LONG.splitlines())
    text = text.lstrip().replace("TEXT", filler).replace("LONG", long)
    names = [name for part, _ in parts(source, text) for name in part.outline.name.split(", ")]
    assert [*dict.fromkeys(names)] == expected


def test_what_only_looks_like_a_definition() -> None:
    """Control statements and calls are none."""
    inside = (
        f'    if (x) {{\n        g(1,\n"{FILLER}");\n    }} else if (y) {{\n    return h(\n"{FILLER}"\n);\n    }}\n'
    )
    text = f"void f() {{\n{inside}{inside}}}\n"
    assert [*named("a.c", text)] == ["f"]


def test_every_language_has_patterns_that_compile() -> None:
    for language in LANGUAGES:
        for suffix in language.suffixes:
            source = suffix if not suffix.startswith(".") else f"x{suffix}"
            assert language_of(source) is language
            parts(source, LONG)


HOSTILE = [
    "a" + "*" * 290 + "\n",
    "a " * 140 + "\n",
    "class " + "<" * 280 + "\n",
    "template <" * 28 + "\n",
    "impl<" + "> for " * 45 + "\n",
    "# " + " " * 290 + "x\n",
    "pub " * 70 + "\n",
    "x" + "::x" * 95 + "\n",
    "[a" * 140 + "\n",
    "`" * 290 + "\n",
    "](" * 140 + "\n",
]


@pytest.mark.parametrize("source", ["a.c", "a.java", "a.ts", "a.rs", "a.go", "a.py", "a.md", "a.rst", "Dockerfile"])
def test_no_line_keeps_a_pattern_busy(source: str) -> None:
    """A text that was made to be hard takes about as long as any other."""
    begun_s = time.process_time()
    for line in HOSTILE:
        parts(source, line * 20)
    assert time.process_time() - begun_s < 5.0


def test_markdown() -> None:
    """Each part is called by its headings; what is in a block of code is no heading."""
    text = (
        f"---\ntitle: x\n---\nIntro {FILLER}{FILLER}\n\n# Design\n\n{FILLER}{FILLER}\n\n```sh\n# no heading\n```\n\n"
        f"## Layout ##\n\n{FILLER}{FILLER}\n\nOther\n-----\n\n{FILLER}{FILLER}\n\n# End\n\n{FILLER}{FILLER}\n"
    )
    assert [*named("a.md", text)] == ["", "Design", "Design > Layout", "Design > Other", "End"]


def test_a_heading_without_text_stays_with_what_follows() -> None:
    assert [*named("a.md", f"# Title\n\n## Part\n\n{FILLER}{FILLER}\n")] == ["Title"]


def test_restructured_text() -> None:
    """Levels are what the order of the ornaments says."""
    text = (
        f"=====\nTitle\n=====\n\n{FILLER}{FILLER}\n\nPart\n----\n\n{FILLER}{FILLER}\n\nSub\n~~~\n\n{FILLER}{FILLER}\n\n"
        f"Next\n----\n\n{FILLER}{FILLER}\n"
    )
    assert [*named("a.rst", text)] == ["Title", "Title > Part", "Title > Part > Sub", "Title > Next"]


@pytest.mark.parametrize("source, mark", [("a.adoc", "="), ("a.org", "*")])
def test_other_headings(source: str, mark: str) -> None:
    text = f"{mark} One\n\n{FILLER}{FILLER}\n\n{mark * 2} Two\n\n{FILLER}{FILLER}\n"
    assert [*named(source, text)] == ["One", "One > Two"]


def test_turns() -> None:
    """One part for each, whoever says it, however short; the speaker is known."""
    turns = [
        {"speaker": "Alice", "text": "Yes."},
        {"role": "user", "content": [{"type": "text", "text": "No."}]},
        {"type": "assistant", "message": {"role": "assistant", "content": "Perhaps."}},
        {"from": "\ud800 x", "value": "odd"},
    ]
    text = "\n\n".join(map(json.dumps, turns)) + "\nnot json\n"
    found = parts("a.jsonl", text)
    assert {part.kind for part, _ in found} == {"turn"}
    assert [part.outline.speaker for part, _ in found] == ["Alice", "user", "assistant", "", ""]
    assert [part.outline.lines for part, _ in found] == [(1, 2), (3, 4), (5, 6), (7, 7), (8, 8)]


def test_lines_of_json_that_are_no_conversation() -> None:
    """They share parts, like any text."""
    found = parts("a.jsonl", '{"x": 1}\n' * 200)
    assert {part.kind for part, _ in found} == {"text"}
    assert len(found) == 1


def test_a_conversation_without_end_is_split_by_size() -> None:
    turn = '{"speaker": "A", "text": "x"}\n'
    turns_max = limits.INGEST_TURNS_MAX
    assert len(parts("a.jsonl", turn * turns_max)) == turns_max
    assert len(parts("a.jsonl", turn * (turns_max + 1))) < turns_max


def test_windows() -> None:
    """A text without structure is cut at blank lines, and no part is too large."""
    paragraph = f"{FILLER}\n" * 5 + "\n"
    found = parts("a.txt", paragraph * 20)
    assert all(body.startswith(FILLER) and body.endswith("\n\n") for _, body in found)
    assert all(600 <= len(body) <= PART_BYTES_MAX for _, body in found)


def test_a_large_definition_is_cut_at_the_least_indented_lines() -> None:
    """A function of a usual size is one part, whatever it has inside."""
    block = "    if x:\n" + f"        print({FILLER!r})\n" * 6
    assert len(parts("a.py", "def f():\n" + block * 12)) == 1
    found = parts("a.py", "def f():\n" + block * 24)
    assert len(found) > 4
    assert {part.outline.name for part, _ in found} == {"f"}
    assert all(body.startswith(("def", "    if x")) for _, body in found)


@pytest.mark.parametrize("letter", ["x", "é", "日", "🙂", "x "])
def test_a_line_without_end_is_cut_between_characters(letter: str) -> None:
    """Each part of it is on that line, and is text."""
    found = parts("a.txt", letter * 5_000)
    assert len(found) > 1
    assert {part.outline.lines for part, _ in found} == {(1, 1)}
    assert all(len(body.encode()) <= PART_BYTES_MAX for _, body in found)


def test_lines_are_where_the_parts_are() -> None:
    text = f"def f():\n{BODY}\n\ndef g():\n{BODY}"
    assert lines("a.py", text) == [(1, 4), (5, 6)]


def test_ids_are_by_the_first_name() -> None:
    (part, _), *_ = parts("a.py", "def f():\n    return 1\n\n\ndef g():\n    return 2\n")
    assert part.label == "f"


def test_many_names_are_as_many_as_fit() -> None:
    text = "".join(f"constant_number_{number} = {number}\n" for number in range(30))
    name = parts("a.py", text)[0][0].outline.name
    assert len(name) <= limits.OUTLINE_NAME_CHARS_MAX
    assert all(each.startswith("constant_number_") for each in name.split(", "))


def test_borders_that_make_no_sense() -> None:
    """Whoever says where a part begins cannot lose a byte by it."""
    text = Lines(b"a\nb\nc\n")
    wrong = [Border(2, "x"), Border(1, "y"), Border(2, "z"), Border(9, "w")]
    found = [(each.first, each.last, each.names) for each in stretches(text, wrong)]
    assert found == [(0, 2, []), (2, 3, ["x"])]


def test_the_recursion_limit_is_left_alone() -> None:
    before = sys.getrecursionlimit()
    parts("a.py", "x = " + "[" * 150 + "]" * 150)
    assert sys.getrecursionlimit() == before


@pytest.mark.parametrize(
    "source, piece",
    [("a.php", "<?php class A {"), ("a.js", "a(b,"), ("a.ts", "class A{"), ("a.rb", "class A\n"), ("a.c", "#if X\n")],
)
def test_no_nesting_keeps_a_parser_busy(source: str, piece: str) -> None:
    """A program that was made to be hard is split by size alone, or takes about as long as any other."""
    begun_s = time.process_time()
    assert len(parts(source, ")]}" * 20_000 + piece * 20_000)) > 1
    assert time.process_time() - begun_s < 5.0
