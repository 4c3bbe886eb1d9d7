"""All commands of the state: a closed union of frozen values whose types carry their bounds.

To add a command, write a Struct in its subject's `commands`, a `@decides` function in its subject's `rules`, and a
method on the client. The unions below are what the codec accepts from a peer; internal commands are in none of them.
Ids that a command creates arrive inside it, so that deciding needs no randomness and a repeated command is the same.
"""

from stepwell.domain.applies.commands import AppliesRead, AppliesWrite
from stepwell.domain.changesets.commands import ChangesetRead, ChangesetWrite
from stepwell.domain.command_roots import Command, Ephemeral, EphemeralInternal, Internal, Read, Write
from stepwell.domain.logs.commands import LogRead, LogWrite
from stepwell.domain.plans.commands import PlanRead, PlanWrite
from stepwell.domain.pools.commands import PoolRead, PoolWrite
from stepwell.domain.receipts.commands import ReceiptRead, ReceiptWrite
from stepwell.domain.tasks.commands import TaskEphemeral, TaskRead
from stepwell.domain.tiers.commands import TierRead, TierWrite

# Reads may stand in a `Request` only; writes also in a transaction. Ephemeral commands have no revision, so that they
# cannot be part of a transaction.
AnyRead = TierRead | PlanRead | ChangesetRead | ReceiptRead | PoolRead | LogRead | AppliesRead | TaskRead
AnyWrite = TierWrite | PlanWrite | ChangesetWrite | ReceiptWrite | PoolWrite | LogWrite | AppliesWrite
AnyCommand = AnyRead | AnyWrite | TaskEphemeral

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
