"""Render: sources, line ranges, and as little besides as can be."""

import pytest

from stepwell.assembly.candidate import AnswerPiece
from stepwell.assembly.fences import with_closed_fence
from stepwell.assembly.render import render
from tests.support.assembly import count


def piece(
    place: int,
    text: str,
    *,
    source: str = "a.py",
    kind: str = "code",
    lines: tuple[int, int] | None = None,
    speaker: str = "",
    project: str = "p",
) -> AnswerPiece:
    return AnswerPiece(project, f"{source}#{place}", source, kind, place, lines, speaker, "full", text)


def test_neighbours_share_a_heading() -> None:
    """With the lines that they cover; a later run of the same source begins with an ellipsis and its own."""
    pieces = [
        piece(0, "def a(): ...", lines=(1, 2)),
        piece(1, "def b(): ...", lines=(4, 5)),
        piece(7, "def c(): ...", lines=(40, 41)),
        piece(0, "# Title", source="b.md", kind="markdown", lines=(1, 1)),
    ]
    assert render([], pieces) == (
        "### a.py:1-5\n```python\ndef a(): ...\n\ndef b(): ...\n```\n…:40-41\n```python\ndef c(): ...\n```\n\n"
        "### b.md:1-1\n# Title"
    )


def test_turns() -> None:
    """A line each; who goes on is not named again, and who comes again is named by initials."""
    said = [("Ada", "One ."), ("Project Manager", "Two ."), ("Project Manager", "Three ."), ("Ada", "Four .")]
    pieces = [piece(number, text, source="talk", kind="turn", speaker=name) for number, (name, text) in enumerate(said)]
    pieces.append(piece(9, "Five .", source="talk", kind="turn", speaker="Project Manager"))
    assert render([], pieces) == (
        "### talk\nAda: One .\nProject Manager (PM): Two .\nThree .\nAda: Four .\n…\nPM: Five ."
    )


def test_initials_are_clear() -> None:
    """Two with the same are named in full, and so is one who speaks once."""
    names = ["Ada May", "Ann Moe", "Bob Lee", "Ada May", "Ann Moe", "B B", "BB", "B B", "BB"]
    pieces = [piece(number, "x", source="talk", kind="turn", speaker=name) for number, name in enumerate(names)]
    assert render([], pieces).splitlines()[1:] == [f"{name}: x" for name in names]


def test_little_besides() -> None:
    """Twenty turns of a conversation cost little more than what was said."""
    bodies = [f"this is what was said in turn number {number} ." for number in range(20)]
    pieces = [piece(number, body, source="talk", kind="turn") for number, body in enumerate(bodies)]
    assert count(render([], pieces)) <= sum(map(count, bodies)) + 10


@pytest.mark.parametrize(
    "text, end",
    [
        ("a\n```\nb", "\n```"),
        ("a\n~~~~ python\n~~~\n```", "\n~~~~"),
        ("a\n```\n```b", "\n```"),
        ("  ```` x\n```\n", "\n````"),
        ("a\n```\nb\n```", ""),
        ("a\n```b```\n    ```", ""),
        ("```\n~~~\n````  \n", ""),
        ("", ""),
    ],
)
def test_blocks_end(text: str, end: str) -> None:
    """What a fragment begins does not go on in the next one."""
    assert with_closed_fence(text) == text + end
    both = [piece(0, text, source="a.md", kind="markdown"), piece(0, "next", source="b.md", kind="markdown")]
    assert render([], both) == f"### a.md\n{text}{end}\n\n### b.md\nnext"


@pytest.mark.parametrize(
    "body, said",
    [
        ('{"role": "user", "content": "What\\nnow?"}', "What\nnow?"),
        ('{"role": "user", "content": [{"type": "text", "text": "What"}, "now?"]}', "What\nnow?"),
        ('{"message": {"role": "user", "content": "What now?"}, "at": 3}', "What now?"),
        ('{"role": "user", "content": [{"type": "picture"}]}', None),
        ('{"role": "user", "content": ""}', None),
        ('{"role": "user", "cont', None),
        ("What {now}?", None),
    ],
)
def test_turns_in_json(body: str, said: str | None) -> None:
    """What was said is shown, if that is all there is."""
    assert render([], [piece(0, body, source="talk", kind="turn", speaker="user")]) == f"### talk\nuser: {said or body}"


def test_names_that_are_no_text() -> None:
    """A terminal is not to be told anything by a file's name."""
    assert render([], [piece(0, "x", source="a\x1b[31m\nb\x9b", kind="text")]) == "### a?[31m b?\nx"


def test_fences_hold() -> None:
    """Code that has a fence in it stands in a longer one."""
    text = render([], [piece(0, "a = '''\n```\n'''")])
    assert text == "### a.py\n````python\na = '''\n```\n'''\n````"


def test_odd_names() -> None:
    """A heading is one line and not too long; without a source it is the id; of two projects each is named."""
    pieces = [piece(0, "x", source="a\nb" + "c" * 900, kind="text"), piece(0, "y", source="", kind="text", project="q")]
    heading, _, _, other, _ = render([], pieces).splitlines()
    assert heading.startswith("### p …ccc")
    assert len(heading) < 320
    assert other == "### q #0"
    assert render([], [pieces[1]]) == "### #0\ny"


def test_what_comes_first() -> None:
    assert render(["> said", "", "### Plan"], []) == "> said\n\n### Plan"
    assert render([], []) == ""
