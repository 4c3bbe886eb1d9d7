"""`ContextTierService`: fragments in three tiers (hot, warm, cold) under a token budget that all sessions share.

A write and the demotions that it causes are one step in the manager. So the budget holds at every revision, whatever
other sessions do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from stepwell import limits
from stepwell.client.api.fragments import StoredFragment, body_bytes
from stepwell.client.api.service import BlockingService, BufferedService, Service, method
from stepwell.client.session.calls import Answered, Call, partly_refused
from stepwell.client.session.current_work import current_work
from stepwell.client.session.tokens import estimate_tokens
from stepwell.domain.checks import require_instance
from stepwell.domain.replies import (
    FragmentChecked,
    FragmentFound,
    FragmentPage,
    FragmentPlaced,
    FragmentRemoved,
    FragmentsMoved,
    ProjectPage,
    TierMetrics,
)
from stepwell.domain.tiers.commands import (
    CheckFragment,
    DeleteFragment,
    DemoteFragment,
    EvictLru,
    GetFragment,
    GetMetrics,
    ListFragments,
    ListProjects,
    PeekFragment,
    PromoteFragment,
    RequireFragment,
    SetBudget,
    StoreFragment,
    StoreOptions,
    SweepStale,
)
from stepwell.domain.tiers.model import Fragment, FragmentRow, Tier, TierBudget
from stepwell.errors import Busy, InvalidArgument, NotFound, StepwellError


class TierCalls(Service):
    """The calls on fragments; their result depends on the kind of service."""

    @method
    def store(
        self,
        fragment: Fragment,
        *,
        tier: Tier = Tier.HOT,
        expected_revision: int | None = None,
        unique: bool = False,
    ) -> Call[FragmentPlaced]:
        """Insert or replace a fragment, and demote others until every budget holds, in one step.

        A fragment larger than the whole hot tier goes to warm, and the reply's note says so. With `expected_revision`
        (0: "must not exist") a writer whose knowledge is stale gets `Conflict`. Tokens are counted here unless the
        fragment has a count.

        With `unique`, nothing is stored if another fragment of the project has the same body: the reply names that
        fragment, with the note `equal_body`. So two processes that store equal bodies at once get one id. The first
        such store in a project of more than 20,000 fragments may answer `Busy` while these are indexed.
        """
        require_instance(fragment, (Fragment,), "store takes a stepwell.Fragment")
        body = body_bytes(fragment)
        is_large = len(body) > limits.INLINE_BODY_BYTES_MAX
        command = StoreFragment(
            project=self.session.project_or_default(fragment.project),
            fragment_id=fragment.fragment_id,
            body=0 if is_large else bytes(body),
            tokens=self._tokens(fragment, body),
            tier=tier,
            source=fragment.source,
            kind=fragment.kind,
            detail_depth=fragment.detail_depth,
            metadata=fragment.metadata,
            expected_revision=expected_revision,
            options=_options(fragment, unique=unique),
            work=current_work(self.session.channel.address),
        )
        return Call(command, large={"body": body} if is_large else None)

    def _tokens(self, fragment: Fragment, body: bytes | memoryview) -> int:
        """Return the given tokens, or count them; those of a fragment with `keep`, which no budget counts, roughly."""
        if fragment.tokens is not None:
            return fragment.tokens
        return estimate_tokens(body) if fragment.keep else self.session.count_tokens(body)

    @method
    def get(self, fragment_id: str, *, project: str | None = None) -> Call[StoredFragment]:
        """Return a fragment. A read is an access: enough of them promote the fragment one tier, in the same step.

        A hot fragment is mostly read from shared memory, without a request. Its access counts a moment later: with the
        next request of this session.
        """
        return Call(GetFragment(self.session.project_or_default(project), fragment_id), self._stored)

    @method
    def peek(self, fragment_id: str, *, project: str | None = None) -> Call[StoredFragment]:
        """Return a fragment without an access: its recency, its access count and its tier stay as they are."""
        return Call(PeekFragment(self.session.project_or_default(project), fragment_id), self._stored)

    @method
    def contains(self, fragment_id: str, *, project: str | None = None) -> Call[bool]:
        """Return True if a fragment exists. It is no access, and no body is read."""
        return Call(CheckFragment(self.session.project_or_default(project), fragment_id), _exists)

    def _stored(self, answered: Answered[FragmentFound]) -> StoredFragment:
        """Find the body of the fragment that was read, and return both."""
        reply = answered.reply
        digest = reply.row.digest
        stored, handle = self.session.bodies.find(digest, answered.handles[digest])
        self.session.reads.index.note_answer(reply.row.key, reply.last_accessed_ms, reply.access_count)
        return StoredFragment(reply.row, handle, stored, reply.last_accessed_ms, reply.access_count)

    @get.shortcut
    def _get_indexed(self, fragment_id: str, project: str | None) -> StoredFragment | None:
        """Return a hot fragment from shared memory, or None if the manager has to be asked.

        The body cannot change, so that it is looked for last. An answer of the manager brings its segment along.
        """
        session = self.session
        reads = session.reads
        index = reads.index
        found = index.find((session.only_project if project is None else project, fragment_id), reads.report_at_ns)
        if found is None or (stored := index.body_of(found)) is None:
            reads.note_miss()
            return None
        reads.count(found)
        return StoredFragment(found.row, found.handle, stored, found.last_accessed_ms, found.access_count)

    @peek.shortcut
    def _peek_indexed(self, fragment_id: str, project: str | None) -> StoredFragment | None:
        """Do as `_get_indexed`, without an access."""
        session = self.session
        reads = session.reads
        found = reads.find(session.only_project if project is None else project, fragment_id)
        if found is None or (stored := reads.index.body_of(found)) is None:
            return None
        found.refresh()
        return StoredFragment(found.row, found.handle, stored, found.last_accessed_ms, found.access_count)

    @contains.shortcut
    def _contains_indexed(self, fragment_id: str, project: str | None) -> bool | None:
        """Return True if a fragment is in the index, or None if the manager has to be asked."""
        session = self.session
        found = session.reads.find(session.only_project if project is None else project, fragment_id)
        return None if found is None else True

    @method
    def promote(self, fragment_id: str, *, project: str | None = None) -> Call[FragmentPlaced]:
        """Move a fragment up one tier. If hot has no room for it, it stays in warm, and the reply's note says so."""
        command = PromoteFragment(self.session.project_or_default(project), fragment_id)
        return Call(command)

    @method
    def demote(self, fragment_id: str, *, project: str | None = None) -> Call[FragmentPlaced]:
        """Move a fragment down one tier, with its whole body and its token count."""
        command = DemoteFragment(self.session.project_or_default(project), fragment_id)
        return Call(command)

    @method
    def delete(
        self,
        fragment_id: str,
        *,
        project: str | None = None,
        expected_revision: int | None = None,
        missing_ok: bool = False,
    ) -> Call[FragmentRemoved]:
        """Delete a fragment. With `expected_revision`, only if it was not replaced since; otherwise `Conflict`.

        With `missing_ok` it is no error if there is none: the reply's `tier` is None then.
        """
        project = self.session.project_or_default(project)
        return Call(DeleteFragment(project, fragment_id, expected_revision, missing_ok))

    @method
    def require(self, fragment_id: str, *, revision: int, project: str | None = None) -> Call[FragmentChecked]:
        """Refuse with `Conflict` unless a fragment is at a revision, 0 for "absent". It changes nothing.

        In a transaction, all other writes happen only if this holds.
        """
        return Call(RequireFragment(self.session.project_or_default(project), fragment_id, revision))

    @method
    def evict_lru(self, tier: Tier = Tier.HOT, count: int = 1) -> Call[FragmentsMoved]:
        """Demote the `count` least recently used fragments of a tier; cold ones are deleted.

        Only fragments of this session's projects are chosen.
        """
        return Call(EvictLru(tier, count))

    @method
    def sweep(self) -> Call[FragmentsMoved]:
        """Demote the fragments that were idle for longer than their tier allows.

        The manager also does this by itself.
        """
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
        """Return a page of fragments in order of creation, without bodies. `scoped` follows the cursor.

        `globs` are matched against the source; one that matches is enough. The row that `ingest` keeps for each file,
        beside its fragments, is listed only with `kind="file"`. Listing is no access, so it promotes nothing.
        """
        if isinstance(globs, str):
            raise InvalidArgument(f"globs is a sequence of globs: give [{globs!r}]")
        command = ListFragments(self.session.project_or_default(project), tuple(globs), tier, kind, limit, cursor)
        return Call(command)

    @method
    def projects(self, *, limit: int = 100, cursor: str | None = None) -> Call[ProjectPage]:
        """Return a page of the projects that hold fragments and that this session may see."""
        return Call(ListProjects(limit, cursor))

    @method
    def metrics(self) -> Call[TierMetrics]:
        """Return the fragments, tokens and bytes of each tier, of this session's projects.

        The rows that `ingest` keeps for whole files are counted apart, as `files`.
        """
        return Call(GetMetrics())

    @method
    def set_budget(self, budget: TierBudget) -> Call[TierBudget]:
        """Change the budget of all sessions. Fragments that no longer fit are demoted in the same step."""
        return Call(SetBudget(budget), lambda answered: answered.reply.budget)


def _options(fragment: Fragment, *, unique: bool) -> StoreOptions | None:
    """Return the options of a store, or None for the usual one without any."""
    if not (unique or fragment.keep or fragment.expires_at_ms or fragment.expires_after_ms):
        return None
    return StoreOptions(fragment.keep, fragment.expires_at_ms, fragment.expires_after_ms, unique)


def _exists(answered: Answered[FragmentChecked]) -> bool:
    """Return True if the fragment that was checked has a revision."""
    return answered.reply.fragment_revision is not None


class BufferedTiers(TierCalls, BufferedService):
    """The calls on fragments inside a batch or a transaction."""


class ContextTierService(TierCalls, BlockingService):
    """Fragments in tiers, for any number of threads and processes.

    There is no lock. Each call is a request to the manager, the only process that changes tiers, and takes effect there
    in one step (insertion and budget included), in one total order with the calls of all other sessions. Results are
    immutable values; only the manager holds a live fragment.

    Reads of hot fragments are looked up in shared memory and need no request, unless the session has reads to report
    (see `client.session.indexed_reads`). They return what was committed at some moment during the call.
    """

    def store_many(self, fragments: Iterable[Fragment], *, tier: Tier = Tier.HOT) -> Sequence[FragmentPlaced]:
        """Store many fragments in several frames; not atomic. If some are refused, `PartlyRefused` has every outcome.

        `fragments` may be a generator: it is read a frame at a time, while the manager stores the previous frame.
        """
        build = TierCalls.store.call
        groups = ([build(self, each, tier=tier) for each in chunk] for chunk in in_frames(fragments))
        return all_placed([*self.session.perform_many(groups)])

    def get_many(self, fragment_ids: Iterable[str], *, project: str | None = None) -> dict[str, StoredFragment]:
        """Return many fragments by id, read in several frames; not atomic. Missing fragments are left out."""
        reading = BulkRead(fragment_ids)
        reading.find_indexed(lambda each: self._get_indexed(each, project))
        build = TierCalls.get.call
        while reading.remaining:
            groups = ([build(self, each, project=project) for each in chunk] for chunk in reading.chunks())
            reading.add([*self.session.perform_many(groups)])
        return reading.in_order()

    def scoped(
        self,
        *,
        project: str | None = None,
        globs: Sequence[str] = (),
        tier: Tier | None = None,
        kind: str | None = None,
    ) -> Iterator[FragmentRow]:
        """Yield all fragments that match, page by page, each as it was when its page was read."""
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
    """The state of `get_many`: the fragments that were found, and the ids that are still to be read.

    The manager bounds a reply. It answers `Busy` to the reads that did not fit, and these are asked for again.
    """

    def __init__(self, fragment_ids: Iterable[str]) -> None:
        if isinstance(fragment_ids, str):
            raise InvalidArgument(f"get_many takes a sequence of ids: give [{fragment_ids!r}]")
        self._wanted: Sequence[str] = [*dict.fromkeys(fragment_ids)]
        self.remaining = self._wanted
        self.found: dict[str, StoredFragment] = {}

    def find_indexed(self, find: Callable[[str], StoredFragment | None]) -> None:
        """Read what needs no request. The rest remains."""
        found = {each: fragment for each in self._wanted if (fragment := find(each)) is not None}
        self.found, self.remaining = found, [each for each in self._wanted if each not in found]

    def in_order(self) -> dict[str, StoredFragment]:
        """Return the fragments that were found, in the order in which they were asked for."""
        found = self.found
        return {each: found[each] for each in self._wanted if each in found}

    def chunks(self) -> Iterator[Sequence[str]]:
        """Yield the remaining ids in groups for one frame each."""
        size = limits.STREAM_COMMANDS
        return (self.remaining[start : start + size] for start in range(0, len(self.remaining), size))

    def add(self, outcomes: Sequence[StoredFragment | StepwellError]) -> None:
        """Add the outcomes of all remaining ids. A missing fragment is skipped; any other refusal is raised.

        The manager answers at least the first read of each frame, so `get_many` makes progress with every round.
        """
        not_answered: list[str] = []
        for fragment_id, outcome in zip(self.remaining, outcomes, strict=True):
            match outcome:
                case StoredFragment():
                    self.found[fragment_id] = outcome
                case NotFound():
                    pass
                case Busy():  # the reply was full before this fragment
                    not_answered.append(fragment_id)
                case error:
                    raise error
        self.remaining = not_answered


def all_placed(outcomes: Sequence[FragmentPlaced | StepwellError]) -> Sequence[FragmentPlaced]:
    """Return the placement of all fragments, or raise `PartlyRefused` if some were refused."""
    placed = [outcome for outcome in outcomes if not isinstance(outcome, StepwellError)]
    if len(placed) < len(outcomes):
        raise partly_refused(outcomes)
    return placed


def in_frames(fragments: Iterable[Fragment]) -> Iterator[Sequence[Fragment]]:
    """Yield groups of fragments that fit into a frame each.

    A group ends at a number of commands or at a sum of weights, whichever comes first. The next group is collected
    while the manager executes the previous one.
    """
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
