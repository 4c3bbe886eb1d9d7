"""Segments: what the kernel guarantees to readers, and what is left when something fails."""

import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stepwell import limits
from stepwell.memory.writer.segments import FileSegment, MemorySegment

SIZE = 16 * 4096
BODY = b"a body"

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]

KEEP_SIZE_AND_PUNCH_HOLE = 0x03


def succeed(code: int) -> None:
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def make_a_mapping_writable(descriptor: int) -> None:
    address = _libc.mmap(None, SIZE, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    assert address not in {None, ctypes.c_void_p(-1).value}
    try:
        succeed(_libc.mprotect(address, SIZE, mmap.PROT_READ | mmap.PROT_WRITE))
    finally:
        _libc.munmap(address, SIZE)


def map_writable(descriptor: int) -> None:
    mmap.mmap(descriptor, SIZE).close()


def write(descriptor: int) -> None:
    os.pwrite(descriptor, b"x", 0)


def shrink(descriptor: int) -> None:
    os.ftruncate(descriptor, 4096)


def grow(descriptor: int) -> None:
    os.ftruncate(descriptor, 2 * SIZE)


def punch_a_hole(descriptor: int) -> None:
    succeed(_libc.fallocate(descriptor, KEEP_SIZE_AND_PUNCH_HOLE, 0, SIZE))


def add_a_seal(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def reopened(attempt: Callable[[int], None]) -> Callable[[int], None]:
    """The same with a descriptor of one's own, opened for writing."""

    def with_another(descriptor: int) -> None:
        another = os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR)
        try:
            attempt(another)
        finally:
            os.close(another)

    with_another.__name__ = f"{attempt.__name__}_through_proc"
    return with_another


ATTEMPTS = [write, map_writable, make_a_mapping_writable, shrink, grow, punch_a_hole]
TO_MEMORY = [*ATTEMPTS, add_a_seal, *[reopened(attempt) for attempt in ATTEMPTS]]


@pytest.fixture
def memory() -> Iterator[MemorySegment]:
    segment = MemorySegment(1, SIZE)
    segment.allocate(len(BODY))
    segment.write(0, BODY)
    yield segment
    segment.close()


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileSegment]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    segment = FileSegment(1, SIZE)
    segment.allocate(len(BODY))
    segment.write(0, BODY)
    yield segment
    segment.close()


def fail_with(code: int) -> Callable[..., int]:
    def fail(*_arguments: object, **_keywords: object) -> int:
        raise OSError(code, os.strerror(code))

    return fail


class TestMemory:
    @pytest.mark.parametrize("attempt", TO_MEMORY, ids=lambda attempt: attempt.__name__)
    def test_kernel_refuses_to_change_it(self, memory: MemorySegment, attempt: Callable[[int], None]) -> None:
        """Whoever has its descriptor can neither write to it nor change its size, whatever they try."""
        with pytest.raises(PermissionError) as caught:
            attempt(memory.descriptor)
        assert caught.value.errno in {errno.EPERM, errno.EACCES}
        assert os.pread(memory.descriptor, len(BODY), 0) == BODY
        assert os.fstat(memory.descriptor).st_size == SIZE

    def test_attempts_succeed_on_what_is_not_sealed(self) -> None:
        """It is the seals that refuse: each attempt does something to a memfd without them."""
        descriptor = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, SIZE)
            for attempt in (*ATTEMPTS, *map(reopened, ATTEMPTS), add_a_seal):
                os.ftruncate(descriptor, SIZE)
                attempt(descriptor)
        finally:
            os.close(descriptor)

    def test_readers_see_what_is_written_later(self, memory: MemorySegment) -> None:
        """A mapping made before a body was written shows it."""
        with mmap.mmap(memory.descriptor, SIZE, prot=mmap.PROT_READ) as mapped:
            memory.write(100, b"later")
            assert mapped[100:105] == b"later" == memory.read(100, 5)

    def test_pages_are_there_before_they_are_written(self) -> None:
        """The kernel's own count of its memory grows with `allocate`, and not with `write`."""
        segment = MemorySegment(1, 4 * limits.ALLOCATION_BYTES)
        try:
            assert os.fstat(segment.descriptor).st_blocks == 0
            assert segment.allocate(1)
            allocated = os.fstat(segment.descriptor).st_blocks
            assert allocated * 512 == segment.allocated == limits.ALLOCATION_BYTES
            segment.write(0, bytes(segment.allocated))
            assert os.fstat(segment.descriptor).st_blocks == allocated
        finally:
            segment.close()

    def test_allocation_is_in_parts(self) -> None:
        """No more at once than was said; what is there already is not asked for again, nor more than all of it."""
        segment = MemorySegment(1, 3 * limits.ALLOCATION_BYTES)
        try:
            seen = []
            while not segment.allocate(segment.size, 4096 * 400):
                seen.append(segment.allocated)
            assert seen == [4096 * 400]
            assert segment.allocated == segment.size
            assert segment.allocate(segment.size, 1)
        finally:
            segment.close()

    def test_closing_leaves_readers_what_they_have(self, memory: MemorySegment) -> None:
        """A mapping outlives the segment, and nothing else does."""
        other = MemorySegment(2, SIZE)
        other.allocate(len(BODY))
        other.write(0, BODY)
        with mmap.mmap(other.descriptor, SIZE, prot=mmap.PROT_READ) as mapped:
            other.close()
            assert mapped[: len(BODY)] == BODY
        assert memory.read(0, len(BODY)) == BODY

    def test_is_not_inherited(self, memory: MemorySegment) -> None:
        """A program that is started does not have it."""
        assert not os.get_inheritable(memory.descriptor)

    @pytest.mark.parametrize("call", ["os.ftruncate", "mmap.mmap", "fcntl.fcntl"])
    def test_failing_half_way_leaves_nothing(self, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever step of making one fails, its descriptor is closed; the leak check of every test sees to it."""
        monkeypatch.setattr(call, fail_with(errno.ENOMEM))
        with pytest.raises(OSError, match="Cannot allocate memory"):
            MemorySegment(1, SIZE)

    def test_no_memory_is_an_error_before_it_is_a_signal(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """ENOSPC comes from `allocate`, and what was not had is not counted as had."""
        segment = MemorySegment(1, SIZE)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC))
                with pytest.raises(OSError, match="No space left"):
                    segment.allocate(1)
            assert segment.allocated == 0
            assert segment.allocate(1)
        finally:
            segment.close()


class TestFile:
    def test_has_no_name(self, file: FileSegment, tmp_path: Path) -> None:
        """It ends with its last descriptor, whatever becomes of us."""
        assert [*tmp_path.iterdir()] == []
        assert os.fstat(file.descriptor).st_nlink == 0

    @pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.__name__)
    def test_readers_descriptor_only_reads(self, file: FileSegment, attempt: Callable[[int], None]) -> None:
        """What readers are given can be mapped and read, and nothing else."""
        with pytest.raises(OSError) as caught:  # noqa: PT011 - which one, the next line says
            attempt(file.descriptor)
        assert caught.value.errno in {errno.EBADF, errno.EACCES, errno.EINVAL}
        assert file.read(0, len(BODY)) == BODY
        with mmap.mmap(file.descriptor, SIZE, prot=mmap.PROT_READ) as mapped:
            assert mapped[: len(BODY)] == BODY

    def test_blocks_are_there_before_they_are_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A full disk is an error of `allocate`, at once, and in parts if it is told so."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        segment = FileSegment(1, 3 * limits.ALLOCATION_BYTES)
        try:
            assert os.fstat(segment.descriptor).st_blocks == 0
            assert not segment.allocate(segment.size, 4096)
            assert os.fstat(segment.descriptor).st_blocks * 512 == segment.allocated == 4096
            assert segment.allocate(1)
            with monkeypatch.context() as patch:
                patch.setattr(os, "posix_fallocate", fail_with(errno.ENOSPC))
                with pytest.raises(OSError, match="No space left"):
                    segment.allocate(4097)
            assert segment.allocate(4097)
        finally:
            segment.close()

    def test_writes_all_of_it(self, file: FileSegment, monkeypatch: pytest.MonkeyPatch) -> None:
        """A write that the kernel cuts short goes on."""
        whole = os.pwrite

        def short(descriptor: int, data: memoryview, offset: int) -> int:
            return whole(descriptor, data[:3], offset)

        monkeypatch.setattr(os, "pwrite", short)
        file.write(1000, b"more than three")
        file.write(2000, memoryview(b"and this"))
        assert (file.read(1000, 15), file.read(2000, 8)) == (b"more than three", b"and this")

    def test_is_not_inherited(self, file: FileSegment) -> None:
        """A program that is started has neither descriptor."""
        assert not os.get_inheritable(file.descriptor)
        assert not os.get_inheritable(file._writer)

    @pytest.mark.parametrize("call", ["os.ftruncate", "os.open"])
    def test_failing_half_way_leaves_nothing(self, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither a name in the directory nor a descriptor, which the leak check of every test sees to."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        monkeypatch.setattr(call, fail_with(errno.EMFILE))
        with pytest.raises(OSError, match="Too many open files"):
            FileSegment(1, SIZE)
        monkeypatch.undo()
        assert [*tmp_path.iterdir()] == []

    @pytest.mark.parametrize("reason", [errno.EOPNOTSUPP, errno.EISDIR])
    def test_file_system_that_knows_only_names(
        self, reason: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The name is gone before anything is written, and the file can be used."""
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        really_open = os.open

        def open_named(path: str, flags: int, mode: int = 0o777) -> int:
            if flags & os.O_TMPFILE == os.O_TMPFILE:
                raise OSError(reason, os.strerror(reason))
            return really_open(path, flags, mode)

        monkeypatch.setattr(os, "open", open_named)
        file = FileSegment(1, SIZE)
        assert [*tmp_path.iterdir()] == []
        file.write(0, b"cold")
        assert os.pread(file.descriptor, 4, 0) == b"cold"
        file.close()
