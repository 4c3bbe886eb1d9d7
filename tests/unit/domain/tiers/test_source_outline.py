"""What a fragment's metadata says of its place, whoever wrote it there; and the ids of a file's parts."""

import pytest
from msgspec.structs import replace

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier
from stepwell.domain.tiers.source_outline import (
    FILE_KIND,
    FileOutline,
    Outline,
    RedactedPlace,
    file_id,
    fingerprint,
    is_content,
    is_part,
    part_ids,
    part_prefix,
    places_within,
)

FULL = Outline(lines=(3, 7), name="Index.catch_up", order=0, speaker="Alice", refs=("os", "a.b"))
ROW = FragmentRow(
    project="p",
    fragment_id="a.py#f",
    source="a.py",
    kind="code",
    detail_depth=0,
    tokens=1,
    size=1,
    digest=digest_of(b"x"),
    tier=Tier.WARM,
    placed_at_ms=0,
    created_at_ms=0,
    revision=1,
    serial=1,
    metadata={"lines": "1-2", "order": "0", "split": "1"},
)


def test_metadata_and_back() -> None:
    """All that is known is kept, as texts, in metadata that a fragment may have."""
    assert Outline.of(FULL.metadata()) == FULL
    assert FULL.metadata()["lines"] == "3-7"
    assert Fragment(fragment_id="a", body="", metadata=FULL.metadata()).metadata == FULL.metadata()


def test_what_is_not_known_is_not_there() -> None:
    assert Outline().metadata() == {}
    assert Outline.of({}) == Outline()


@pytest.mark.parametrize("lines", ["", "7", "7-3", "0-1", "-1-2", "a-b", "1-2\n", "1-2-3", "٣-٤", "1-" + "9" * 20])
def test_rubbish_in_lines_is_as_good_as_none(lines: str) -> None:
    assert Outline.of({"lines": lines}).lines is None


@pytest.mark.parametrize("order", ["", "-1", "1.5", "x", "²", " 1"])
def test_rubbish_in_order_is_as_good_as_none(order: str) -> None:
    assert Outline.of({"order": order}).order is None


def test_bounds() -> None:
    """Whatever is given, the metadata of a part is a small part of what a fragment may have."""
    long = Outline(name="n" * 10_000, speaker="s" * 10_000, refs=tuple(f"ref{number}" for number in range(10_000)))
    metadata = long.metadata()
    assert len(metadata["name"]) == len(metadata["speaker"]) == limits.OUTLINE_NAME_CHARS_MAX
    assert metadata["refs"].count("\n") == limits.OUTLINE_REFS_MAX - 1
    assert len(Outline(refs=("x" * 300,) * 20).metadata()["refs"]) <= limits.OUTLINE_REFS_CHARS_MAX
    assert len(Outline.of({"refs": "x\n" * 1_000}).refs) == limits.OUTLINE_REFS_MAX


def test_a_files_outline() -> None:
    file = FileOutline(size=3, mtime_ns=-5, digest="ab", parts="cd", root="/r", skipped="", version="1")
    assert FileOutline.of(file.metadata()) == file
    assert FileOutline.of({"size": "x", "mtime_ns": "y"}) == FileOutline(size=0, mtime_ns=0, digest="")


def test_redacted_places() -> None:
    """Places are kept as texts; malformed ones count as none; and a part has those that it has a line of."""
    places = (RedactedPlace("private key", (3, 7)), RedactedPlace("GitHub token", (9, 9)))
    assert [*map(str, places)] == ["private key (lines 3-7)", "GitHub token (line 9)"]
    outline = Outline(redacted=places)
    assert Outline.of(outline.metadata()) == outline
    assert Outline.of({"redacted": "3-7 a\nx\n7-3 b\n4 c\n5-5 \n1-1 d"}).redacted == (
        RedactedPlace("a", (3, 7)),
        RedactedPlace("d", (1, 1)),
    )
    assert places_within(places, (7, 8)) == places[:1]
    assert places_within(places, (1, 9)) == places
    assert places_within(places, (8, 8)) == places_within(places, None) == ()
    file = FileOutline(size=3, mtime_ns=5, digest="ab", redacted=2)
    assert FileOutline.of(file.metadata()) == file


def test_more_redacted_places_than_are_listed() -> None:
    """The last one stands for the rest, so that none is concealed, and the metadata stay small."""
    places = [RedactedPlace("k" * 30, (number, number)) for number in range(1, 1_001)]
    found = places_within(places, (1, 1_000))
    others = 1_000 - limits.OUTLINE_REDACTED_MAX + 1
    assert len(found) == limits.OUTLINE_REDACTED_MAX
    assert found[-1] == RedactedPlace(f"{others} more", (limits.OUTLINE_REDACTED_MAX, 1_000))
    assert len(Outline(redacted=found).metadata()["redacted"]) < limits.METADATA_VALUE_CHARS_MAX


def test_ids_are_names_or_numbers() -> None:
    """Equal names are told apart; those without one are numbered among themselves."""
    assert part_ids("a.py", ["", "f", "", "f", "f~2", "f"]) == [
        "a.py#1",
        "a.py#f",
        "a.py#2",
        "a.py#f~2",
        "a.py#f~2~2",
        "a.py#f~3",
    ]


def test_ids_of_others_stay_when_one_comes_or_goes() -> None:
    before, after = part_ids("a", ["f", "g", "h"]), part_ids("a", ["f", "new", "h"])
    assert (before[0], before[2]) == (after[0], after[2])


@pytest.mark.parametrize("source", ["a.py", "x\ny", "a#b.py", "100%.md", "d/" * 1_000 + "x", "é" * 600, "a%0Ab"])
def test_ids_are_ids(source: str) -> None:
    """Whatever a file or a part is called, they are ids that a fragment may have, and begin with their file's."""
    names = ["f", "x\ty", "n" * 600, "n" * 601, "", "ü" * 600]
    ids = [*part_ids(source, names), file_id(source)]
    assert len({*ids}) == len(ids)
    for each in ids:
        Fragment(fragment_id=each, body="", source=source)
    assert all(each.startswith(part_prefix(source)) for each in ids[:-1])


def test_ids_of_different_files_are_different() -> None:
    """Not even those of files whose names look like each other's ids."""
    sources = ["a", "a#b", "a%23b", "a\nb", "a%0Ab", "x" * 900, "x" * 901]
    assert len({file_id(each) for each in sources}) == len(sources)
    ids = [*part_ids("a", ["b#c"]), *part_ids("a#b", ["c"])]
    assert len({*ids}) == len(ids)


def test_fingerprint() -> None:
    """Of which parts there are, in whatever order; another body is another one."""
    parts = [("a#1", digest_of(b"1")), ("a#2", digest_of(b"2"))]
    assert fingerprint(parts) == fingerprint(reversed(parts))
    assert len({fingerprint(parts), fingerprint(parts[:1]), fingerprint([("a#1", digest_of(b"x")), parts[1]])}) == 3
    assert fingerprint(()) != fingerprint(parts)


def test_kinds_of_rows() -> None:
    """What somebody else has said about a file is no part of it."""
    assert is_content(ROW)
    assert is_part(ROW)
    assert not is_content(replace(ROW, kind=FILE_KIND))
    assert not is_part(replace(ROW, kind=FILE_KIND))
    assert not is_part(replace(ROW, metadata={"author": "me"}))
    assert not is_part(replace(ROW, fragment_id="note"))
    assert not is_part(replace(ROW, source="b.py"))
