"""Depth: the same fragment at several lengths."""

import pytest

from stepwell import limits
from stepwell.assembly.candidate import DEPTHS
from stepwell.assembly.stages.depth import briefest, deepest, full
from stepwell.domain.tiers.source_outline import Outline
from tests.support.assembly import stored
from tests.support.strategy_views import Store

CLASS = '''\
@decorated
class Index(Base):
    """The terms of a project."""

    def __init__(
        self, project: str
    ) -> None:
        self._project = project

    def catch_up(self, view: View) -> None:
        """Become the index of a view."""
        self._at = view.revision

    async def close(self) -> None: ...
'''


def forms(text: str, kind: str = "code", outline: Outline | None = None) -> dict[str, str]:
    row = stored(Store(), "a", text, kind=kind, outline=outline)
    return {form.depth: form.text for form in deepest(row, text)}


def test_code() -> None:
    """Its members; how it begins; and where it is."""
    found = forms(CLASS, outline=Outline(name="Index", lines=(3, 16)))
    assert found["summary"].splitlines() == [
        "class Index(Base):",
        "    def __init__(",
        "    def catch_up(self, view: View) -> None:",
        "    async def close(self) -> None: ...",
        "…",
    ]
    assert found["signature"] == 'class Index(Base):\n    """The terms of a project.""" …'
    assert found["listing"].startswith("- Index (lines 3-16, ")


def test_a_signature_of_several_lines() -> None:
    text = "def f(\n    a: int,\n    b: int,\n) -> int:\n    return a\n" + "    # more\n" * 20
    assert forms(text)["signature"] == "def f(\n    a: int,\n    b: int,\n) -> int: …"


@pytest.mark.parametrize(
    "text",
    [
        "pub fn run(a: u8) {\n" + "  a;\n" * 20,
        "export function run(a) {\n" + "  a\n" * 20,
        "type Run struct {\n" + "  a int\n" * 20,
    ],
)
def test_other_languages(text: str) -> None:
    assert forms(text)["signature"] == text.partition("\n")[0] + " …"


def test_prose() -> None:
    """The beginning of each paragraph; the heading."""
    text = "# Design\n\nOne writer.\nIt is the only one.\n\nSmall messages.\nBodies lie aside, in the arena.\n"
    found = forms(text, "markdown", Outline(name="Design"))
    assert found["summary"] == "# Design\nOne writer.\nSmall messages.\n…"
    assert found["signature"] == "# Design …"


def test_a_long_line_is_cut() -> None:
    found = forms("word " * 500, "turn")
    assert len(found["signature"]) <= limits.SHORTENED_LINE_CHARS_MAX + 3
    assert found["signature"].endswith("… …")


@pytest.mark.parametrize("text", ["x", "def f(): ...", "a\n\nb", "word " * 300, CLASS, "(" * 50 + "\n" * 30 + "a"])
@pytest.mark.parametrize("kind", ["code", "text", "turn"])
def test_each_is_shorter(text: str, kind: str) -> None:
    """What would not be is left out."""
    found = [*forms(text, kind, Outline(name="n", lines=(1, 2))).items()]
    lengths = [len(text), *(len(shortened) for _, shortened in found)]
    assert lengths == sorted(lengths, reverse=True)
    assert len({*lengths}) == len(lengths)
    names = [name for name, _ in found]
    assert names == [depth for depth in DEPTHS if depth in names]


def test_no_name_no_listing() -> None:
    """An id tells a reader nothing."""
    assert "listing" not in forms("word " * 300)
    assert [*full(stored(Store(), "a", "x"), "x")] == []


def test_the_briefest_forms() -> None:
    """Of a fragment that has to be shown: its signature, with and without documentation, its name, and its lines."""
    row = stored(Store(), "a", CLASS, kind="code", source="a.py", outline=Outline(name="Index", lines=(3, 16)))
    assert [(form.depth, form.text) for form in briefest(row, CLASS)] == [
        ("signature", 'class Index(Base):\n    """The terms of a project.""" …'),
        ("signature", "class Index(Base): …"),
        ("listing", f"- Index (lines 3-16, {row.tokens} tokens)"),
        ("listing", "…"),
    ]
    assert [form.text for form in briefest(stored(Store(), "a", "word"), "word")] == ["…", "…"]


def test_without_docstrings() -> None:
    """The first form of Python, if it is there as a whole."""
    text = 'def run():\n    """Does it.\n\n    In many words, which take room from others.\n    """\n    return 1\n'
    assert next(deepest(stored(Store(), "a", text, kind="code", source="a.py"), text)).depth == "cut"
    row = stored(Store(), "a", text, kind="code", source="a.py", outline=Outline(lines=(11, 16)))
    assert next(deepest(row, text)).text == 'def run():\n    """… (lines 12-15)"""\n    return 1\n'
    for kind, source in (("code", "a.js"), ("markdown", "a.py")):
        assert "cut" not in [form.depth for form in deepest(stored(Store(), "a", text, kind=kind, source=source), text)]
    long_text = text + "x = 1\n" * limits.SHORTENED_FROM_BYTES
    row = stored(Store(), "a", long_text, kind="code", source="a.py")
    assert "cut" not in [form.depth for form in deepest(row, text)]
