"""Bodies change their form in slices, and are readable and right at every moment between two of them."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable
from itertools import pairwise, permutations

import pytest

from stepwell import limits
from stepwell.domain.tiers.body_refs import digest_of
from stepwell.domain.tiers.model import Tier
from stepwell.limits import KIB, MIB
from stepwell.memory.writer.arena import OutOfRoom
from stepwell.memory.writer.segments import FileSegment
from stepwell.protocol.handles import Handle
from tests.support.measurement import untraced
from tests.support.memory.bodies import SLICES, BodyStoreHarness, body_store_harness, compressible, fill, noise
from tests.support.seeds import seeded

HOT, WARM, COLD = Tier
FORMS = {
    "text": {HOT: "raw in arena", WARM: "packed in arena", COLD: "packed in file"},
    "noise": {HOT: "raw in arena", WARM: "raw in arena", COLD: "raw in file"},
}
BODIES = {
    "small text": compressible(2_000),
    "large text": compressible(SLICES),
    "small noise": noise(2_000),
    "large noise": noise(SLICES),
    "empty noise": b"",
}


def out_of_space(*_arguments: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_file(_number: int, _size: int) -> FileSegment:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class TestForms:
    @pytest.mark.parametrize("name", BODIES)
    @pytest.mark.parametrize("path", [*permutations(Tier, 2), (HOT, WARM, COLD, WARM, HOT)], ids="-".join)
    def test_form_follows_the_tier(self, name: str, path: tuple[Tier, ...]) -> None:
        """In each direction, whatever its size: each form is the tier's, and every step between leaves it readable."""
        forms = FORMS[name.split()[1]]
        with body_store_harness() as harness:
            digest = harness.put(BODIES[name], path[0])
            harness.finish()
            assert harness.form(digest) == forms[path[0]]
            for _, tier in pairwise(path):
                harness.move(digest, tier)
                assert harness.read(digest) == BODIES[name]
                harness.finish()
                assert harness.form(digest) == forms[tier]
            assert harness.store.background.waiting == 0

    def test_large_body_takes_many_steps(self) -> None:
        """No step handles more than a slice: packing, writing and expanding are divided."""
        with body_store_harness() as harness:
            digest = harness.put(compressible(4 * MIB))
            harness.finish()
            for tier in (COLD, HOT):
                harness.move(digest, tier)
                assert harness.finish() >= 4 * MIB // limits.WORK_BYTES_PER_SLICE

    @pytest.mark.parametrize("name", ["small text", "large text"])
    def test_what_it_takes_when_packed_is_noted(self, name: str) -> None:
        """The domain learns what a body costs as soon as that is known, and never that it costs more."""
        with body_store_harness() as harness:
            digest = harness.put(BODIES[name], WARM)
            harness.finish()
            assert harness.refs.arena_bytes == harness.handle(digest).stored < len(BODIES[name])
            other = harness.put(BODIES["small noise"], WARM)
            harness.finish()
            assert harness.refs.counts[other].packed == len(BODIES["small noise"])

    def test_hottest_reference_decides(self) -> None:
        """A body that hot and cold refer to is kept as hot wants it."""
        with body_store_harness() as harness:
            body = BODIES["small text"]
            digest = harness.put(body, HOT)
            harness.refs.retain((digest, len(body)), COLD)
            harness.finish()
            assert harness.form(digest) == "raw in arena"
            harness.move(digest, COLD)
            harness.finish()
            assert harness.form(digest) == "packed in file"
            harness.refs.release((digest, len(body)), COLD)
            harness.delete(digest)
            assert len(harness.store) == 0

    def test_down_and_back_costs_nothing(self) -> None:
        """What is wanted is asked when the work is done."""
        with body_store_harness() as harness:
            digest = harness.put(BODIES["large text"])
            harness.finish()
            handle = harness.handle(digest)
            harness.move(digest, COLD)
            harness.move(digest, HOT)
            assert harness.finish() <= 1
            assert harness.handle(digest) is handle

    def test_incompressible_is_tried_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What did not become smaller is not packed again on its way down."""
        with body_store_harness() as harness:
            digest = harness.put(BODIES["small noise"], WARM)
            harness.finish()
            monkeypatch.setattr(harness.store.background._compressor, "pack", lambda _body: pytest.fail("packed again"))
            for tier in (COLD, WARM, COLD):
                harness.move(digest, tier)
                harness.finish()
            harness.delete(digest)
            assert not harness.store.is_incompressible(digest)

    def test_moves_are_told(self) -> None:
        """Whoever follows where bodies are is told of each move and of the end."""
        moves: list[tuple[bytes, Handle]] = []
        gone: list[bytes] = []
        with body_store_harness() as harness:
            harness.store.on_move = lambda digest, handle: moves.append((digest, handle))
            harness.store.on_drop = gone.append
            digest = harness.put(BODIES["small text"])
            harness.move(digest, COLD)
            harness.finish()
            assert moves == [(digest, harness.handle(digest))]
            harness.delete(digest)
            assert gone == [digest]


class TestInTheMiddle:
    """Something happens to a body between any two steps of its change of form."""

    @staticmethod
    def at_each_step(name: str, path: tuple[Tier, Tier], happen: Callable[[BodyStoreHarness, bytes], None]) -> None:
        """Begin anew for each step at which it may happen, and look at everything that follows."""
        for moment in range(100):
            with body_store_harness() as harness:
                digest = harness.put(BODIES[name], path[0])
                harness.finish()
                harness.move(digest, path[1])
                for number in harness.steps():
                    harness.check()
                    if number == moment:
                        happen(harness, digest)
                        harness.finish()
                        break
                else:
                    assert moment > 1 or (name, *path) == ("large noise", WARM, HOT)  # the same form
                    return
                pinned = [each.pins for each in (*harness.store.arena.segments.values(),)]
                assert not any(pinned)
        pytest.fail("more steps than expected")

    @pytest.mark.parametrize("name", ["small text", "large text", "large noise"])
    @pytest.mark.parametrize("path", [*permutations(Tier, 2)], ids="-".join)
    def test_deleted(self, name: str, path: tuple[Tier, Tier]) -> None:
        """Nothing of it is kept, neither the old form nor the half of the new one."""

        def delete(harness: BodyStoreHarness, digest: bytes) -> None:
            harness.delete(digest)
            harness.finish()
            assert (len(harness.store), harness.store.arena.live, harness.store.files.live) == (0, 0, 0)

        self.at_each_step(name, path, delete)

    @pytest.mark.parametrize("name", ["small text", "large text", "large noise"])
    @pytest.mark.parametrize("path", [*permutations(Tier, 2)], ids="-".join)
    def test_deleted_and_stored_again(self, name: str, path: tuple[Tier, Tier]) -> None:
        """The same content again is another body: what was begun for the first is not taken for it."""

        def replace(harness: BodyStoreHarness, digest: bytes) -> None:
            harness.delete(digest)
            assert harness.put(BODIES[name], path[1]) == digest
            harness.finish()
            assert harness.form(digest) == FORMS[name.split()[1]][path[1]]
            handle, packed = harness.handle(digest), harness.refs.counts[digest].packed
            assert packed == (handle.stored if handle.is_packed else handle.size)

        self.at_each_step(name, path, replace)

    @pytest.mark.parametrize("name", ["small text", "large text", "large noise"])
    @pytest.mark.parametrize("path", [*permutations(Tier, 2)], ids="-".join)
    def test_moved_back(self, name: str, path: tuple[Tier, Tier]) -> None:
        """It ends in the form of the tier in which it ended."""

        def back(harness: BodyStoreHarness, digest: bytes) -> None:
            harness.move(digest, path[0])
            harness.finish()
            assert harness.form(digest) == FORMS[name.split()[1]][path[0]]

        self.at_each_step(name, path, back)

    def test_store_that_is_closed(self) -> None:
        """A manager may end in the middle of anything: nothing is left, which the leak check of every test sees to."""
        for moment in range(6):
            with body_store_harness() as harness:
                harness.move(harness.put(BODIES["large text"]), COLD)
                for number in harness.steps():
                    if number == moment:
                        break


class TestOutOfRoom:
    def test_without_disk_it_stays_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cold bodies are readable in memory until there is disk again, and then they go."""
        with body_store_harness() as harness:
            digests = [harness.put(BODIES[name]) for name in BODIES]
            with monkeypatch.context() as patch:
                patch.setattr(harness.store.files, "_make", no_file)
                for digest in digests:
                    harness.move(digest, COLD)
                harness.finish()
                assert {harness.form(digest) for digest in digests} == {"raw in arena"}
                assert harness.store.background.waiting == len(digests)
                assert not harness.store.background.work()
            harness.store.background.retry_blocked()
            harness.finish()
            assert {harness.form(digest).split()[-1] for digest in digests} == {"file"}
            assert harness.store.background.waiting == 0

    def test_disk_that_ends_in_the_middle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was reserved is given back."""
        with body_store_harness() as harness:
            digest = harness.put(noise(6 * MIB))
            harness.move(digest, COLD)
            for _ in harness.steps():
                if harness.store.files.segments:
                    break
            assert any(segment.pins for segment in harness.store.files.segments.values())
            with monkeypatch.context() as patch:
                patch.setattr(os, "posix_fallocate", out_of_space)
                harness.finish()
            assert harness.store.files.live == 0
            assert harness.form(digest) == "raw in arena"
            harness.store.background.retry_blocked()
            harness.finish()
            assert harness.form(digest) == "raw in file"

    @pytest.mark.parametrize("name", ["small text", "large noise"])
    @pytest.mark.parametrize("failing", range(4))
    def test_disk_that_fails(self, name: str, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """At its first write or a later one: the body stays where it is, nothing is left there, and the work ends."""
        monkeypatch.setattr(limits, "FILE_SEGMENT_BYTES", 64 * KIB)  # so that a large body has one of its own
        writes, pwrite = 0, os.pwrite

        def fail(descriptor: int, data: bytes, offset: int) -> int:
            nonlocal writes
            writes += 1
            if writes > failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return pwrite(descriptor, data, offset)

        with body_store_harness() as harness:
            digest = harness.put(BODIES[name])
            harness.move(digest, COLD)
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", fail)
                harness.finish()
            if writes > failing:
                assert (harness.form(digest), harness.store.background.waiting) == ("raw in arena", 1)
                assert harness.store.files.live == 0
                assert len(harness.store.files.segments) <= (name == "small text")
            harness.store.background.retry_blocked()
            harness.finish()
            assert harness.form(digest) == FORMS[name.split()[1]][COLD]

    def test_without_memory_it_stays_on_disk(self) -> None:
        """Hot bodies are read from disk until there is memory again: when a segment is gone, it is tried again."""
        with body_store_harness(4 * MIB) as harness:
            digest = harness.put(BODIES["large noise"], COLD)
            harness.work_to_end()
            others: list[bytes] = []
            with pytest.raises(OutOfRoom):
                for number in range(100):
                    others.append(harness.put(noise(60 * KIB, number), HOT))  # noqa: PERF401 - until it raises
            harness.move(digest, HOT)
            harness.finish()
            assert (harness.form(digest), harness.store.background.waiting) == ("raw in file", 1)
            for other in others:
                harness.delete(other)
            assert harness.store.close_retired()
            harness.finish()
            assert harness.form(digest) == "raw in arena"

    def test_stuck_body_that_is_moved_back_is_not_stuck(self) -> None:
        """It has the form of its tier again, and is counted once or not at all."""
        with body_store_harness(make_file=no_file) as harness:
            digest = harness.put(BODIES["small text"])
            for _ in range(2):
                harness.move(digest, COLD)
                assert harness.store.background.waiting == 1
                harness.finish()
                assert harness.store.background.waiting == 1
            harness.move(digest, HOT)
            harness.store.background.retry_blocked()
            harness.finish()
            assert harness.store.background.waiting == 0

    def test_stuck_body_that_is_deleted(self) -> None:
        """Nobody waits for it any more."""
        with body_store_harness(make_file=no_file) as harness:
            digest = harness.put(BODIES["small text"], COLD)
            harness.finish()
            harness.delete(digest)
            assert (len(harness.store), harness.store.background.waiting) == (0, 0)

    def test_room_is_required_before_it_is_needed(self) -> None:
        """Past the bound the answer is a refusal, and what was kept is still there."""
        with body_store_harness(4 * MIB) as harness:
            with pytest.raises(OutOfRoom):
                for number in range(1_000):
                    harness.put(noise(64 * KIB, number))
            assert 4 * MIB - 512 * KIB < harness.store.arena.bytes <= 4 * MIB
            assert harness.store.is_pressed
            harness.check()


class TestDiskThatFails:
    def test_reading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cold body that cannot be read stays where it is, and is tried again later."""
        with body_store_harness() as harness:
            digest = harness.put(BODIES["small text"], COLD)
            harness.finish()
            with monkeypatch.context() as patch:
                patch.setattr(os, "pread", _broken_disk)
                harness.move(digest, HOT)
                while harness.store.background.work(1.0):
                    pass
                assert (harness.form(digest), harness.store.background.waiting) == ("packed in file", 1)
            harness.store.background.retry_blocked()
            harness.finish()
            assert (harness.form(digest), harness.store.background.waiting) == ("raw in arena", 0)

    def test_emptying(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A segment that cannot be walked is left alone for good, whoever is told why, and everything else goes on."""
        told: list[Exception] = []
        monkeypatch.setattr(limits, "DEAD_PERCENT_MAX", 0)
        with body_store_harness() as harness:
            harness.store.background.on_failure = told.append
            harness.store.files.segment_bytes = 512 * KIB
            digests = [harness.put(noise(30 * KIB, number), COLD) for number in range(40)]
            harness.finish()
            with monkeypatch.context() as patch:
                patch.setattr(os, "pread", _broken_disk)
                for digest in digests[::2]:
                    harness.delete(digest)
                while harness.store.background.work(1.0):
                    pass
            assert [type(error) for error in told] == [OSError] * len(told)
            assert told
            harness.put(BODIES["small text"])
            harness.check()
            assert len(harness.store.files.segments) > 1
            for digest in digests[1::2]:
                harness.delete(digest)
            assert (
                len(harness.store.files.segments) == 1
            )  # the one that is being filled: what is dead goes all the same

    def test_rotten(self) -> None:
        """Bytes on disk that are not what was written cost their body its new form, and nobody anything else."""
        told: list[Exception] = []
        with body_store_harness() as harness:
            harness.store.background.on_failure = told.append
            digest = harness.put(BODIES["large text"], COLD)
            harness.finish()
            handle = harness.handle(digest)
            harness.store.segment(handle.segment).write(handle.offset, b"rotten")
            harness.move(digest, HOT)
            while harness.store.background.work(1.0):
                pass
            assert (len(told), harness.form(digest), harness.store.background.waiting) == (1, "packed in file", 1)
            other = harness.put(BODIES["small text"], COLD)
            while harness.store.background.work(1.0):
                pass
            assert harness.form(other) == "packed in file"


def _broken_disk(*_arguments: object) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class TestReferences:
    def test_equal_bodies_are_one(self) -> None:
        """They are kept once, until the last who refers to them is gone."""
        with body_store_harness() as harness:
            body = BODIES["small text"]
            digest = harness.put(body)
            live = harness.store.arena.live
            harness.refs.retain((digest, len(body)), HOT)
            harness.store.add_referenced({digest: bytes(bytearray(body))})
            assert (len(harness.store), harness.store.arena.live) == (1, live)
            harness.refs.release((digest, len(body)), HOT)
            harness.store.recheck(digest)
            assert harness.read(digest) == body
            harness.delete(digest)
            assert (len(harness.store), harness.store.arena.live) == (0, 0)
            assert harness.store.find(digest) is None

    def test_what_nothing_refers_to_is_not_kept(self) -> None:
        """A body that came with a command which did not need it in the end."""
        with body_store_harness() as harness:
            harness.store.add_referenced({digest_of(b"a"): b"a"})
            harness.store.recheck(digest_of(b"a"))
            assert (len(harness.store), harness.store.arena.live) == (0, 0)

    def test_places_of_several(self) -> None:
        """Where each is, by its digest."""
        with body_store_harness() as harness:
            digests = [harness.put(BODIES[name]) for name in BODIES]
            assert harness.store.locate(digests) == {digest: harness.handle(digest) for digest in digests}


class TestUploads:
    def test_bytes_go_straight_to_their_place(self) -> None:
        """They are hashed as they come; the body is there when they all have, and as long as it is staged."""
        with body_store_harness() as harness:
            body = BODIES["large noise"]
            upload = harness.store.reserve(len(body))
            while not upload.prepare():
                pass
            seen = [upload.is_complete]
            fill(upload, body)
            seen.append(upload.is_complete)
            assert seen == [False, True]
            with upload.room as room:
                assert len(room) == 0
            digest, size = harness.store.stage(upload)
            assert (digest, size) == (hashlib.sha256(body).digest(), len(body))
            harness.finish()
            harness.refer(digest, body)
            harness.store.unstage(digest)
            assert harness.form(digest) == "raw in arena"
            harness.finish()

    @pytest.mark.parametrize("tier", Tier)
    def test_taken_by_a_command(self, tier: Tier) -> None:
        """Whoever uploaded it lets go of it, and it takes the form of the tier that it was stored in."""
        with body_store_harness() as harness:
            body = BODIES["large text"]
            digest, _ = harness.store.stage(harness.upload(body))
            harness.refer(digest, body, tier)
            harness.store.unstage(digest)
            harness.finish()
            assert harness.form(digest) == FORMS["text"][tier]

    def test_not_taken(self) -> None:
        """What no command wanted goes."""
        with body_store_harness() as harness:
            digest, _ = harness.store.stage(harness.upload(BODIES["large text"]))
            harness.store.recheck(digest)
            assert len(harness.store) == 1
            harness.store.unstage(digest)
            assert (len(harness.store), harness.store.arena.live) == (0, 0)

    def test_deleted_while_it_is_staged(self) -> None:
        """Stays for whoever has just uploaded it, and goes when they let go of it."""
        with body_store_harness() as harness:
            body = BODIES["large text"]
            digest, _ = harness.store.stage(harness.upload(body))
            harness.refer(digest, body, COLD)
            harness.delete(digest)
            harness.finish()
            assert len(harness.store) == 1
            harness.store.unstage(digest)
            assert len(harness.store) == 0

    def test_same_body_twice(self) -> None:
        """The second copy is given back at once; both have to let go of it."""
        with body_store_harness() as harness:
            body = BODIES["large noise"]
            uploads = [harness.upload(body) for _ in range(2)]
            live = harness.store.arena.live
            digests = {harness.store.stage(upload)[0] for upload in uploads}
            assert harness.store.arena.live == live // 2
            (digest,) = digests
            harness.store.unstage(digest)
            assert len(harness.store) == 1
            harness.store.unstage(digest)
            assert (len(harness.store), harness.store.arena.live) == (0, 0)

    def test_what_is_there_already(self) -> None:
        """An upload of a body that is kept, in whatever form, adds nothing; an inline one of an upload neither."""
        with body_store_harness() as harness:
            body = BODIES["large text"]
            digest = harness.put(body, COLD)
            harness.finish()
            handle = harness.handle(digest)
            harness.store.stage(harness.upload(body))
            assert (harness.handle(digest), harness.store.arena.live) == (handle, 0)
            harness.store.unstage(digest)
            other, _ = harness.store.stage(harness.upload(BODIES["large noise"]))
            live = harness.store.arena.live
            assert harness.put(BODIES["large noise"]) == other
            assert harness.store.arena.live == live
            harness.store.unstage(other)
            harness.finish()

    def test_abandoned(self) -> None:
        """Whoever goes away in the middle leaves nothing."""
        with body_store_harness() as harness:
            body = BODIES["large noise"]
            upload = harness.store.reserve(len(body))
            upload.prepare()
            fill(upload, body[:1_000])
            upload.abandon()
            assert (harness.store.arena.live, harness.store.arena.bytes) == (0, 0)

    def test_no_room(self) -> None:
        """A body larger than the arena is refused when it is offered."""
        with body_store_harness(4 * MIB) as harness:
            with pytest.raises(OutOfRoom):
                harness.store.reserve(4 * MIB)


class TestEmptying:
    def test_mostly_dead_segments_are_emptied(self) -> None:
        """Whatever lives in them is readable at every step, and their memory comes back."""
        with body_store_harness() as harness:
            digests = [harness.put(noise(16 * KIB, number)) for number in range(600)]
            for number, digest in enumerate(digests):
                if number % 4:
                    harness.delete(digest)
            before = harness.store.arena.bytes
            harness.finish(lambda: None)
            assert harness.store.arena.bytes < before / 2
            self.bounded(harness)
            assert harness.store.close_retired()
            assert harness.store.close_retired() == []

    @staticmethod
    def bounded(harness: BodyStoreHarness) -> None:
        for arena in (harness.store.arena, harness.store.files):
            assert arena.bytes <= arena.live / 0.8 + 2 * arena.segment_bytes

    def test_files_are_emptied_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Disk comes back in the same way."""
        monkeypatch.setattr(limits, "FILE_SEGMENT_BYTES", MIB)
        with body_store_harness() as harness:
            digests = [harness.put(noise(16 * KIB, number), COLD) for number in range(600)]
            harness.finish(lambda: None)
            for number, digest in enumerate(digests):
                if number % 4:
                    harness.delete(digest)
            before = harness.store.files.bytes
            harness.finish(lambda: None)
            assert harness.store.files.bytes < before / 2
            self.bounded(harness)

    @staticmethod
    def beside_the_dead(harness: BodyStoreHarness) -> bytes:
        """A large body in a segment that is worth emptying."""
        beside, large = harness.put(noise(450 * KIB, 1)), harness.put(noise(500 * KIB, 2))
        assert harness.handle(beside).segment == harness.handle(large).segment
        harness.put(noise(200 * KIB, 3))
        harness.delete(beside)
        return large

    def test_large_body_moves_in_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No step moves more than a slice of it, and it is where it was until all of it is elsewhere."""
        monkeypatch.setattr(limits, "WORK_BYTES_PER_SLICE", 16 * KIB)
        with body_store_harness() as harness:
            large = self.beside_the_dead(harness)
            handle = harness.handle(large)
            seen: list[Handle] = []
            steps = harness.finish(lambda: seen.append(harness.handle(large)))
            assert steps > 500 // 16
            assert seen.count(handle) >= 500 // 16
            assert harness.store.close_retired() == [(handle.segment, MIB)]
            harness.check()

    def test_large_body_that_is_deleted_while_it_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At whatever step: what was begun is given back, and both segments are whole."""
        monkeypatch.setattr(limits, "WORK_BYTES_PER_SLICE", 64 * KIB)
        moments = 0
        for moment in range(30):
            with body_store_harness() as harness:
                large = self.beside_the_dead(harness)
                for number in harness.steps():
                    if number == moment:
                        moments += 1
                        harness.delete(large)
                        harness.finish()
                        break
                harness.check()
                assert not any(segment.pins for segment in harness.store.arena.segments.values())
        assert 500 // 64 < moments < 30

    def test_large_body_that_is_deleted_while_memory_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The place that was reserved for it is not all there yet, and its old one is gone already."""
        monkeypatch.setattr(limits, "ALLOCATION_BYTES", 4096)
        monkeypatch.setattr(limits, "PREPARED_BYTES_PER_TURN", 64 * KIB)
        with body_store_harness() as harness:
            large = self.beside_the_dead(harness)
            harness.store.background.work(0)
            harness.delete(large)
            harness.finish()
            assert len(harness.store) == 1

    @pytest.mark.parametrize("size", [SLICES, 64 * KIB, 116 * KIB, 130 * KIB, 16 * KIB, 1_000])
    @untraced()
    def test_full_arena_comes_to_rest(self, size: int) -> None:
        """Bodies of any size fill it, and the work ends: what they leave at the ends of segments is no dead space."""
        with body_store_harness(32 * MIB) as harness:
            with pytest.raises(OutOfRoom):
                for number in range(100_000):
                    harness.put(noise(size, number))
            assert harness.store.is_pressed
            harness.finish(lambda: None)
            assert not harness.store.background.work(0)

    def test_full_arena_is_put_in_order(self) -> None:
        """With dead space all over it and not one free segment, there is still room to move what is live."""
        with body_store_harness(32 * MIB) as harness:
            digests: list[bytes] = []
            with pytest.raises(OutOfRoom):
                for number in range(100_000):
                    digests.append(harness.put(noise(16 * KIB, number)))  # noqa: PERF401 - until it raises
            for digest in digests[::2]:
                harness.delete(digest)
            with pytest.raises(OutOfRoom):
                harness.put(noise(MIB - 64 * KIB))
            bound = harness.store.arena.limit
            harness.finish(lambda: self._within(harness, bound))
            self.bounded(harness)
            harness.put(noise(MIB - 64 * KIB))

    @staticmethod
    def _within(harness: BodyStoreHarness, bound: int) -> None:
        assert harness.store.arena.bytes <= bound

    @pytest.mark.parametrize(
        "sizes",
        [(16 * KIB,), (100, 4 * KIB, 60 * KIB), (64 * KIB,), (130 * KIB, 300), (300 * KIB, 500, 20 * KIB)],
        ids=str,
    )
    @untraced()
    def test_store_finds_room_after_the_work(self, sizes: tuple[int, ...]) -> None:
        """As long as no more is live than the domain allows, a store that finds no room finds it when that is made."""
        random = seeded(3)
        with body_store_harness(16 * MIB) as harness:
            most = 16 * MIB * limits.ARENA_LIVE_PERCENT // 100
            digests: list[bytes] = []
            for number in range(1_200):
                size = random.choice(sizes)
                while harness.refs.bytes + size > most:
                    harness.delete(digests.pop(random.randrange(len(digests))))
                body = number.to_bytes(8) + bytes(size - 8)
                try:
                    digests.append(harness.put_or_upload(body))
                except OutOfRoom:
                    while harness.store.background.work():
                        self._within(harness, 16 * MIB)
                    digests.append(harness.put_or_upload(body))
                self._within(harness, 16 * MIB)

    def test_without_memory_the_work_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Emptying that finds no memory is given up until something changes, and not tried for ever."""
        with body_store_harness() as harness:
            digests = [harness.put(noise(16 * KIB, number)) for number in range(300)]
            for digest in digests[::2]:
                harness.delete(digest)
            with monkeypatch.context() as patch:
                patch.setattr(harness.store.arena, "_make", no_file)
                patch.setattr(os, "posix_fallocate", out_of_space)
                harness.finish(lambda: None)
                assert not harness.store.background.work(0)
            harness.delete(digests[1])
            harness.finish(lambda: None)
            self.bounded(harness)

    def test_bound_that_is_lowered(self) -> None:
        """An arena that is larger than its new bound is emptied as far as it can be."""
        with body_store_harness(64 * MIB) as harness:
            digests = [harness.put(noise(16 * KIB, number)) for number in range(3_000)]
            for number, digest in enumerate(digests):
                if number % 4:
                    harness.delete(digest)
            harness.store.resize(32 * MIB)
            assert harness.store.arena.bytes > harness.store.arena.limit
            harness.finish(lambda: None)
            assert harness.store.arena.bytes < harness.store.arena.limit
            self.bounded(harness)

    def test_idle_store_has_nothing_to_do(self) -> None:
        """Nothing has changed since there was nothing to do: it is not looked for again."""
        with body_store_harness() as harness:
            harness.put(BODIES["small text"])
            harness.finish()
            assert harness.store.background._running is None
            assert not harness.store.background.work()
            assert harness.store.background._running is None

    def test_work_that_takes_long_is_interrupted(self) -> None:
        """It says that there may be more, until there is not."""
        with body_store_harness() as harness:
            harness.move(harness.put(compressible(8 * MIB)), COLD)
            assert harness.store.background.work(0)
            assert not harness.store.background.work(60)

    @untraced()
    def test_memory_is_bounded_through_a_long_churn(self) -> None:
        """Whatever comes and goes: at rest there is a quarter more than what is live, and two segments."""
        random = seeded(7)
        with body_store_harness(16 * MIB) as harness:
            digests: list[bytes] = []
            for number in range(3_000):
                size = random.choice([100, 4 * KIB, 16 * KIB, 60 * KIB])
                body = noise(size, number) if random.random() < 0.5 else compressible(size, number)
                with contextlib.suppress(OutOfRoom):
                    digests.append(harness.put(body, random.choice([HOT, WARM, COLD])))
                while harness.refs.arena_bytes > 11 * MIB or (digests and random.random() < 0.4):
                    harness.delete(digests.pop(random.randrange(len(digests))))
                if digests and random.random() < 0.3:
                    harness.move(random.choice(digests), random.choice([HOT, WARM, COLD]))
                for _ in range(random.randrange(20)):
                    harness.store.background.work(0)
                assert harness.store.arena.bytes <= 16 * MIB
                if number % 300 == 0:
                    harness.work_to_end()
                    self.bounded(harness)
            harness.work_to_end()
            self.bounded(harness)
            assert harness.store.background.waiting == 0
