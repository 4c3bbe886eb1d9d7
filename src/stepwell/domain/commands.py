"""Everything that can be asked of the state: a closed union of frozen, bounded values.

A command is a Struct here, a `@decides` function in the domain and a method on the client. Ids that it
creates arrive inside it, so that deciding needs no randomness.
"""

from stepwell.domain.changesets.commands import ChangesetRead, ChangesetWrite
from stepwell.domain.command_roots import Command, Ephemeral, EphemeralInternal, Internal, Read, Write
from stepwell.domain.plans.commands import PlanRead, PlanWrite
from stepwell.domain.receipts.commands import ReceiptRead, ReceiptWrite
from stepwell.domain.tasks.commands import TaskFleeting, TaskRead
from stepwell.domain.tiers.commands import TierRead, TierWrite

AnyRead = TierRead | PlanRead | ChangesetRead | ReceiptRead | TaskRead
AnyWrite = TierWrite | PlanWrite | ChangesetWrite | ReceiptWrite
AnyCommand = AnyRead | AnyWrite | TaskFleeting

__all__ = [
    "AnyCommand",
    "AnyRead",
    "AnyWrite",
    "Command",
    "Ephemeral",
    "EphemeralInternal",
    "Internal",
    "Read",
    "Write",
]
