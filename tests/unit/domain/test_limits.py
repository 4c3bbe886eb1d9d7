"""The bounds stand in the relations that the code relies on, and their descriptions tell the truth."""

import importlib.util
import re
from pathlib import Path
from typing import get_type_hints

import pytest
from msgspec import Struct

from stepwell import limits
from stepwell.domain.changesets.commands import RecordChange
from stepwell.domain.checks import _descriptions
from stepwell.domain.plans.commands import CreateAction, DeclareSubplans, StartPhase
from stepwell.domain.receipts.commands import StoreReceipt
from stepwell.domain.tiers.commands import EvictLru, ListFragments, LocateBodies, StoreFragment
from stepwell.domain.tiers.model import Fragment


def load(source: str, path: Path) -> None:
    """Import the text as a module of its own."""
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


@pytest.mark.parametrize(
    "name, value, claim",
    [
        ("STREAM_COMMANDS", "300", "a stream's inline bodies are one frame"),
        ("INLINE_BODY_BYTES_MAX", "96 * KIB", "a stream's inline bodies are one frame"),
        ("METADATA_BYTES_MAX", "3 * MIB", "one more store or change still fits"),
        ("REPLY_BYTES_MAX", "8 * MIB", "a full reply, and the row that filled it, are one frame"),
        ("BODY_BYTES_MAX", "64 * KIB", "the largest body has room in the arena"),
        ("BODY_BYTES_MAX", "1024 * MIB", "the largest body has room in the arena"),
        ("ARENA_BYTES", "64 * MIB", "the largest body has room in the arena"),
        ("ARENA_BYTES", "6 * 1024 * MIB", "the largest body has room in the arena"),
        ("SWEEP_MOVES_MAX", "4_097", "a sweep is a step"),
        ("HOT_TTL_MS", "WARM_TTL_MS_TOO_LONG", "tiers are ordered"),
        ("WARM_TTL_MS", "91 * 24 * 60 * 60 * 1000", "tiers are ordered"),
        ("CLOSED_PLANS_MAX", "100_000", "plans that are over leave room for others"),
        ("PLANS_PER_TREE_MAX", "2_000", "a tree's plans are forgotten in one step"),
        ("RECEIPTS_MAX", "2_001", "a page of receipts examines all of them at the most"),
        ("RECEIPT_BYTES_MAX", "32 * KIB", "the largest receipt has room"),
        ("RECEIPT_BYTES_MAX", "512 * MIB", "the largest receipt has room"),
    ],
)
def test_asserted_relations_can_fail(tmp_path: Path, name: str, value: str, claim: str) -> None:
    """An edit that breaks a relation does not even import."""
    source = Path(limits.__file__).read_text()
    load(source, tmp_path / "as_it_is.py")
    value = value.replace("WARM_TTL_MS_TOO_LONG", "25 * 60 * 60 * 1000")
    # A bound of a part of the package is imported: then another value comes behind the import.
    defined = (
        rf"^{name}: Final = .*$" if re.search(rf"^{name}: Final", source, re.MULTILINE) else "^from .*tiers import.*$"
    )
    broken, count = re.subn(defined, rf"\g<0>\n{name}: Final = {value}", source, flags=re.MULTILINE)
    assert count == 1
    with pytest.raises(AssertionError, match=claim):
        load(broken, tmp_path / "broken.py")


def test_every_bound_is_positive() -> None:
    """No bound of zero could be taken for "unlimited"."""
    bounds = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert len(bounds) > 40
    assert [name for name, value in bounds.items() if value <= 0] == []


def test_defaults_lie_within_their_bounds() -> None:
    """What a caller gets without asking is something that a caller could ask for."""
    assert limits.LEASE_MS_MIN <= limits.LEASE_MS <= limits.LEASE_MS_MAX
    assert 1 <= limits.MAX_PARALLEL <= limits.MAX_PARALLEL_MAX
    assert limits.PAGE_ROWS_MAX <= limits.SCAN_ROWS_MAX == 2_000


def test_a_step_is_bounded_by_its_parts() -> None:
    """What happens to many at once is at most what one step may do."""
    assert limits.SUBPLANS_MAX < limits.PLANS_PER_TREE_MAX <= limits.PLANS_MAX
    assert limits.LEASES_PER_SESSION_MAX <= limits.EXPIRIES_PER_STEP_MAX
    assert limits.ACTIVE_PER_CONTEXT_MAX <= limits.CHANGESETS_PER_PLAN_MAX
    assert limits.METADATA_BYTES_MAX < limits.INLINE_BODY_BYTES_MAX
    assert limits.MOVES_PER_STEP_MAX <= limits.TRANSACTION_CHANGES_MAX
    assert limits.FORGOTTEN_ROWS_PER_STEP_MAX <= limits.TRANSACTION_CHANGES_MAX
    assert limits.RECEIPTS_MAX <= limits.MOVES_PER_STEP_MAX


@pytest.mark.parametrize(
    "kind, field, numbers",
    [
        (EvictLru, "count", {1, limits.MOVES_PER_STEP_MAX}),
        (ListFragments, "limit", {1, limits.PAGE_ROWS_MAX}),
        (StoreFragment, "body", {limits.INLINE_BODY_BYTES_MAX // limits.KIB}),
        (RecordChange, "before", {limits.INLINE_BODY_BYTES_MAX // limits.KIB}),
        (StoreReceipt, "projects", {1, limits.PROJECTS_PER_SESSION_MAX}),
        (StoreReceipt, "title", {limits.TITLE_CHARS_MAX}),
        (StoreReceipt, "body", {limits.INLINE_BODY_BYTES_MAX // limits.KIB}),
        (LocateBodies, "digests", {1, limits.PAGE_ROWS_MAX}),
        (Fragment, "metadata", {limits.METADATA_ENTRIES_MAX, limits.METADATA_BYTES_MAX // limits.KIB}),
        (CreateAction, "arguments", {limits.ARGUMENTS_MAX}),
        (CreateAction, "description", {limits.TEXT_CHARS_MAX}),
        (CreateAction, "invariants", {64}),
        (DeclareSubplans, "children", {1, limits.SUBPLANS_MAX}),
        (DeclareSubplans, "max_parallel", {1, limits.MAX_PARALLEL_MAX}),
        (StartPhase, "lease_ms", {limits.LEASE_MS_MIN, limits.LEASE_MS_MAX // 3_600_000}),
    ],
)
def test_descriptions_tell_the_truth(kind: type[Struct], field: str, numbers: set[int]) -> None:
    """The number in the advice is the number in the bound."""
    advice = _descriptions(get_type_hints(kind, include_extras=True)[field])[0]
    assert {int(number) for number in re.findall(r"\d+", advice)} == numbers
