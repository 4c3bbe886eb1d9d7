"""Defects that break the promises of whole bodies, and that nothing is orphaned or leaks."""

from __future__ import annotations

from tests.promises.model import Defect

READER = "A reader gets what was stored, byte for byte"
KERNEL = "The kernel refuses every process but the manager to write to shared memory."
MANAGER = "The manager ends with the program that started it, however that ends, and removes its socket."
WORKER = "No worker outlives its manager, or the program that started it, by more than two seconds."
STAYS = "No shared memory stays, not even after `kill -9` of every process."

FEATURE = "features/shared_memory.feature"
PROCESSES = "tests/crossprocess/test_memory.py"
BODIES = "tests/property/test_memory.py::TestMemory"
INDEX = "tests/crossprocess/test_read_index.py"
RUNTIME = "tests/unit/test_runtime.py"
WORKERS = "tests/crossprocess/test_workers.py"
FUNCTIONS = "tests/crossprocess/test_functions.py"

DEFECTS = (
    Defect(
        11,
        READER,
        "The space of the latest body is used again as soon as the body is deleted.",
        "memory/writer/arena.py",
        "        segment.live -= taken\n        self.live -= taken\n        self._bodies -= 1\n",
        "        segment.live -= taken\n        self.live -= taken\n        self._bodies -= 1\n"
        "        if segment is self._current:\n            segment.used -= taken\n",
        (f"{PROCESSES}::test_no_body_is_ever_torn",),
    ),
    Defect(
        11,
        READER,
        "A reader of the index returns the bytes that begin 8 bytes before the body.",
        "memory/reader/index_reader.py",
        "        return None if segment is None else segment[found.start : found.end]",
        "        return None if segment is None else segment[found.start - 8 : found.end - 8]",
        (f"{INDEX}::TestSameAnswers",),
    ),
    Defect(
        11,
        READER,
        "The bytes of a body are overwritten when nothing refers to it any more, although a reader may hold it.",
        "memory/writer/body_store.py",
        "        arena.free(handle.segment, handle.stored)\n",
        "        arena.segments[handle.segment].write(handle.offset, bytes(handle.stored))\n"
        "        arena.free(handle.segment, handle.stored)\n",
        (f"{FEATURE}: What is held stays as it was", BODIES, f"{PROCESSES}::test_no_body_is_ever_torn"),
    ),
    Defect(
        11,
        KERNEL,
        "Clients can map shared memory for writing.",
        "memory/writer/segments.py",
        "            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, _SEALS)\n",
        "            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)\n",
        (f"{FEATURE}: Nobody can write to a body", f"{PROCESSES}::test_the_kernel_refuses_every_writer"),
    ),
    Defect(
        11,
        KERNEL,
        "The file of cold bodies is given to clients for writing.",
        "memory/writer/segments.py",
        "os.O_RDONLY | os.O_CLOEXEC)\n        except",
        "os.O_RDWR | os.O_CLOEXEC)\n        except",
        (f"{FEATURE}: Nobody can write to a body", f"{PROCESSES}::test_the_kernel_refuses_every_writer"),
    ),
    Defect(
        12,
        MANAGER,
        "The manager goes on when the program that has started it ends.",
        "manager/process.py",
        '        found[settings.lifeline_fd] = "released"\n'
        "    if parent is not None:\n"
        '        found[parent] = "orphaned"\n',
        "        assert found\n",
        (f"{RUNTIME}::test_killed_program_takes_its_manager_along[alone]",),
    ),
    Defect(
        12,
        MANAGER,
        "The manager leaves its socket behind.",
        "manager/process.py",
        "        Path(settings.address).unlink()\n",
        "        Path(settings.address).stat()\n",
        (f"{RUNTIME}::test_sigterm_drains", f"{RUNTIME}::test_manager_in_the_foreground_ends_on_signals"),
    ),
    Defect(
        12,
        WORKER,
        "The kernel does not end a worker with the process that has started it.",
        "pool/process_limits.py",
        "prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:",
        "prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0) != 0:",
        (f"{FUNCTIONS}::test_killed_program_leaves_no_worker",),
    ),
    Defect(
        12,
        WORKER,
        "The end of the manager does not end the workers that serve it.",
        "pool/strategy/supervisor.py",
        "            selector.register(manager.pidfd, selectors.EVENT_READ, manager)\n",
        "",
        (f"{WORKERS}::test_no_worker_outlives_what_it_works_for[hanging-manager]",),
    ),
    Defect(
        12,
        STAYS,
        "What only a client that has died held on to is counted as held for ever.",
        "manager/loop.py",
        "            if session.connections == 0:\n                self._sharing.holders.remove(session)\n",
        "            if session.connections == 0:\n",
        (f"{PROCESSES}::test_nothing_stays_of_a_killed_reader",),
    ),
    Defect(
        12,
        STAYS,
        "The check for leaks does not see shared memory that has a name.",
        "testing/leaks.py",
        'for name in os.listdir("/dev/shm"))',
        'for name in os.listdir("/dev/shm")[:0])',
        ("tests/unit/testing/test_leaks.py::test_named_shared_memory",),
    ),
)
