"""The commands on queues of applies. `rules` decides them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from stepwell import limits
from stepwell.domain import replies
from stepwell.domain.bounded_types import Identifier
from stepwell.domain.command_roots import Read, Write

TreeText = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=limits.PATH_CHARS_MAX,
        description="a tree is the real, absolute path of its root, of at most 4096 characters",
    ),
]
"""A tree, as all of its clients have to name it: by the real path of its root."""
Priority = Annotated[
    int,
    Meta(
        ge=-limits.APPLY_PRIORITY_MAX,
        le=limits.APPLY_PRIORITY_MAX,
        description="a priority is a number from -100 to 100",
    ),
]
"""A larger number comes first."""


class JoinApplyQueue(Write[replies.ApplyQueued], frozen=True):
    """Join the queue of a tree, or ask for the place of a ticket; that also gives a turn that has come more time."""

    ticket_id: Identifier
    plan_id: Identifier
    tree: TreeText
    priority: Priority = 0


class LeaveApplyQueue(Write[replies.ApplyQueueLeft], frozen=True):
    """End a ticket. One that has ended already is no error."""

    ticket_id: Identifier


class GetApplyQueue(Read[replies.ApplyQueueFound], frozen=True):
    """Read the queue of a tree, in the order in which its plans apply."""

    tree: TreeText


AppliesRead = GetApplyQueue
"""All commands of this subject that change nothing."""
AppliesWrite = JoinApplyQueue | LeaveApplyQueue
"""All commands of this subject that a client can send to change queues."""
