"""Keys that a transaction connects are judged together; all others apart."""

from stepwell.domain.tiers.body_refs import digest_of
from stepwell.prove.history import (
    Accepted,
    GetCall,
    History,
    NotDone,
    PlanReadCall,
    SnapshotCall,
    StoreCall,
    TransactCall,
    TrialHeader,
    WatchRecord,
)
from stepwell.prove.models import FragmentModel, PlanModel
from stepwell.prove.partition import UNKNOWN_VALUE, partitions_of
from tests.support.prove.calls import made, saw

HEADER = TrialHeader("s", 1, 1, 1, 1.0)
CALLS = (
    made(0, 1, StoreCall("a", "1"), Accepted()),
    made(0, 1, StoreCall("b", "2"), Accepted()),
    made(0, 1, StoreCall("c", "3"), Accepted()),
    made(2, 3, TransactCall((StoreCall("b", "4"), StoreCall("c", "5"))), Accepted()),
    made(4, 5, SnapshotCall(("c", "d")), saw("5", None)),
    made(4, 5, PlanReadCall("p"), saw("strategize/queued")),
    made(4, 5, StoreCall("a", "6"), NotDone()),
    made(4, None, GetCall("a")),
)


def test_split() -> None:
    """Every call is in one partition, except those that tell nothing and change nothing."""
    found = {each.keys: each for each in partitions_of(History(HEADER, CALLS))}
    assert [*found] == [("a",), ("b", "c", "d"), ("plan p",)]
    assert [len(each.calls) for each in found.values()] == [1, 4, 1]
    assert isinstance(found["a",].model(), FragmentModel)
    assert isinstance(found["plan p",].model(), PlanModel)


def test_watches() -> None:
    """A partition has the part of each complete watch that is about its keys, in the order of the watch."""

    def watch(*events: tuple[str, str | None], is_complete: bool = True) -> WatchRecord:
        shown = tuple((key, value and digest_of(value.encode()).hex()) for key, value in events)
        return WatchRecord(0, "k", is_complete, shown)

    full = watch(("a", "1"), ("b", "2"), ("c", "3"), ("b", None), ("c", "unheard of"), ("other", "1"))
    found = {each.keys: each for each in partitions_of(History(HEADER, CALLS, (full, watch(is_complete=False))))}
    assert found["a",].watched == ((("a", "1"),),)
    assert found["b", "c", "d"].watched == ((("b", "2"), ("c", "3"), ("b", None), ("c", UNKNOWN_VALUE)),)
    assert found["plan p",].watched == ()
