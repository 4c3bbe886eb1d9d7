"""A fragment that exists is valid, and so is a budget."""

from typing import cast

import msgspec.msgpack
import msgspec.structs
import pytest

from stepwell import limits
from stepwell.domain.tiers.commands import StoreFragment
from stepwell.domain.tiers.model import ABOVE, BELOW, Fragment, Tier, TierBudget
from stepwell.errors import InvalidArgument


def test_tiers_are_neighbours() -> None:
    """Up and down are inverse to each other, and lead from hot to cold."""
    assert {low: high for high, low in BELOW.items()} == ABOVE
    assert [Tier.HOT, BELOW[Tier.HOT], BELOW[BELOW[Tier.HOT]]] == list(Tier)


@pytest.mark.parametrize("body", ["text", b"bytes", memoryview(b"view")])
def test_body_may_be_text_or_bytes(body: str | bytes | memoryview) -> None:
    """Each is taken as it is."""
    assert Fragment(fragment_id="f", body=body).body is body


@pytest.mark.parametrize(
    "body",
    [
        "x" * (limits.BODY_BYTES_MAX + 1),
        b"x" * (limits.BODY_BYTES_MAX + 1),
        memoryview(bytes(limits.BODY_BYTES_MAX + 8)).cast("Q"),
    ],
    ids=["str", "bytes", "memoryview"],
)
def test_body_is_bounded(body: str | bytes | memoryview) -> None:
    """In bytes, whatever the items of a memoryview are."""
    with pytest.raises(InvalidArgument, match="split it into fragments"):
        Fragment(fragment_id="f", body=body)


def test_largest_body_is_accepted() -> None:
    """The bound itself is within."""
    assert Fragment(fragment_id="f", body=bytes(limits.BODY_BYTES_MAX)).tokens is None


def test_body_of_another_type() -> None:
    """A caller without a type checker is told what to give."""
    with pytest.raises(InvalidArgument, match=r"body .*str, bytes or a memoryview"):
        Fragment(fragment_id="f", body=cast("str", 3))


@pytest.mark.parametrize(
    "field, value, message",
    [
        ("fragment_id", "", "fragment_id is malformed: give 1 to 512 characters"),
        ("fragment_id", "a\n", "fragment_id is malformed"),
        ("project", "../p", "project is malformed: a project is 1 to 128"),
        ("project", "a//b", "project is malformed"),
        ("tokens", 0, "tokens was refused .*at least 1"),
        ("tokens", -5, "tokens was refused .*at least 1"),
        ("detail_depth", 17, "detail_depth was refused .*from 0 to 16"),
        ("kind", "", "kind is malformed: give 1 to 64 letters"),
        ("source", "x" * 4097, "source was refused .*at most 4096"),
        ("metadata", {"": "x"}, "metadata was refused .*at most 64 metadata entries"),
        ("metadata", dict.fromkeys(map(str, range(65)), ""), "metadata was refused .*at most 64 metadata entries"),
        ("metadata", dict.fromkeys("abc", "x" * 8000), "metadata has 24003 bytes.*store what is large as a body"),
    ],
)
def test_bounds(field: str, value: object, message: str) -> None:
    """Every field outside its bounds is named, with advice."""
    with pytest.raises(InvalidArgument, match=message):
        msgspec.structs.replace(Fragment(fragment_id="f", body="b"), **{field: value})


@pytest.mark.parametrize(
    "fragment",
    [
        Fragment(fragment_id="f" * 512, body="x" * 10_000, project="p" * 128, kind="k" * 64),
        Fragment(fragment_id="☃" * 512, body="☃" * 10_000, source="☃" * 4096),
        Fragment(fragment_id="f", body=bytes(100), metadata={"☃" * 128: "☃" * 5_000}),
        Fragment(fragment_id="f", body=memoryview(bytes(800)).cast("Q"), metadata={str(n): "" for n in range(64)}),
    ],
    ids=["ascii", "unicode", "bytes", "memoryview"],
)
def test_weight_is_no_less_than_its_frame(fragment: Fragment) -> None:
    """Whoever adds up weights stays within a frame."""
    body = fragment.body.encode() if isinstance(fragment.body, str) else bytes(fragment.body)
    command = StoreFragment(
        fragment.project or "p",
        fragment.fragment_id,
        body,
        2**53,
        source=fragment.source,
        kind=fragment.kind,
        metadata=fragment.metadata,
    )
    assert len(msgspec.msgpack.encode(command)) <= fragment.weight


def test_uploaded_body_weighs_as_much_as_an_inline_one() -> None:
    """It is beside the frame, and has to be there before it."""
    weights = [
        Fragment(fragment_id="f", body=bytes(limits.INLINE_BODY_BYTES_MAX + more), source="s").weight for more in (0, 1)
    ]
    assert weights == [limits.INLINE_BODY_BYTES_MAX + more + 4 + 4096 for more in (0, 1)]


@pytest.mark.parametrize("field", TierBudget.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1, 1.5, None, True])
def test_no_budget_means_unlimited(field: str, value: int) -> None:
    """Zero, less, or no number at all is an error for every bound of the tiers."""
    with pytest.raises(InvalidArgument, match=f"{field} was refused .*give a whole number, at least 1"):
        TierBudget(**{field: value})


def test_default_budget() -> None:
    """The defaults are those of `limits`, and of domain.md."""
    budget = TierBudget()
    assert budget.promotion_threshold == limits.PROMOTION_THRESHOLD == 5
    assert budget.warm_ttl_ms == 24 * 3_600_000
    assert budget.cold_retention_ms == 90 * 24 * 3_600_000
