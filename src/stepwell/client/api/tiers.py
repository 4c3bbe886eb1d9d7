"""`ContextTierService`: hot, warm and cold fragments under a token budget, shared by everybody."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepwell import limits
from stepwell.client.api.fragments import StoredFragment, body_bytes
from stepwell.client.api.service import BlockingService, BufferedService, Service, method
from stepwell.client.session.calls import Answered, Call, partly_refused
from stepwell.domain.checks import require_instance
from stepwell.domain.replies import (
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentRemoved,
    FragmentsMoved,
    ProjectPage,
    TierMetrics,
)
from stepwell.domain.tiers.commands import (
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    ListFragments,
    ListProjects,
    PromoteFragment,
    SetBudget,
    StoreFragment,
    SweepStale,
)
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier, TierBudget
from stepwell.errors import Busy, InvalidArgument, NotFound, StepwellError


class TierCalls(Service):
    """The calls on fragments; what they give depends on the service that has them."""

    @method
    def store(
        self, fragment: Fragment, *, tier: Tier = Tier.HOT, expected_revision: int | None = None
    ) -> Call[FragmentPlaced]:
        """Insert or replace, and keep every budget, in one step.

        A fragment larger than the whole of hot goes to warm, and the note says so. With `expected_revision` (0 for
        "must not exist") a stale writer gets `Conflict`.
        """
        require_instance(fragment, (Fragment,), "store takes a stepwell.Fragment")
        body = body_bytes(fragment)
        is_large = len(body) > limits.INLINE_BODY_BYTES_MAX
        command = StoreFragment(
            project=self.session.project_or_default(fragment.project),
            fragment_id=fragment.fragment_id,
            body=0 if is_large else bytes(body),
            tokens=self.session.count_tokens(body) if fragment.tokens is None else fragment.tokens,
            tier=tier,
            source=fragment.source,
            kind=fragment.kind,
            detail_depth=fragment.detail_depth,
            metadata=fragment.metadata,
            expected_revision=expected_revision,
        )
        return Call(command, large={"body": body} if is_large else None)

    @method
    def get(self, fragment_id: str, *, project: str | None = None) -> Call[StoredFragment]:
        """Read, which is an access: often enough, it lifts the fragment one tier in the same step."""
        return Call(GetFragment(self.session.project_or_default(project), fragment_id), self._stored)

    def _stored(self, answered: Answered[FragmentFound]) -> StoredFragment:
        reply = answered.reply
        digest = reply.row.digest
        stored, handle = self.session.bodies.find(digest, answered.handles[digest])
        return StoredFragment(reply.row, handle, stored, reply.last_accessed_ms, reply.access_count)

    @method
    def promote(self, fragment_id: str, *, project: str | None = None) -> Call[FragmentPlaced]:
        """Lift one tier. What hot could not hold stays in warm, and the note says so."""
        command = PromoteFragment(self.session.project_or_default(project), fragment_id)
        return Call(command)

    @method
    def demote(self, fragment_id: str, *, project: str | None = None) -> Call[FragmentPlaced]:
        """Lower one tier, with the whole body and its token count."""
        command = DemoteFragment(self.session.project_or_default(project), fragment_id)
        return Call(command)

    @method
    def delete(
        self, fragment_id: str, *, project: str | None = None, expected_revision: int | None = None
    ) -> Call[FragmentRemoved]:
        """Remove for good."""
        command = DeleteFragment(self.session.project_or_default(project), fragment_id, expected_revision)
        return Call(command)

    @method
    def evict_lru(self, tier: Tier = Tier.HOT, count: int = 1) -> Call[FragmentsMoved]:
        """Lower the least recently used of a tier, of this session's projects; from cold they are deleted."""
        return Call(EvictLru(tier, count))

    @method
    def sweep(self) -> Call[FragmentsMoved]:
        """Lower what was idle for longer than its tier allows. The manager also does this by itself."""
        return Call(SweepStale())

    @method
    def list(
        self,
        *,
        project: str | None = None,
        globs: Sequence[str] = (),
        tier: Tier | None = None,
        kind: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Call[FragmentPage]:
        """A page of fragments in order of creation, without bodies; no access. `scoped` follows the cursor."""
        if isinstance(globs, str):
            raise InvalidArgument(f"globs is a sequence of globs: give [{globs!r}]")
        command = ListFragments(self.session.project_or_default(project), tuple(globs), tier, kind, limit, cursor)
        return Call(command)

    @method
    def projects(self, *, limit: int = 100, cursor: str | None = None) -> Call[ProjectPage]:
        """A page of the projects that hold fragments, as far as this session may see."""
        return Call(ListProjects(limit, cursor))

    @method
    def metrics(self) -> Call[TierMetrics]:
        """Entries, tokens and bytes of each tier, of this session's projects."""
        return Call(GetMetrics())

    @method
    def set_budget(self, budget: TierBudget) -> Call[TierBudget]:
        """Change the bounds, for everybody; what no longer fits goes down in the same step."""
        return Call(SetBudget(budget), lambda answered: answered.reply.budget)


class BufferedTiers(TierCalls, BufferedService):
    """The tiers inside a batch or a transaction."""


class ContextTierService(TierCalls, BlockingService):
    """Context in tiers, safe from any number of threads and processes.

    There is no lock: each call is a request to the manager, the only process that touches the tiers, and takes
    effect there in one step (insert and budget enforcement included) in one total order with everybody else's.
    What comes back are immutable values; nobody but the manager ever holds a live fragment.
    """

    def store_many(self, fragments: Iterable[Fragment], *, tier: Tier = Tier.HOT) -> Sequence[FragmentPlaced]:
        """Store many, split over frames; not atomic. If some were refused, `PartlyRefused` has every outcome."""
        build = TierCalls.store.call
        groups = ([build(self, each, tier=tier) for each in chunk] for chunk in in_frames(fragments))
        return all_placed([*self.session.perform_many(groups)])

    def get_many(self, fragment_ids: Iterable[str], *, project: str | None = None) -> dict[str, StoredFragment]:
        """Read many, split over frames; not atomic. What does not exist is not in the result."""
        reading = BulkRead(fragment_ids)
        build = TierCalls.get.call
        while reading.remaining:
            groups = ([build(self, each, project=project) for each in chunk] for chunk in reading.chunks())
            reading.add([*self.session.perform_many(groups)])
        return reading.found

    def scoped(
        self,
        *,
        project: str | None = None,
        globs: Sequence[str] = (),
        tier: Tier | None = None,
        kind: str | None = None,
    ) -> Iterator[FragmentRow]:
        """All fragments that match, page by page, each as it was when its page was read."""
        cursor: str | None = None
        while True:
            page = self.list(
                project=project, globs=globs, tier=tier, kind=kind, limit=limits.PAGE_ROWS_MAX, cursor=cursor
            )
            yield from page.rows
            if page.cursor is None:
                return
            cursor = page.cursor


class BulkRead:
    """Reading many: what was found, and what is still to be asked for."""

    def __init__(self, fragment_ids: Iterable[str]) -> None:
        if isinstance(fragment_ids, str):
            raise InvalidArgument(f"get_many takes a sequence of ids: give [{fragment_ids!r}]")
        self.remaining: Sequence[str] = [*dict.fromkeys(fragment_ids)]
        self.found: dict[str, StoredFragment] = {}

    def chunks(self) -> Iterator[Sequence[str]]:
        """What is waiting, so many at a time as are read in one frame."""
        size = limits.STREAM_COMMANDS
        return (self.remaining[start : start + size] for start in range(0, len(self.remaining), size))

    def add(self, outcomes: Sequence[StoredFragment | StepwellError]) -> None:
        """All that was waiting was asked for. What does not exist is not found; any other refusal is raised."""
        not_answered: list[str] = []
        for fragment_id, outcome in zip(self.remaining, outcomes, strict=True):
            match outcome:
                case StoredFragment():
                    self.found[fragment_id] = outcome
                case NotFound():
                    pass
                case Busy():  # the reply was full before it came to this one
                    not_answered.append(fragment_id)
                case error:
                    raise error
        self.remaining = not_answered


def all_placed(outcomes: Sequence[FragmentPlaced | StepwellError]) -> Sequence[FragmentPlaced]:
    """Where many fragments went, or, if some of them were refused, `PartlyRefused`."""
    placed = [outcome for outcome in outcomes if not isinstance(outcome, StepwellError)]
    if len(placed) < len(outcomes):
        raise partly_refused(outcomes)
    return placed


def in_frames(fragments: Iterable[Fragment]) -> Iterator[Sequence[Fragment]]:
    """As many at a time as fit in a frame."""
    chunk: list[Fragment] = []
    weight = 0
    for fragment in fragments:
        require_instance(fragment, (Fragment,), "store_many takes stepwell.Fragments")
        if len(chunk) == limits.STREAM_COMMANDS or weight >= limits.STREAM_BYTES:
            yield chunk
            chunk, weight = [], 0
        chunk.append(fragment)
        weight += fragment.weight
    if chunk:
        yield chunk
