"""Fields: which texts of a fragment a word is found in, and how much it counts there."""

import pytest

from stepwell.strategies.index.words.fields import Field, Weights, fields_of, has_same_fields
from tests.support.strategy_views import Store

WEIGHTS = Weights()


@pytest.mark.parametrize(
    "source, body, expected",
    [
        (
            "a.py",
            '@deco\ndef f(a: int = 1) -> str:\n    """Say it."""\n    x = go("now")  # quickly\n',
            (
                "@deco def f(a: int = 1) -> str:",
                '"""Say it."""',
                "x = go( )",
                '"now"',
                "# quickly",
            ),
        ),
        (
            "a.js",
            "/** Say it. */\nexport function f(a) {\n  // quickly\n  return go('now') + `${a}`\n}\n",
            (
                "export function f(a) {",
                "/** Say it. */",
                "return go( ) + }",
                "'now' `${a}`",
                "// quickly",
            ),
        ),
        (
            "a.rs",
            "/// Say it.\nfn f<'a>(s: &'a str) {\n  go(\"now\"); // quickly\n}\n",
            (
                "fn f<'a>(s: &'a str) {",
                "/// Say it.",
                "go( ); }",
                '"now"',
                "// quickly",
            ),
        ),
        (
            "a.sh",
            '# Say it.\nf() {\n  go "now" $# # quickly\n}\n',
            (
                "f() {",
                "# Say it.",
                "go $# }",
                '"now"',
                "# quickly",
            ),
        ),
        ("a.sql", "-- Say it.\nSELECT f\nFROM t -- quickly\n", ("SELECT f", "-- Say it.", "FROM t", "", "-- quickly")),
    ],
)
def test_programs(source: str, body: str, expected: tuple[str, str, str, str, str]) -> None:
    """Signature, documentation, code, strings and comments are told apart in every family of languages."""
    signature, docstring, code, strings, comments = expected
    found = fields(body, source)
    assert text_of(found, WEIGHTS.docstring) == docstring
    assert text_of(found, WEIGHTS.code) == code
    assert text_of(found, WEIGHTS.comments) == comments
    assert [each for each in texts_of(found, WEIGHTS.signature) if each] == [
        each for each in (signature, strings) if each
    ]


def fields(body: str | bytes, source: str, kind: str = "code", **metadata: str) -> list[Field]:
    store = Store()
    store.store("part", body, source=source, kind=kind, metadata=metadata)
    seen = store.view().get("part")
    assert seen is not None
    return [*fields_of(seen.row, seen.body, WEIGHTS)]


def texts_of(found: list[Field], weight: int) -> list[str]:
    return [" ".join(each.text.decode().split()) for each in found if each.weight == weight]


def text_of(found: list[Field], weight: int) -> str:
    (text,) = texts_of(found, weight)
    return text


def test_every_byte_of_a_body_is_in_one_field() -> None:
    """Whatever is wrong with a text, no word of it is lost."""
    for source in ("a.py", "a.c", "a.rs", "a.php", "a.rb", "a.lua", "a.txt"):
        for body in ('x "open\ny', "'''never closed", "/* never closed", "def f(", "# only", "", "`a` 'b' \"c\""):
            found = b" ".join(each.text for each in fields(body, source) if each.is_body)
            assert sorted(found.split()) == sorted(b" ".join(found.split()).split())
            assert {*"".join(body.split())} <= {*found.decode()}


def test_names() -> None:
    """Path, name and speaker stand beside the body; the id of a part repeats them, any other counts."""
    found = fields("text", "docs/a.md", "markdown", name="Design > Layout", speaker="Ada")
    beside = {each.weight: each.text for each in found if not each.is_body}
    assert beside == {
        WEIGHTS.path: b"docs/a.md",
        WEIGHTS.fragment_id: b"part",
        WEIGHTS.name: b"Design > Layout",
        WEIGHTS.speaker: b"Ada",
    }
    assert text_of(found, WEIGHTS.prose) == "text"


def test_a_body_that_is_no_text_has_no_field() -> None:
    assert not any(each.text for each in fields(b"\xff\xfe", "a.py") if each.is_body)


def test_rows_with_the_same_fields() -> None:
    """The lines of a part and its tier say nothing about its words; its name, its kind and its references do."""
    store = Store()
    first = store.store("a", "x", kind="code", metadata={"name": "f", "lines": "1-2"})
    moved = store.store("a", "x", kind="code", metadata={"name": "f", "lines": "3-4"})
    renamed = store.store("a", "x", kind="code", metadata={"name": "g", "lines": "3-4"})
    prose = store.store("a", "x", kind="text", metadata={"name": "g", "lines": "3-4"})
    note = store.store("a", "x", kind="note", metadata={"name": "g"})
    assert has_same_fields(first, moved)
    assert not has_same_fields(moved, renamed)
    assert not has_same_fields(renamed, prose)
    assert has_same_fields(prose, note)
