"""stepwell: a multiprocess runtime in which many agents share context, plans and changes without losing any.

One manager process owns all state and serves requests one at a time; everybody else is a client.

    >>> import stepwell as sw
    >>> with sw.Runtime.start() as runtime, runtime.client(projects=["p"]) as client:
    ...     client.tiers.store(sw.Fragment(fragment_id="a", body="hello")).tier.value
    ...     client.tiers.get("a").text
    'hot'
    'hello'
"""

from stepwell.client.bundle import Batch, Transaction
from stepwell.client.calls import Pending
from stepwell.client.client import Client, connect
from stepwell.client.execution import ChangeSummary, PlanExecutionContext
from stepwell.client.fragments import StoredFragment, ViewedFragment
from stepwell.client.plans import PlanLifecycleService, subplan
from stepwell.client.tiers import ContextTierService
from stepwell.client.views import View
from stepwell.domain.changeset import Change, Changeset, ChangesetState, EntryRow, Operation
from stepwell.domain.content import Digest
from stepwell.domain.fragment import Fragment, FragmentRow, TierBudget
from stepwell.domain.plan import (
    Action,
    ActionState,
    Argument,
    ArgumentType,
    Decision,
    Lease,
    MergeStrategy,
    Phase,
    Plan,
    PlanState,
    ProjectLink,
    SubplanMode,
)
from stepwell.domain.replies import (
    ActionPage,
    ChangesetPage,
    DecisionPage,
    FragmentPage,
    FragmentPlaced,
    FragmentsMoved,
    Note,
    PlanPage,
    TierMetrics,
)
from stepwell.domain.tier import Tier
from stepwell.errors import (
    ActionUnavailable,
    AlreadyExists,
    BodyGone,
    Busy,
    ChangesetClosed,
    Conflict,
    InvalidArgument,
    LeaseLost,
    ManagerFault,
    NoActiveChangeset,
    NotFound,
    NotOwner,
    NotProven,
    OutcomeUnknown,
    OutOfScope,
    PartlyRefused,
    PlanError,
    PlanNotReady,
    ProtocolError,
    Refused,
    RuntimeFault,
    RuntimeLost,
    StartFailed,
    StepTooLarge,
    StepwellError,
    TierFull,
    TransactionAborted,
)
from stepwell.protocol.messages import MemoryUsage, Status
from stepwell.runtime import Runtime
from stepwell.telemetry import LogLevel

__all__ = [
    "Action",
    "ActionPage",
    "ActionState",
    "ActionUnavailable",
    "AlreadyExists",
    "Argument",
    "ArgumentType",
    "Batch",
    "BodyGone",
    "Busy",
    "Change",
    "ChangeSummary",
    "Changeset",
    "ChangesetClosed",
    "ChangesetPage",
    "ChangesetState",
    "Client",
    "Conflict",
    "ContextTierService",
    "Decision",
    "DecisionPage",
    "Digest",
    "EntryRow",
    "Fragment",
    "FragmentPage",
    "FragmentPlaced",
    "FragmentRow",
    "FragmentsMoved",
    "InvalidArgument",
    "Lease",
    "LeaseLost",
    "LogLevel",
    "ManagerFault",
    "MemoryUsage",
    "MergeStrategy",
    "NoActiveChangeset",
    "NotFound",
    "NotOwner",
    "NotProven",
    "Note",
    "Operation",
    "OutOfScope",
    "OutcomeUnknown",
    "PartlyRefused",
    "Pending",
    "Phase",
    "Plan",
    "PlanError",
    "PlanExecutionContext",
    "PlanLifecycleService",
    "PlanNotReady",
    "PlanPage",
    "PlanState",
    "ProjectLink",
    "ProtocolError",
    "Refused",
    "Runtime",
    "RuntimeFault",
    "RuntimeLost",
    "StartFailed",
    "Status",
    "StepTooLarge",
    "StepwellError",
    "StoredFragment",
    "SubplanMode",
    "Tier",
    "TierBudget",
    "TierFull",
    "TierMetrics",
    "Transaction",
    "TransactionAborted",
    "View",
    "ViewedFragment",
    "connect",
    "subplan",
]
