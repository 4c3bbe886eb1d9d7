"""The types of results: pages, rows, summaries and reports that methods of stepwell return.

A program seldom constructs one of them. They are named here for annotations and for `isinstance`.
"""

from stepwell.assembly.answer import AnswerFragment, StrategyReport
from stepwell.client.api.batch import Batch, Transaction
from stepwell.client.api.changesets import ChangeSummary
from stepwell.client.api.fragments import ViewedFragment
from stepwell.client.api.log_entries import LogListing
from stepwell.client.session.calls import Pending
from stepwell.client.workflows.agent import WorkDone
from stepwell.client.workflows.capture import Captured
from stepwell.client.workflows.conflicts import ConflictSides
from stepwell.client.workflows.plan_diff import PlanChanges
from stepwell.client.workflows.strategy_executor import Execution
from stepwell.domain.applies.model import ApplyTicket
from stepwell.domain.changesets.model import Changeset, Content, EntryRow
from stepwell.domain.changesets.net_changes import NetChange
from stepwell.domain.logs.model import LogEntryRow, LogStatus
from stepwell.domain.logs.replies import EntriesAppended, LogPage
from stepwell.domain.plans.conflicts import Merge, MergeConflict
from stepwell.domain.plans.model import Action, Applied, Constrained, Decision, Lease, RolledBack
from stepwell.domain.pools.model import TokenLease, TokenPool
from stepwell.domain.receipts.model import ReceiptRow
from stepwell.domain.replies import (
    ActionPage,
    ApplyQueued,
    ApplyQueueFound,
    ChangesetPage,
    DecisionPage,
    FragmentPage,
    FragmentPlaced,
    FragmentsMoved,
    Note,
    PlanPage,
    PoolPage,
    ReadyStarted,
    ReceiptPage,
    StrategiesFound,
    TierMetrics,
    TierUsage,
)
from stepwell.domain.tasks.model import StrategyOffer, StrategyProblem
from stepwell.domain.tiers.model import FragmentRow, Work, Writer
from stepwell.ingest.report import IngestReport
from stepwell.protocol.messages import Status
from stepwell.protocol.usage import IndexUsage, MemoryUsage
from stepwell.strategies.payload import StrategyResult

__all__ = [
    "Action",
    "ActionPage",
    "AnswerFragment",
    "Applied",
    "ApplyQueueFound",
    "ApplyQueued",
    "ApplyTicket",
    "Batch",
    "Captured",
    "ChangeSummary",
    "Changeset",
    "ChangesetPage",
    "ConflictSides",
    "Constrained",
    "Content",
    "Decision",
    "DecisionPage",
    "EntriesAppended",
    "EntryRow",
    "Execution",
    "FragmentPage",
    "FragmentPlaced",
    "FragmentRow",
    "FragmentsMoved",
    "IndexUsage",
    "IngestReport",
    "Lease",
    "LogEntryRow",
    "LogListing",
    "LogPage",
    "LogStatus",
    "MemoryUsage",
    "Merge",
    "MergeConflict",
    "NetChange",
    "Note",
    "Pending",
    "PlanChanges",
    "PlanPage",
    "PoolPage",
    "ReadyStarted",
    "ReceiptPage",
    "ReceiptRow",
    "RolledBack",
    "Status",
    "StrategiesFound",
    "StrategyOffer",
    "StrategyProblem",
    "StrategyReport",
    "StrategyResult",
    "TierMetrics",
    "TierUsage",
    "TokenLease",
    "TokenPool",
    "Transaction",
    "ViewedFragment",
    "Work",
    "WorkDone",
    "Writer",
]
