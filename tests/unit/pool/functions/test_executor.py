"""Functions in processes of their own: an executor as people expect it, and a death that is one function's alone."""

import ctypes
import gc
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, as_completed, wait
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Self

import pytest
from multiprocess import spawn

import stepwell as sw
from stepwell import limits, process
from stepwell.pool.functions import executor as executor_module
from stepwell.pool.functions import scheduler as scheduler_module
from stepwell.pool.functions import worker_process
from stepwell.pool.functions.executor import FunctionExecutor
from stepwell.pool.functions.results import RemoteTraceback
from stepwell.pool.pickling import PicklingError
from tests.support.processes import in_forked_child, is_alive, kill
from tests.support.wait import PATIENCE_SECONDS, eventually, promptly

MIB = 1024 * 1024


class Gate:
    """What a function in another process waits at until it is let through."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "gate"
        os.mkfifo(self.path)
        self._fd = os.open(self.path, os.O_RDWR)

    def open(self, count: int = 1) -> None:
        os.write(self._fd, b"x" * count)

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(tmp_path)
    yield gate
    gate.close()


@pytest.fixture(autouse=True)
def measured_if_shared(request: pytest.FixtureRequest) -> None:
    """Measure the workers of the shared executor only: those of other executors run the same lines."""
    if "shared" not in request.fixturenames:
        request.getfixturevalue("unmeasured")


@pytest.fixture(scope="module")
def shared() -> Iterator[FunctionExecutor]:
    """Two workers that are there before a test is looked at; for tests that leave them alive."""
    with FunctionExecutor(2) as executor:
        two_workers(executor)
        yield executor


def pass_through(gate: Path, result: int = 0) -> int:
    descriptor = os.open(gate, os.O_RDONLY)
    with suppress(OSError):
        os.read(descriptor, 1)
        os.close(descriptor)
    return result


def square(number: int) -> int:
    return number * number


def add(one: int, other: int, *, times: int = 1) -> int:
    return (one + other) * times


def fail(text: str) -> NoReturn:
    raise ValueError(text)


def die(code: int) -> NoReturn:
    os._exit(code)


def be_killed(number: int) -> NoReturn:
    os.kill(os.getpid(), number)
    raise AssertionError("still here")


def crash() -> None:
    ctypes.string_at(0)


class Stubborn:
    """Does not want to travel."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("I stay here")


class OneWay:
    """Can be sent, and not be read."""

    def __reduce__(self) -> tuple[object, ...]:
        return fail, ("not here",)


class Awkward(Exception):
    """Keeps other arguments than it takes."""

    def __init__(self, text: str, number: int) -> None:
        super().__init__(text)
        self.number = number


class Untold(Exception):
    def __reduce__(self) -> NoReturn:
        raise TypeError("I stay here")


class NoError(Exception):
    def __reduce__(self) -> tuple[object, ...]:
        return square, (3,)


def raise_awkward() -> NoReturn:
    raise Awkward("awkward", 3)


def raise_untold() -> NoReturn:
    raise Untold("untold")


def raise_no_error() -> NoReturn:
    raise NoError("no error")


def workers_of(executor: FunctionExecutor) -> list[worker_process.FunctionWorkerProcess]:
    return [*executor._scheduler_thread._scheduler._workers]


def two_workers(executor: FunctionExecutor) -> list[worker_process.FunctionWorkerProcess]:
    """Both of them, idle. The first may have done everything before the second was needed: then there is more to do."""

    def are_idle() -> bool:
        wait([executor.submit(square, 2) for _ in range(2)])
        return sum(worker.is_idle for worker in workers_of(executor)) == 2

    eventually(are_idle)
    return workers_of(executor)


def is_working(executor: FunctionExecutor) -> bool:
    thread = executor._scheduler_thread._thread
    return thread is not None and thread.is_alive()


# It is an executor.


def test_result(shared: FunctionExecutor) -> None:
    """Of a call with whatever arguments, from another process."""
    assert shared.submit(add, 1, 2, times=3).result() == 9
    assert shared.submit(os.getpid).result() != os.getpid()
    assert shared.submit(pow, 2, 10).result() == 1024


def test_function_that_nobody_can_import(shared: FunctionExecutor) -> None:
    """A closure over a class of its own: what comes back is of that class."""

    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

        def next(self) -> Self:
            return type(self)(self.x + offset)

    offset = 2
    found = shared.submit(lambda point: point.next(), Point(3)).result()
    assert isinstance(found, Point)
    assert found.x == 5


def test_exception_has_the_traceback_of_the_worker(shared: FunctionExecutor) -> None:
    """It is raised as itself, and its cause shows where."""
    error = shared.submit(fail, "oh").exception()
    assert isinstance(error, ValueError)
    assert str(error) == "oh"
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in fail\n    raise ValueError(text)" in str(error.__cause__)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exception_that_would_end_a_program(shared: FunctionExecutor, kind: type[BaseException]) -> None:
    """Is that of the future, and not the end of the worker."""

    def leave() -> NoReturn:
        raise kind(3)

    assert type(shared.submit(leave).exception()) is kind
    assert shared.submit(square, 2).result() == 4


def test_exception_that_cannot_travel(shared: FunctionExecutor) -> None:
    """Whether it cannot be sent, or not be read, or is none: what it said is told."""
    for raiser, said in [
        (raise_untold, "Untold: untold"),
        (raise_awkward, "Awkward: awkward"),
        (raise_no_error, "NoError: no error"),
    ]:
        error = shared.submit(raiser).exception()
        assert isinstance(error, PicklingError)
        assert f"{raiser.__name__} raised {said}" in str(error)
        assert f"in {raiser.__name__}" in str(error.__cause__)


def test_arguments_that_cannot_travel(shared: FunctionExecutor) -> None:
    """Cost the future to which they belong."""
    failed, done = shared.submit(repr, Stubborn()), shared.submit(square, 2)
    error = failed.exception()
    assert isinstance(error, PicklingError)
    assert "repr or its arguments cannot be sent to a worker: I stay here" in str(error)
    with pytest.raises(ValueError, match="not here"):
        shared.submit(repr, OneWay()).result()
    assert done.result() == 4


def test_result_that_cannot_travel(shared: FunctionExecutor) -> None:
    """Costs its own future."""
    with pytest.raises(PicklingError, match="the result, a Stubborn, cannot be sent back: I stay here"):
        shared.submit(Stubborn).result()
    with pytest.raises(PicklingError, match="the result of OneWay cannot be read here: ValueError: not here"):
        shared.submit(OneWay).result()
    assert shared.submit(square, 2).result() == 4


def test_large_arguments_and_results(shared: FunctionExecutor) -> None:
    """Many times what a socket holds; the other worker is not held up by it."""
    large = os.urandom(40 * MIB)
    echoed = [shared.submit(bytes, large) for _ in range(2)]
    assert [future.result() == large for future in echoed] == [True, True]


def test_frames_are_bounded(shared: FunctionExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger fails alone."""
    monkeypatch.setattr(limits, "FUNCTION_FRAME_BYTES_MAX", 1_000)
    with pytest.raises(PicklingError, match="more than the 1000"):
        shared.submit(len, bytes(2_000)).result()
    assert shared.submit(square, 2).result() == 4


def test_map(shared: FunctionExecutor) -> None:
    """In order, as the builtin, in chunks or not."""
    for chunksize in (1, 3, 100):
        assert [*shared.map(square, range(10), chunksize=chunksize)] == [*map(square, range(10))]
        assert [*shared.map(add, range(5), range(3), chunksize=chunksize)] == [0, 2, 4]
        assert [*shared.map(square, [], chunksize=chunksize)] == []
        with pytest.raises(ValueError, match="two"):
            list(shared.map(fail, ["two"], chunksize=chunksize))
    with pytest.raises(ValueError, match="chunksize"):
        shared.map(square, [1], chunksize=0)


def test_map_with_a_timeout(shared: FunctionExecutor, gate: Gate) -> None:
    """What is not there in time is an error; what was is a result."""
    found = shared.map(pass_through, [gate.path, gate.path], [1, 2], timeout=0.2)
    with pytest.raises(FutureTimeoutError):
        list(found)
    gate.open(2)


def test_wait_and_as_completed(shared: FunctionExecutor, gate: Gate) -> None:
    """The one that ends first comes first."""
    slow = shared.submit(pass_through, gate.path)
    quick = shared.submit(square, 2)
    done, pending = wait([slow, quick], return_when="FIRST_COMPLETED")
    assert (done, pending) == ({quick}, {slow})
    gate.open()
    assert {*as_completed([slow, quick])} == {slow, quick}


def test_pending_is_cancelled_and_running_is_not(shared: FunctionExecutor, gate: Gate) -> None:
    """Two run; the third waits, and can be cancelled."""
    running = [shared.submit(pass_through, gate.path) for _ in range(2)]
    eventually(lambda: all(future.running() for future in running))
    pending = shared.submit(square, 2)
    assert [future.cancel() for future in running] == [False, False]
    assert pending.cancel()
    gate.open(2)
    assert wait([pending], PATIENCE_SECONDS).done == {pending}
    assert [future.result() for future in running] == [0, 0]
    with pytest.raises(CancelledError):
        pending.result()


def test_callbacks(shared: FunctionExecutor, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may submit, and whatever they raise, everybody else's work goes on."""
    seen: list[object] = []
    second: list[Future[int]] = []

    def leave(_: Future[int]) -> NoReturn:
        raise SystemExit

    future = shared.submit(square, 3)
    future.add_done_callback(lambda future: seen.append(future.result()))
    future.add_done_callback(lambda _: second.append(shared.submit(square, 4)))
    eventually(lambda: second)
    assert (seen, second[0].result()) == ([9], 16)
    raised: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda told: raised.append(told.exc_type))
    shared.submit(pass_through, gate.path).add_done_callback(leave)
    gate.open(1)
    eventually(lambda: raised == [SystemExit])
    assert shared.submit(square, 2).result() == 4


def test_many_threads_submit(shared: FunctionExecutor) -> None:
    """Each gets its own results."""
    found: dict[int, list[int]] = {}

    def work(base: int) -> None:
        futures = [shared.submit(square, base * 100 + number) for number in range(20)]
        found[base] = [future.result() for future in futures]

    workers = [threading.Thread(target=work, args=(base,)) for base in range(4)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    assert found == {base: [(base * 100 + number) ** 2 for number in range(20)] for base in range(4)}


def test_worker_finds_the_modules_of_the_program(shared: FunctionExecutor) -> None:
    """In the same order, the working directory included."""
    assert shared.submit(lambda: sys.path).result() == process.search_path()


def test_function_that_forks(shared: FunctionExecutor) -> None:
    """The answer is the parent's; the child that comes back as well is ended."""

    def fork() -> int:
        if pid := os.fork():
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return 7

    assert shared.submit(fork).result() == 0


def test_number_of_workers() -> None:
    """By default as many as there are cores for us; a bad number is refused at once."""
    assert FunctionExecutor()._scheduler_thread._scheduler._max_workers == len(os.sched_getaffinity(0))
    for bad in (0, -1, limits.WORKERS_MAX + 1, True):
        with pytest.raises(ValueError, match="max_workers"):
            FunctionExecutor(bad)


# It ends.


def test_unused_executor_costs_nothing() -> None:
    """Neither a thread nor a process."""
    with FunctionExecutor() as executor:
        assert not is_working(executor)


def test_workers_are_started_as_they_are_needed(gate: Gate) -> None:
    """One for one function; never more than there may be."""
    with FunctionExecutor(2) as executor:
        assert executor.submit(square, 2).result() == 4
        assert executor.submit(square, 3).result() == 9
        assert len(workers_of(executor)) == 1
        futures = [executor.submit(pass_through, gate.path) for _ in range(4)]
        eventually(lambda: sum(future.running() for future in futures) == 2)
        assert len(workers_of(executor)) == 2
        gate.open(4)


def test_shutdown_finishes_what_was_submitted(gate: Gate) -> None:
    """And takes nothing more; twice is as good as once."""
    executor = FunctionExecutor(1)
    futures = [executor.submit(pass_through, gate.path, number) for number in range(3)]
    executor.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(square, 2)
    gate.open(3)
    executor.shutdown()
    executor.shutdown()
    assert [future.result(0) for future in futures] == [0, 1, 2]
    assert not is_working(executor)


def test_shutdown_that_cancels(gate: Gate) -> None:
    """What runs is finished, what waits is cancelled, and whoever waits for it is told."""
    executor = FunctionExecutor(1)
    futures = [executor.submit(pass_through, gate.path, number) for number in range(3)]
    eventually(futures[0].running)
    futures[2].cancel()
    executor.shutdown(wait=False, cancel_futures=True)
    assert wait(futures[1:], PATIENCE_SECONDS).done == {*futures[1:]}
    gate.open()
    executor.shutdown()
    assert futures[0].result(0) == 0
    assert [future.cancelled() for future in futures] == [False, True, True]


def test_shutdown_from_a_callback() -> None:
    """It cannot wait for the thread in which it runs, and does not try to."""
    executor = FunctionExecutor(1)
    executor.submit(square, 2).add_done_callback(lambda _: executor.shutdown())
    eventually(lambda: not is_working(executor))


def test_submit_races_with_shutdown() -> None:
    """The refusal comes from whoever sees the end first."""
    executor = FunctionExecutor(1)

    class Closing:
        def __reduce__(self) -> tuple[object, ...]:
            executor.shutdown()
            return int, ()

    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(repr, Closing())


def test_dropped_executor_finishes_and_ends(gate: Gate) -> None:
    """Whoever has the future gets its result; nobody has to remember the rest."""
    executor = FunctionExecutor(1)
    future = executor.submit(pass_through, gate.path, 3)
    thread = executor._scheduler_thread._thread
    assert thread is not None
    del executor
    gc.collect()
    gate.open()
    assert future.result(PATIENCE_SECONDS) == 3
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def test_workers_are_killed(gate: Gate) -> None:
    """At once: what waits is cancelled, what runs is lost."""
    with FunctionExecutor(1) as executor:
        running, pending = [executor.submit(pass_through, gate.path) for _ in range(2)]
        eventually(running.running)
        executor.kill_workers()
        assert isinstance(running.exception(PATIENCE_SECONDS), sw.WorkerDied)
        assert pending.cancelled()
        with pytest.raises(RuntimeError):
            executor.submit(square, 2)


@pytest.mark.parametrize("where", ["inside", "at the end"])
def test_ctrl_c_does_not_wait(gate: Gate, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither inside the block nor while it waits for its end."""
    executor = FunctionExecutor(1)
    future = executor.submit(pass_through, gate.path)
    eventually(future.running)
    join = executor._scheduler_thread.join

    def interrupted() -> None:
        monkeypatch.setattr(executor._scheduler_thread, "join", join)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with executor:
            if where == "inside":
                raise KeyboardInterrupt
            monkeypatch.setattr(executor._scheduler_thread, "join", interrupted)
    assert isinstance(future.exception(0), sw.WorkerDied)
    assert not is_working(executor)


def test_other_errors_wait(gate: Gate) -> None:
    """As with any executor."""
    with pytest.raises(ZeroDivisionError):
        with FunctionExecutor(1) as executor:
            future = executor.submit(pass_through, gate.path, 3)
            gate.open()
            raise ZeroDivisionError
    assert future.result(0) == 3


@pytest.mark.parametrize("way", ["well", "interrupted before", "interrupted meanwhile"])
def test_end_of_the_program(gate: Gate, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """It finishes what was submitted, unless the user does not want to wait."""
    executor = FunctionExecutor(1)
    future = executor.submit(pass_through, gate.path, 3)
    eventually(future.running)
    join = executor._scheduler_thread.join

    def interrupted() -> None:
        monkeypatch.setattr(executor._scheduler_thread, "join", join)
        raise KeyboardInterrupt

    match way:
        case "well":
            gate.open()
        case "interrupted before":
            monkeypatch.setattr(sys, "last_type", KeyboardInterrupt, raising=False)
        case _:
            monkeypatch.setattr(executor._scheduler_thread, "join", interrupted)
    monkeypatch.setattr(executor_module, "_running", [executor._scheduler_thread])
    executor_module._end_with_program()
    assert not is_working(executor)
    assert future.result(0) == 3 if way == "well" else isinstance(future.exception(0), sw.WorkerDied)


def test_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function has left a thread behind that never ends."""
    monkeypatch.setattr(limits, "WORKER_END_SECONDS_MAX", 0.2)

    def leave_thread() -> int:
        threading.Thread(target=threading.Event().wait).start()
        return os.getpid()

    with FunctionExecutor(1) as executor:
        pid = executor.submit(leave_thread).result()
    assert not is_alive(pid)


# A worker dies.


@pytest.mark.parametrize(
    "way, argument, told",
    [
        (die, 3, "ended with exit code 3"),
        (be_killed, signal.SIGKILL, "was killed by SIGKILL, perhaps for want of memory"),
        (be_killed, signal.SIGTERM, "was killed by SIGTERM"),
        (be_killed, signal.SIGRTMIN + 1, f"was killed by signal {signal.SIGRTMIN + 1}"),
    ],
    ids=["exit", "kill", "term", "real-time"],
)
def test_death_is_the_error_of_one(gate: Gate, way: Callable[[int], object], argument: int, told: str) -> None:
    """The one that it ran; others go on, those that wait are run, and another worker takes its place."""
    with FunctionExecutor(2) as executor:
        beside = executor.submit(pass_through, gate.path, 5)
        eventually(beside.running)
        dead, later = executor.submit(way, argument), executor.submit(square, 3)
        error = dead.exception(PATIENCE_SECONDS)
        assert isinstance(error, sw.WorkerDied)
        assert told in str(error)
        assert error.details["function"] == way.__name__
        assert later.result(PATIENCE_SECONDS) == 9
        gate.open()
        assert beside.result(PATIENCE_SECONDS) == 5
        assert executor.submit(square, 4).result() == 16


def test_crash_is_told_on_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    """With the line of the function that crashed."""
    with FunctionExecutor(1) as executor:
        error = executor.submit(crash).exception(PATIENCE_SECONDS)
    assert "SIGSEGV" in str(error)
    assert "in crash" in capfd.readouterr().err


def test_death_that_leaves_a_child_behind(tmp_path: Path) -> None:
    """The child holds the socket, and the death is seen all the same, at once."""

    def leave_child() -> NoReturn:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        (tmp_path / "child").write_text(str(pid))
        os._exit(4)

    with FunctionExecutor(1) as executor:
        assert executor.submit(square, 2).result() == 4
        future = executor.submit(leave_child)
        promptly(future.done, 5)
        assert "exit code 4" in str(future.exception())
        kill(int((tmp_path / "child").read_text()))
        assert executor.submit(square, 3).result() == 9


def test_answer_that_came_before_the_death() -> None:
    """Is an answer: the worker died afterwards."""
    with FunctionExecutor(1) as executor:
        executor.submit(square, 2).result()
        pid = executor.submit(os.getpid).result()
        done = [executor.submit(square, number) for number in range(3)]
        wait(done)
        kill(pid)
        eventually(lambda: not workers_of(executor))
        assert [future.result() for future in done] == [0, 1, 4]
        assert executor.submit(square, 2).result() == 4


def test_worker_dead_before_it_took_its_task() -> None:
    """A task that no worker has begun with is given to another one."""
    with FunctionExecutor(1) as executor:
        pid = executor.submit(os.getpid).result()
        os.kill(pid, signal.SIGSTOP)
        future = executor.submit(square, 3)
        eventually(future.running)
        kill(pid)
        assert future.result(PATIENCE_SECONDS) == 9


def test_worker_that_is_stopped_while_it_is_sent_a_lot() -> None:
    """What it does not take waits, and holds up nobody else; with its death it is over."""
    with FunctionExecutor(2) as executor:
        one, other = [worker.pid for worker in two_workers(executor)]
        os.kill(one, signal.SIGSTOP)
        os.kill(other, signal.SIGSTOP)
        stuck = [executor.submit(len, bytes(20 * MIB)) for _ in range(2)]
        eventually(lambda: all(worker.is_sending for worker in workers_of(executor)))
        os.kill(other, signal.SIGCONT)
        assert len(wait(stuck, PATIENCE_SECONDS, "FIRST_COMPLETED").done) == 1
        kill(one)
        assert [future.result(PATIENCE_SECONDS) for future in stuck] == [20 * MIB] * 2


def test_worker_that_lost_its_socket() -> None:
    """It lives, but nobody can talk to it: it is replaced."""

    def close_all() -> None:
        os.closerange(3, 100)

    with FunctionExecutor(1) as executor:
        assert isinstance(executor.submit(close_all).exception(PATIENCE_SECONDS), sw.WorkerDied)
        assert executor.submit(square, 2).result() == 4


@pytest.mark.parametrize("garbage", [b"\xff" * 9, b"\x00" * 8 + b"\xff"], ids=["length", "kind"])
def test_worker_whose_socket_somebody_else_wrote_to(garbage: bytes) -> None:
    """What it says cannot be trusted any more."""

    def write() -> NoReturn:
        for descriptor in range(3, 100):
            with suppress(OSError):
                socket.socket(fileno=os.dup(descriptor)).send(garbage)
        while True:
            signal.pause()

    with FunctionExecutor(1) as executor:
        assert isinstance(executor.submit(write).exception(PATIENCE_SECONDS), sw.WorkerDied)
        assert executor.submit(square, 2).result() == 4


def test_result_that_there_is_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the error of its future; the worker, in the middle of sending it, is replaced."""
    begin = worker_process._Inbox._begin

    def scarce(inbox: worker_process._Inbox, count: int, kind: int) -> None:
        if count > MIB:
            raise MemoryError
        begin(inbox, count, kind)

    monkeypatch.setattr(worker_process._Inbox, "_begin", scarce)
    with FunctionExecutor(1) as executor:
        assert isinstance(executor.submit(bytes, 2 * MIB).exception(PATIENCE_SECONDS), MemoryError)
        assert executor.submit(square, 2).result() == 4


# A worker does not start.


def broken_boot(monkeypatch: pytest.MonkeyPatch, boot: str) -> None:
    monkeypatch.setattr(process, "_BOOT", boot)
    monkeypatch.setattr(limits, "WORKER_START_PAUSE_SECONDS", 0.01)


@pytest.mark.parametrize(
    "boot, start_s, told",
    [
        ("raise SystemExit(3)", PATIENCE_SECONDS, "ended with exit code 3"),
        ("import signal; signal.pause()", 0.5, "was killed by SIGKILL"),
    ],
    ids=["it ends while starting", "it never comes up"],
)
def test_workers_that_do_not_start(monkeypatch: pytest.MonkeyPatch, boot: str, start_s: float, told: str) -> None:
    """After a few, whoever waits is told; whoever comes later is not held to it."""
    with FunctionExecutor(2) as executor:
        with monkeypatch.context() as broken:
            broken_boot(broken, boot)
            broken.setattr(limits, "WORKER_START_SECONDS_MAX", start_s)
            futures = [executor.submit(square, 2) for _ in range(3)]
            for future in futures:
                with pytest.raises(sw.StartFailed, match=told):
                    future.result(PATIENCE_SECONDS)
        assert executor.submit(square, 2).result(PATIENCE_SECONDS) == 4


def test_attempts_become_rarer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that cannot be started is not tried as fast as it fails."""
    broken_boot(monkeypatch, "raise SystemExit(3)")
    monkeypatch.setattr(limits, "WORKER_START_PAUSE_SECONDS", 0.1)
    with FunctionExecutor(1) as executor:
        before_s = time.monotonic()
        with pytest.raises(sw.StartFailed):
            executor.submit(square, 2).result(PATIENCE_SECONDS)
        assert time.monotonic() - before_s >= 0.3


def test_interpreter_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a process is made, and nothing is left of it."""
    monkeypatch.setattr(limits, "WORKER_START_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(spawn, "_python_exe", b"/nonexistent")
    with FunctionExecutor(1) as executor, pytest.raises(sw.StartFailed, match="/nonexistent"):
        executor.submit(square, 2).result(PATIENCE_SECONDS)


def test_others_work_while_no_more_can_be_started(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """While there is a worker there is hope."""
    with FunctionExecutor(2) as executor:
        assert executor.submit(square, 2).result() == 4
        broken_boot(monkeypatch, "raise SystemExit(3)")
        first = executor.submit(pass_through, gate.path, 1)
        eventually(first.running)
        second = executor.submit(square, 5)
        eventually(lambda: executor._scheduler_thread._scheduler._starts_failed == limits.WORKER_STARTS_FAILED_MAX)
        assert not second.done()
        gate.open()
        assert (first.result(PATIENCE_SECONDS), second.result(PATIENCE_SECONDS)) == (1, 25)


@pytest.mark.usefixtures("measured")
def test_shutdown_while_workers_start(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Those that are not needed any more are let go."""
    monkeypatch.setattr(process, "_BOOT", f"open({str(gate.path)!r}, 'rb', 0).read(1); {process._BOOT}")
    executor = FunctionExecutor(2)
    futures = [executor.submit(square, number) for number in range(2)]
    eventually(lambda: len(workers_of(executor)) == 2)
    executor.shutdown(wait=False, cancel_futures=True)
    gate.open(2)
    executor.shutdown()
    assert all(future.cancelled() for future in futures)
    assert not is_working(executor)


# It is this process's own.


def test_forked_child_is_refused(shared: FunctionExecutor) -> None:
    """It has no say in its parent's executor, and its end is not the executor's."""

    def child() -> None:
        with pytest.raises(sw.NotOwner):
            shared.submit(square, 2)
        with pytest.raises(sw.NotOwner):
            shared.map(square, [2])
        shared.shutdown()
        shared.kill_workers()
        executor_module._end_with_program()
        assert not shared._scheduler_thread.is_closing

    in_forked_child(child, is_measured=True)
    assert shared.submit(square, 2).result() == 4


def test_executor_does_not_travel() -> None:
    """Another process makes one of its own."""
    with FunctionExecutor() as executor, pytest.raises(sw.NotOwner):
        pickle.dumps(executor)


# It breaks.


def test_thread_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever submits is told, and nothing is left behind."""

    def refuse(_: threading.Thread) -> NoReturn:
        raise RuntimeError("can't start new thread")

    executor = FunctionExecutor()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        executor.submit(square, 2)
    executor.shutdown()


def test_process_that_cannot_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not left alone."""

    def refuse(_: int) -> NoReturn:
        raise OSError("no pidfd")

    monkeypatch.setattr(limits, "WORKER_START_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    with FunctionExecutor(1) as executor, pytest.raises(sw.StartFailed, match="no pidfd"):
        executor.submit(square, 2).result(PATIENCE_SECONDS)


def test_defect_in_the_thread(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> None:
    """Nobody waits for ever: all that is not done has failed."""
    with FunctionExecutor(1) as executor:
        running, pending = [executor.submit(pass_through, gate.path) for _ in range(2)]
        eventually(running.running)

        def break_down(_: object) -> NoReturn:
            raise ZeroDivisionError

        monkeypatch.setattr(scheduler_module.CallScheduler, "_assign_calls", break_down)
        executor._scheduler_thread._scheduler.wake_up()
        for future in (running, pending):
            with pytest.raises(sw.RuntimeFault, match="the executor broke: ZeroDivisionError"):
                future.result(PATIENCE_SECONDS)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(square, 2)


# It belongs to a Runtime.


def test_executor_of_a_runtime(gate: Gate) -> None:
    """A new one each time, and all of them are shut down with it, when what was submitted is done."""
    with sw.Runtime.start(workers=0) as runtime:
        one, other = runtime.executor(1), runtime.executor(max_workers=1)
        assert one is not other
        future = one.submit(pass_through, gate.path, 3)
        assert other.submit(square, 2).result() == 4
        gate.open()
    assert future.result(0) == 3
    for executor in (one, other):
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(square, 2)
        assert not is_working(executor)


def test_ctrl_c_in_a_runtime_does_not_wait(gate: Gate) -> None:
    """What its executors run is ended with it."""
    with pytest.raises(KeyboardInterrupt):
        with sw.Runtime.start(workers=0) as runtime:
            executor = runtime.executor(1)
            future = executor.submit(pass_through, gate.path)
            eventually(future.running)
            raise KeyboardInterrupt
    assert isinstance(future.exception(0), sw.WorkerDied)
