"""The events that `client.watch` returns, one class for each kind.

The manager derives an event from each committed change, in the order of the revisions. `AnyEvent` is the union of all
of them, for a `match` statement that ends in `assert_never`.
"""

from stepwell.domain.events import (
    ActionArchived,
    ActionCreated,
    ActionUsed,
    AnyEvent,
    ApplyPlaceChanged,
    BudgetChanged,
    ChangeRecorded,
    ChangesetEnded,
    ChangesetStarted,
    ConflictResolved,
    DecisionRecorded,
    DecisionSuperseded,
    FragmentDeleted,
    FragmentDemoted,
    FragmentPromoted,
    FragmentStored,
    LeaseRenewed,
    PlanCreated,
    PlanForgotten,
    PlanMoved,
    PlanRolledBack,
    SubplansDeclared,
    SubplansMerged,
)

__all__ = [
    "ActionArchived",
    "ActionCreated",
    "ActionUsed",
    "AnyEvent",
    "ApplyPlaceChanged",
    "BudgetChanged",
    "ChangeRecorded",
    "ChangesetEnded",
    "ChangesetStarted",
    "ConflictResolved",
    "DecisionRecorded",
    "DecisionSuperseded",
    "FragmentDeleted",
    "FragmentDemoted",
    "FragmentPromoted",
    "FragmentStored",
    "LeaseRenewed",
    "PlanCreated",
    "PlanForgotten",
    "PlanMoved",
    "PlanRolledBack",
    "SubplansDeclared",
    "SubplansMerged",
]
