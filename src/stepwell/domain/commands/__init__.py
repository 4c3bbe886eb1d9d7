"""Everything that can be asked of the state: a closed union of frozen, bounded values.

A command is a Struct here, a `@decides` function in the domain and a method on the client. Ids that it
creates arrive inside it, so that deciding needs no randomness.
"""

from stepwell.domain.commands.base import Command, Fleeting, Housekeeping, Read, Upkeep, Write
from stepwell.domain.commands.changesets import ChangesetRead, ChangesetWrite
from stepwell.domain.commands.plans import PlanRead, PlanWrite
from stepwell.domain.commands.receipts import ReceiptRead, ReceiptWrite
from stepwell.domain.commands.subplans import SubplanWrite
from stepwell.domain.commands.tasks import TaskFleeting, TaskRead
from stepwell.domain.commands.tiers import TierRead, TierWrite

AnyRead = TierRead | PlanRead | ChangesetRead | ReceiptRead | TaskRead
AnyWrite = TierWrite | PlanWrite | SubplanWrite | ChangesetWrite | ReceiptWrite
AnyCommand = AnyRead | AnyWrite | TaskFleeting

__all__ = ["AnyCommand", "AnyRead", "AnyWrite", "Command", "Fleeting", "Housekeeping", "Read", "Upkeep", "Write"]
