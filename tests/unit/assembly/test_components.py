"""Components: every stage can be replaced by name."""

import pytest

import stepwell as sw
from stepwell.assembly.components import DEFAULT, NAMED, SINGLE_STRATEGY, Components, named
from tests.support.assembly import answer, meeting, result


def test_every_stage_is_in_the_table() -> None:
    """The first of each is the default."""
    assert [*NAMED] == [*Components.__struct_fields__]
    assert {stage: next(iter(known.values())) for stage, known in NAMED.items()} == {
        stage: getattr(DEFAULT, stage) for stage in NAMED
    }
    assert named({}) == DEFAULT


@pytest.mark.parametrize("stage, name", [(stage, name) for stage, known in NAMED.items() for name in known])
def test_each_can_be_named(stage: str, name: str) -> None:
    assert getattr(named({stage: name}), stage) is NAMED[stage][name]
    assert answer(meeting().view(), result("keyword", {"t1": 1.0}), components={stage: name}).fragments


def test_unknown_names() -> None:
    """They are refused, with the known ones."""
    with pytest.raises(sw.InvalidArgument, match="no stage 'fuze': there are select, allocate, fuse"):
        named({"fuze": "weighted"})
    with pytest.raises(sw.InvalidArgument, match="no fuse 'rrf': there are weighted, reciprocal"):
        named({"fuse": "rrf"})


def test_alone() -> None:
    """What a strategy ranks highest, in its order, and nothing else."""
    found = answer(
        meeting().view(), result("keyword", {"t9": 2.0, "t1": 1.0}), components={**SINGLE_STRATEGY, "order": "worth"}
    )
    assert [each.fragment_id for each in found.fragments] == ["t9", "t1"]
    assert found.text.startswith("### s\n")
