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
from tests.support.memory.bodies import SLICES, Shelf, compressible, fill, noise, shelf
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
        with shelf() as shelved:
            digest = shelved.put(BODIES[name], path[0])
            shelved.finish()
            assert shelved.form(digest) == forms[path[0]]
            for _, tier in pairwise(path):
                shelved.move(digest, tier)
                assert shelved.read(digest) == BODIES[name]
                shelved.finish()
                assert shelved.form(digest) == forms[tier]
            assert shelved.store.labour.waiting == 0

    def test_large_body_takes_many_steps(self) -> None:
        """No step handles more than a slice: packing, writing and expanding are divided."""
        with shelf() as shelved:
            digest = shelved.put(compressible(4 * MIB))
            shelved.finish()
            for tier in (COLD, HOT):
                shelved.move(digest, tier)
                assert shelved.finish() >= 4 * MIB // limits.WORK_BYTES_PER_SLICE

    @pytest.mark.parametrize("name", ["small text", "large text"])
    def test_what_it_takes_when_packed_is_noted(self, name: str) -> None:
        """The domain learns what a body costs as soon as that is known, and never that it costs more."""
        with shelf() as shelved:
            digest = shelved.put(BODIES[name], WARM)
            shelved.finish()
            assert shelved.counted.arena_bytes == shelved.handle(digest).stored < len(BODIES[name])
            other = shelved.put(BODIES["small noise"], WARM)
            shelved.finish()
            assert shelved.counted.counts[other].packed == len(BODIES["small noise"])

    def test_hottest_reference_decides(self) -> None:
        """A body that hot and cold refer to is kept as hot wants it."""
        with shelf() as shelved:
            body = BODIES["small text"]
            digest = shelved.put(body, HOT)
            shelved.counted.retain((digest, len(body)), COLD)
            shelved.finish()
            assert shelved.form(digest) == "raw in arena"
            shelved.move(digest, COLD)
            shelved.finish()
            assert shelved.form(digest) == "packed in file"
            shelved.counted.release((digest, len(body)), COLD)
            shelved.delete(digest)
            assert len(shelved.store) == 0

    def test_down_and_back_costs_nothing(self) -> None:
        """What is wanted is asked when the work is done."""
        with shelf() as shelved:
            digest = shelved.put(BODIES["large text"])
            shelved.finish()
            handle = shelved.handle(digest)
            shelved.move(digest, COLD)
            shelved.move(digest, HOT)
            assert shelved.finish() <= 1
            assert shelved.handle(digest) is handle

    def test_incompressible_is_tried_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What did not become smaller is not packed again on its way down."""
        with shelf() as shelved:
            digest = shelved.put(BODIES["small noise"], WARM)
            shelved.finish()
            monkeypatch.setattr(shelved.store.labour._packer, "pack", lambda _body: pytest.fail("packed again"))
            for tier in (COLD, WARM, COLD):
                shelved.move(digest, tier)
                shelved.finish()
            shelved.delete(digest)
            assert not shelved.store.labour.incompressible

    def test_moves_are_told(self) -> None:
        """Whoever follows where bodies are is told of each move and of the end."""
        moves: list[tuple[bytes, Handle]] = []
        gone: list[bytes] = []
        with shelf() as shelved:
            shelved.store.on_move = lambda digest, handle: moves.append((digest, handle))
            shelved.store.on_drop = gone.append
            digest = shelved.put(BODIES["small text"])
            shelved.move(digest, COLD)
            shelved.finish()
            assert moves == [(digest, shelved.handle(digest))]
            shelved.delete(digest)
            assert gone == [digest]


class TestInTheMiddle:
    """Something happens to a body between any two steps of its change of form."""

    @staticmethod
    def at_each_step(name: str, path: tuple[Tier, Tier], happen: Callable[[Shelf, bytes], None]) -> None:
        """Begin anew for each step at which it may happen, and look at everything that follows."""
        for moment in range(100):
            with shelf() as shelved:
                digest = shelved.put(BODIES[name], path[0])
                shelved.finish()
                shelved.move(digest, path[1])
                for number in shelved.steps():
                    shelved.check()
                    if number == moment:
                        happen(shelved, digest)
                        shelved.finish()
                        break
                else:
                    assert moment > 1 or (name, *path) == ("large noise", WARM, HOT)  # the same form
                    return
                pinned = [each.pins for each in (*shelved.store.arena.segments.values(),)]
                assert not any(pinned)
        pytest.fail("more steps than expected")

    @pytest.mark.parametrize("name", ["small text", "large text", "large noise"])
    @pytest.mark.parametrize("path", [*permutations(Tier, 2)], ids="-".join)
    def test_deleted(self, name: str, path: tuple[Tier, Tier]) -> None:
        """Nothing of it is kept, neither the old form nor the half of the new one."""

        def delete(shelved: Shelf, digest: bytes) -> None:
            shelved.delete(digest)
            shelved.finish()
            assert (len(shelved.store), shelved.store.arena.live, shelved.store.files.live) == (0, 0, 0)

        self.at_each_step(name, path, delete)

    @pytest.mark.parametrize("name", ["small text", "large text", "large noise"])
    @pytest.mark.parametrize("path", [*permutations(Tier, 2)], ids="-".join)
    def test_deleted_and_stored_again(self, name: str, path: tuple[Tier, Tier]) -> None:
        """The same content again is another body: what was begun for the first is not taken for it."""

        def replace(shelved: Shelf, digest: bytes) -> None:
            shelved.delete(digest)
            assert shelved.put(BODIES[name], path[1]) == digest
            shelved.finish()
            assert shelved.form(digest) == FORMS[name.split()[1]][path[1]]
            handle, packed = shelved.handle(digest), shelved.counted.counts[digest].packed
            assert packed == (handle.stored if handle.packed else handle.size)

        self.at_each_step(name, path, replace)

    @pytest.mark.parametrize("name", ["small text", "large text", "large noise"])
    @pytest.mark.parametrize("path", [*permutations(Tier, 2)], ids="-".join)
    def test_moved_back(self, name: str, path: tuple[Tier, Tier]) -> None:
        """It ends in the form of the tier in which it ended."""

        def back(shelved: Shelf, digest: bytes) -> None:
            shelved.move(digest, path[0])
            shelved.finish()
            assert shelved.form(digest) == FORMS[name.split()[1]][path[0]]

        self.at_each_step(name, path, back)

    def test_store_that_is_closed(self) -> None:
        """A manager may end in the middle of anything: nothing is left, which the leak check of every test sees to."""
        for moment in range(6):
            with shelf() as shelved:
                shelved.move(shelved.put(BODIES["large text"]), COLD)
                for number in shelved.steps():
                    if number == moment:
                        break


class TestOutOfRoom:
    def test_without_disk_it_stays_where_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cold bodies are readable in memory until there is disk again, and then they go."""
        with shelf() as shelved:
            digests = [shelved.put(BODIES[name]) for name in BODIES]
            with monkeypatch.context() as patch:
                patch.setattr(shelved.store.files, "_make", no_file)
                for digest in digests:
                    shelved.move(digest, COLD)
                shelved.finish()
                assert {shelved.form(digest) for digest in digests} == {"raw in arena"}
                assert shelved.store.labour.waiting == len(digests)
                assert not shelved.store.labour.work()
            shelved.store.labour.try_again()
            shelved.finish()
            assert {shelved.form(digest).split()[-1] for digest in digests} == {"file"}
            assert shelved.store.labour.waiting == 0

    def test_disk_that_ends_in_the_middle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was reserved is given back."""
        with shelf() as shelved:
            digest = shelved.put(noise(6 * MIB))
            shelved.move(digest, COLD)
            for _ in shelved.steps():
                if shelved.store.files.segments:
                    break
            assert any(segment.pins for segment in shelved.store.files.segments.values())
            with monkeypatch.context() as patch:
                patch.setattr(os, "posix_fallocate", out_of_space)
                shelved.finish()
            assert shelved.store.files.live == 0
            assert shelved.form(digest) == "raw in arena"
            shelved.store.labour.try_again()
            shelved.finish()
            assert shelved.form(digest) == "raw in file"

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

        with shelf() as shelved:
            digest = shelved.put(BODIES[name])
            shelved.move(digest, COLD)
            with monkeypatch.context() as patch:
                patch.setattr(os, "pwrite", fail)
                shelved.finish()
            if writes > failing:
                assert (shelved.form(digest), shelved.store.labour.waiting) == ("raw in arena", 1)
                assert shelved.store.files.live == 0
                assert len(shelved.store.files.segments) <= (name == "small text")
            shelved.store.labour.try_again()
            shelved.finish()
            assert shelved.form(digest) == FORMS[name.split()[1]][COLD]

    def test_without_memory_it_stays_on_disk(self) -> None:
        """Hot bodies are read from disk until there is memory again: when a segment is gone, it is tried again."""
        with shelf(4 * MIB) as shelved:
            digest = shelved.put(BODIES["large noise"], COLD)
            shelved.settle()
            others: list[bytes] = []
            with pytest.raises(OutOfRoom):
                for number in range(100):
                    others.append(shelved.put(noise(60 * KIB, number), HOT))  # noqa: PERF401 - until it raises
            shelved.move(digest, HOT)
            shelved.finish()
            assert (shelved.form(digest), shelved.store.labour.waiting) == ("raw in file", 1)
            for other in others:
                shelved.delete(other)
            assert shelved.store.let_go()
            shelved.finish()
            assert shelved.form(digest) == "raw in arena"

    def test_stuck_body_that_is_moved_back_is_not_stuck(self) -> None:
        """It has the form of its tier again, and is counted once or not at all."""
        with shelf(make_file=no_file) as shelved:
            digest = shelved.put(BODIES["small text"])
            for _ in range(2):
                shelved.move(digest, COLD)
                assert shelved.store.labour.waiting == 1
                shelved.finish()
                assert shelved.store.labour.waiting == 1
            shelved.move(digest, HOT)
            shelved.store.labour.try_again()
            shelved.finish()
            assert shelved.store.labour.waiting == 0

    def test_stuck_body_that_is_deleted(self) -> None:
        """Nobody waits for it any more."""
        with shelf(make_file=no_file) as shelved:
            digest = shelved.put(BODIES["small text"], COLD)
            shelved.finish()
            shelved.delete(digest)
            assert (len(shelved.store), shelved.store.labour.waiting) == (0, 0)

    def test_room_is_required_before_it_is_needed(self) -> None:
        """Past the bound the answer is a refusal, and what was kept is still there."""
        with shelf(4 * MIB) as shelved:
            with pytest.raises(OutOfRoom):
                for number in range(1_000):
                    shelved.put(noise(64 * KIB, number))
            assert 4 * MIB - 512 * KIB < shelved.store.arena.bytes <= 4 * MIB
            assert shelved.store.is_pressed
            shelved.check()


class TestDiskThatFails:
    def test_reading(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A cold body that cannot be read stays where it is, and is tried again later."""
        with shelf() as shelved:
            digest = shelved.put(BODIES["small text"], COLD)
            shelved.finish()
            with monkeypatch.context() as patch:
                patch.setattr(os, "pread", _broken_disk)
                shelved.move(digest, HOT)
                while shelved.store.labour.work(1.0):
                    pass
                assert (shelved.form(digest), shelved.store.labour.waiting) == ("packed in file", 1)
            shelved.store.labour.try_again()
            shelved.finish()
            assert (shelved.form(digest), shelved.store.labour.waiting) == ("raw in arena", 0)

    def test_emptying(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A segment that cannot be walked is left alone for good, whoever is told why, and everything else goes on."""
        told: list[Exception] = []
        monkeypatch.setattr(limits, "DEAD_PERCENT_MAX", 0)
        with shelf() as shelved:
            shelved.store.labour.on_failure = told.append
            shelved.store.files.segment_bytes = 512 * KIB
            digests = [shelved.put(noise(30 * KIB, number), COLD) for number in range(40)]
            shelved.finish()
            with monkeypatch.context() as patch:
                patch.setattr(os, "pread", _broken_disk)
                for digest in digests[::2]:
                    shelved.delete(digest)
                while shelved.store.labour.work(1.0):
                    pass
            assert [type(error) for error in told] == [OSError] * len(told)
            assert told
            shelved.put(BODIES["small text"])
            shelved.check()
            assert len(shelved.store.files.segments) > 1
            for digest in digests[1::2]:
                shelved.delete(digest)
            assert (
                len(shelved.store.files.segments) == 1
            )  # the one that is being filled: what is dead goes all the same

    def test_rotten(self) -> None:
        """Bytes on disk that are not what was written cost their body its new form, and nobody anything else."""
        told: list[Exception] = []
        with shelf() as shelved:
            shelved.store.labour.on_failure = told.append
            digest = shelved.put(BODIES["large text"], COLD)
            shelved.finish()
            handle = shelved.handle(digest)
            shelved.store.segment(handle.segment).write(handle.offset, b"rotten")
            shelved.move(digest, HOT)
            while shelved.store.labour.work(1.0):
                pass
            assert (len(told), shelved.form(digest), shelved.store.labour.waiting) == (1, "packed in file", 1)
            other = shelved.put(BODIES["small text"], COLD)
            while shelved.store.labour.work(1.0):
                pass
            assert shelved.form(other) == "packed in file"


def _broken_disk(*_arguments: object) -> bytes:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


class TestReferences:
    def test_equal_bodies_are_one(self) -> None:
        """They are kept once, until the last who refers to them is gone."""
        with shelf() as shelved:
            body = BODIES["small text"]
            digest = shelved.put(body)
            live = shelved.store.arena.live
            shelved.counted.retain((digest, len(body)), HOT)
            shelved.store.keep({digest: bytes(bytearray(body))})
            assert (len(shelved.store), shelved.store.arena.live) == (1, live)
            shelved.counted.release((digest, len(body)), HOT)
            shelved.store.follow(digest)
            assert shelved.read(digest) == body
            shelved.delete(digest)
            assert (len(shelved.store), shelved.store.arena.live) == (0, 0)
            assert shelved.store.find(digest) is None

    def test_what_nothing_refers_to_is_not_kept(self) -> None:
        """A body that came with a command which did not need it in the end."""
        with shelf() as shelved:
            shelved.store.keep({digest_of(b"a"): b"a"})
            shelved.store.follow(digest_of(b"a"))
            assert (len(shelved.store), shelved.store.arena.live) == (0, 0)

    def test_places_of_several(self) -> None:
        """Where each is, by its digest."""
        with shelf() as shelved:
            digests = [shelved.put(BODIES[name]) for name in BODIES]
            assert shelved.store.locate(digests) == {digest: shelved.handle(digest) for digest in digests}


class TestUploads:
    def test_bytes_go_straight_to_their_place(self) -> None:
        """They are hashed as they come; the body is there when they all have, and as long as it is staged."""
        with shelf() as shelved:
            body = BODIES["large noise"]
            upload = shelved.store.reserve(len(body))
            while not upload.prepare():
                pass
            seen = [upload.is_complete]
            fill(upload, body)
            seen.append(upload.is_complete)
            assert seen == [False, True]
            with upload.room as room:
                assert len(room) == 0
            digest, size = shelved.store.stage(upload)
            assert (digest, size) == (hashlib.sha256(body).digest(), len(body))
            shelved.finish()
            shelved.take(digest, body)
            shelved.store.unstage(digest)
            assert shelved.form(digest) == "raw in arena"
            shelved.finish()

    @pytest.mark.parametrize("tier", Tier)
    def test_taken_by_a_command(self, tier: Tier) -> None:
        """Whoever uploaded it lets go of it, and it takes the form of the tier that it was stored in."""
        with shelf() as shelved:
            body = BODIES["large text"]
            digest, _ = shelved.store.stage(shelved.upload(body))
            shelved.take(digest, body, tier)
            shelved.store.unstage(digest)
            shelved.finish()
            assert shelved.form(digest) == FORMS["text"][tier]

    def test_not_taken(self) -> None:
        """What no command wanted goes."""
        with shelf() as shelved:
            digest, _ = shelved.store.stage(shelved.upload(BODIES["large text"]))
            shelved.store.follow(digest)
            assert len(shelved.store) == 1
            shelved.store.unstage(digest)
            assert (len(shelved.store), shelved.store.arena.live) == (0, 0)

    def test_deleted_while_it_is_staged(self) -> None:
        """Stays for whoever has just uploaded it, and goes when they let go of it."""
        with shelf() as shelved:
            body = BODIES["large text"]
            digest, _ = shelved.store.stage(shelved.upload(body))
            shelved.take(digest, body, COLD)
            shelved.delete(digest)
            shelved.finish()
            assert len(shelved.store) == 1
            shelved.store.unstage(digest)
            assert len(shelved.store) == 0

    def test_same_body_twice(self) -> None:
        """The second copy is given back at once; both have to let go of it."""
        with shelf() as shelved:
            body = BODIES["large noise"]
            uploads = [shelved.upload(body) for _ in range(2)]
            live = shelved.store.arena.live
            digests = {shelved.store.stage(upload)[0] for upload in uploads}
            assert shelved.store.arena.live == live // 2
            (digest,) = digests
            shelved.store.unstage(digest)
            assert len(shelved.store) == 1
            shelved.store.unstage(digest)
            assert (len(shelved.store), shelved.store.arena.live) == (0, 0)

    def test_what_is_there_already(self) -> None:
        """An upload of a body that is kept, in whatever form, adds nothing; an inline one of an upload neither."""
        with shelf() as shelved:
            body = BODIES["large text"]
            digest = shelved.put(body, COLD)
            shelved.finish()
            handle = shelved.handle(digest)
            shelved.store.stage(shelved.upload(body))
            assert (shelved.handle(digest), shelved.store.arena.live) == (handle, 0)
            shelved.store.unstage(digest)
            other, _ = shelved.store.stage(shelved.upload(BODIES["large noise"]))
            live = shelved.store.arena.live
            assert shelved.put(BODIES["large noise"]) == other
            assert shelved.store.arena.live == live
            shelved.store.unstage(other)
            shelved.finish()

    def test_abandoned(self) -> None:
        """Whoever goes away in the middle leaves nothing."""
        with shelf() as shelved:
            body = BODIES["large noise"]
            upload = shelved.store.reserve(len(body))
            upload.prepare()
            fill(upload, body[:1_000])
            upload.abandon()
            assert (shelved.store.arena.live, shelved.store.arena.bytes) == (0, 0)

    def test_no_room(self) -> None:
        """A body larger than the arena is refused when it is offered."""
        with shelf(4 * MIB) as shelved:
            with pytest.raises(OutOfRoom):
                shelved.store.reserve(4 * MIB)


class TestEmptying:
    def test_mostly_dead_segments_are_emptied(self) -> None:
        """Whatever lives in them is readable at every step, and their memory comes back."""
        with shelf() as shelved:
            digests = [shelved.put(noise(16 * KIB, number)) for number in range(600)]
            for number, digest in enumerate(digests):
                if number % 4:
                    shelved.delete(digest)
            before = shelved.store.arena.bytes
            shelved.finish(lambda: None)
            assert shelved.store.arena.bytes < before / 2
            self.bounded(shelved)
            assert shelved.store.let_go()
            assert shelved.store.let_go() == []

    @staticmethod
    def bounded(shelved: Shelf) -> None:
        for arena in (shelved.store.arena, shelved.store.files):
            assert arena.bytes <= arena.live / 0.8 + 2 * arena.segment_bytes

    def test_files_are_emptied_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Disk comes back in the same way."""
        monkeypatch.setattr(limits, "FILE_SEGMENT_BYTES", MIB)
        with shelf() as shelved:
            digests = [shelved.put(noise(16 * KIB, number), COLD) for number in range(600)]
            shelved.finish(lambda: None)
            for number, digest in enumerate(digests):
                if number % 4:
                    shelved.delete(digest)
            before = shelved.store.files.bytes
            shelved.finish(lambda: None)
            assert shelved.store.files.bytes < before / 2
            self.bounded(shelved)

    @staticmethod
    def beside_the_dead(shelved: Shelf) -> bytes:
        """A large body in a segment that is worth emptying."""
        beside, large = shelved.put(noise(450 * KIB, 1)), shelved.put(noise(500 * KIB, 2))
        assert shelved.handle(beside).segment == shelved.handle(large).segment
        shelved.put(noise(200 * KIB, 3))
        shelved.delete(beside)
        return large

    def test_large_body_moves_in_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No step moves more than a slice of it, and it is where it was until all of it is elsewhere."""
        monkeypatch.setattr(limits, "WORK_BYTES_PER_SLICE", 16 * KIB)
        with shelf() as shelved:
            large = self.beside_the_dead(shelved)
            handle = shelved.handle(large)
            seen: list[Handle] = []
            steps = shelved.finish(lambda: seen.append(shelved.handle(large)))
            assert steps > 500 // 16
            assert seen.count(handle) >= 500 // 16
            assert shelved.store.let_go() == [(handle.segment, MIB)]
            shelved.check()

    def test_large_body_that_is_deleted_while_it_moves(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At whatever step: what was begun is given back, and both segments are whole."""
        monkeypatch.setattr(limits, "WORK_BYTES_PER_SLICE", 64 * KIB)
        moments = 0
        for moment in range(30):
            with shelf() as shelved:
                large = self.beside_the_dead(shelved)
                for number in shelved.steps():
                    if number == moment:
                        moments += 1
                        shelved.delete(large)
                        shelved.finish()
                        break
                shelved.check()
                assert not any(segment.pins for segment in shelved.store.arena.segments.values())
        assert 500 // 64 < moments < 30

    def test_large_body_that_is_deleted_while_memory_is_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The place that was reserved for it is not all there yet, and its old one is gone already."""
        monkeypatch.setattr(limits, "ALLOCATION_BYTES", 4096)
        monkeypatch.setattr(limits, "PREPARED_BYTES_PER_TURN", 64 * KIB)
        with shelf() as shelved:
            large = self.beside_the_dead(shelved)
            shelved.store.labour.work(0)
            shelved.delete(large)
            shelved.finish()
            assert len(shelved.store) == 1

    @pytest.mark.parametrize("size", [SLICES, 64 * KIB, 116 * KIB, 130 * KIB, 16 * KIB, 1_000])
    def test_full_arena_comes_to_rest(self, size: int) -> None:
        """Bodies of any size fill it, and the work ends: what they leave at the ends of segments is no dead space."""
        with shelf(32 * MIB) as shelved:
            with pytest.raises(OutOfRoom):
                for number in range(100_000):
                    shelved.put(noise(size, number))
            assert shelved.store.is_pressed
            shelved.finish(lambda: None)
            assert not shelved.store.labour.work(0)

    def test_full_arena_is_put_in_order(self) -> None:
        """With dead space all over it and not one free segment, there is still room to move what is live."""
        with shelf(32 * MIB) as shelved:
            digests: list[bytes] = []
            with pytest.raises(OutOfRoom):
                for number in range(100_000):
                    digests.append(shelved.put(noise(16 * KIB, number)))  # noqa: PERF401 - until it raises
            for digest in digests[::2]:
                shelved.delete(digest)
            with pytest.raises(OutOfRoom):
                shelved.put(noise(MIB - 64 * KIB))
            bound = shelved.store.arena.limit
            shelved.finish(lambda: self._within(shelved, bound))
            self.bounded(shelved)
            shelved.put(noise(MIB - 64 * KIB))

    @staticmethod
    def _within(shelved: Shelf, bound: int) -> None:
        assert shelved.store.arena.bytes <= bound

    @pytest.mark.parametrize(
        "sizes",
        [(16 * KIB,), (100, 4 * KIB, 60 * KIB), (64 * KIB,), (130 * KIB, 300), (300 * KIB, 500, 20 * KIB)],
        ids=str,
    )
    def test_store_finds_room_after_the_work(self, sizes: tuple[int, ...]) -> None:
        """As long as no more is live than the domain allows, a store that finds no room finds it when that is made."""
        random = seeded(3)
        with shelf(16 * MIB) as shelved:
            most = 16 * MIB * limits.ARENA_LIVE_PERCENT // 100
            digests: list[bytes] = []
            for number in range(1_200):
                size = random.choice(sizes)
                while shelved.counted.bytes + size > most:
                    shelved.delete(digests.pop(random.randrange(len(digests))))
                body = number.to_bytes(8) + bytes(size - 8)
                try:
                    digests.append(shelved.put_or_upload(body))
                except OutOfRoom:
                    while shelved.store.labour.work():
                        self._within(shelved, 16 * MIB)
                    digests.append(shelved.put_or_upload(body))
                self._within(shelved, 16 * MIB)

    def test_without_memory_the_work_ends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Emptying that finds no memory is given up until something changes, and not tried for ever."""
        with shelf() as shelved:
            digests = [shelved.put(noise(16 * KIB, number)) for number in range(300)]
            for digest in digests[::2]:
                shelved.delete(digest)
            with monkeypatch.context() as patch:
                patch.setattr(shelved.store.arena, "_make", no_file)
                patch.setattr(os, "posix_fallocate", out_of_space)
                shelved.finish(lambda: None)
                assert not shelved.store.labour.work(0)
            shelved.delete(digests[1])
            shelved.finish(lambda: None)
            self.bounded(shelved)

    def test_bound_that_is_lowered(self) -> None:
        """An arena that is larger than its new bound is emptied as far as it can be."""
        with shelf(64 * MIB) as shelved:
            digests = [shelved.put(noise(16 * KIB, number)) for number in range(3_000)]
            for number, digest in enumerate(digests):
                if number % 4:
                    shelved.delete(digest)
            shelved.store.resize(32 * MIB)
            assert shelved.store.arena.bytes > shelved.store.arena.limit
            shelved.finish(lambda: None)
            assert shelved.store.arena.bytes < shelved.store.arena.limit
            self.bounded(shelved)

    def test_idle_store_has_nothing_to_do(self) -> None:
        """Nothing has changed since there was nothing to do: it is not looked for again."""
        with shelf() as shelved:
            shelved.put(BODIES["small text"])
            shelved.finish()
            assert shelved.store.labour._course is None
            assert not shelved.store.labour.work()
            assert shelved.store.labour._course is None

    def test_work_that_takes_long_is_interrupted(self) -> None:
        """It says that there may be more, until there is not."""
        with shelf() as shelved:
            shelved.move(shelved.put(compressible(8 * MIB)), COLD)
            assert shelved.store.labour.work(0)
            assert not shelved.store.labour.work(60)

    def test_memory_is_bounded_through_a_long_churn(self) -> None:
        """Whatever comes and goes: at rest there is a quarter more than what is live, and two segments."""
        random = seeded(7)
        with shelf(16 * MIB) as shelved:
            digests: list[bytes] = []
            for number in range(3_000):
                size = random.choice([100, 4 * KIB, 16 * KIB, 60 * KIB])
                body = noise(size, number) if random.random() < 0.5 else compressible(size, number)
                with contextlib.suppress(OutOfRoom):
                    digests.append(shelved.put(body, random.choice([HOT, WARM, COLD])))
                while shelved.counted.arena_bytes > 11 * MIB or (digests and random.random() < 0.4):
                    shelved.delete(digests.pop(random.randrange(len(digests))))
                if digests and random.random() < 0.3:
                    shelved.move(random.choice(digests), random.choice([HOT, WARM, COLD]))
                for _ in range(random.randrange(20)):
                    shelved.store.labour.work(0)
                assert shelved.store.arena.bytes <= 16 * MIB
                if number % 300 == 0:
                    shelved.settle()
                    self.bounded(shelved)
            shelved.settle()
            self.bounded(shelved)
            assert shelved.store.labour.waiting == 0
