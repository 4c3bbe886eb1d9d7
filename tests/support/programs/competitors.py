"""Processes that compete for the same name, plan or receipt, and one that dies while it holds a lease."""

import os
import threading

from multiprocess.connection import Connection

import stepwell as sw
from tests.support.processes import fork
from tests.support.programs.storm import create_action

WON, LOST = 1, 0


def create_same(address: str, number: int, turn: Connection) -> None:
    """On each signal, create a name at the same time as all others; report whether this process succeeded."""
    with sw.connect(address) as client:
        while (name := turn.recv()) is not None:
            try:
                create_action(client, name, description=str(number))
                turn.send(WON)
            except sw.AlreadyExists:
                turn.send(LOST)


def start_same(address: str, _number: int, turn: Connection) -> None:
    """On each signal, start a plan at the same time as all others; report whether this process succeeded."""
    with sw.connect(address) as client:
        while (plan_id := turn.recv()) is not None:
            try:
                client.plans.start_strategize(plan_id)
                turn.send(WON)
            except (sw.PlanNotReady, sw.LeaseLost):
                turn.send(LOST)


def store_same(address: str, number: int, turn: Connection) -> None:
    """On each signal, store two receipts at the same time as all others: one that all share, and one of its own."""
    with sw.connect(address, projects=["p"]) as client:
        while (name := turn.recv()) is not None:
            client.receipts.store(f"{name}-same", ["p"], name, name.encode())
            try:
                client.receipts.store(f"{name}-own", ["p"], name, f"{name} of {number}".encode())
                turn.send(WON)
            except sw.AlreadyExists:
                turn.send(LOST)


def record_changes(address: str, number: int, turn: Connection) -> None:
    """Start changesets and record into "the most recent one" from several threads, a context each."""
    expected: dict[str, list[str]] = {}
    plan_id, lease, rounds = turn.recv()

    def one_thread(thread: int, client: sw.Client) -> None:
        context = client.execution(plan_id, lease=lease)
        for count in range(rounds):
            changeset_id = context.start_changeset()
            paths = [f"{number}/{thread}/{count}-{change}" for change in range(3)]
            for path in paths:
                context.record_change(sw.Change(path=path, after=path.encode()))
            context.close_changeset(changeset_id)
            expected[changeset_id] = paths

    with sw.connect(address) as client:
        threads = [threading.Thread(target=one_thread, args=(thread, client)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    turn.send(expected)
    turn.recv()


def hold_plan(address: str, plan_id: str, told: Connection) -> None:
    """Take the lease, say so, and work on it for ever."""
    with sw.connect(address) as client:
        plan = client.plans.start_strategize(plan_id)
        assert plan.lease is not None
        told.send(plan.lease.token)
        threading.Event().wait()


def hold_plan_with_child(address: str, plan_id: str, told: Connection, until: int) -> None:
    """The same, with a child that keeps the connection open until the other end of a pipe is closed."""
    with sw.connect(address) as client:
        plan = client.plans.start_strategize(plan_id)
        assert plan.lease is not None
        kept = [os.dup(connection.fileno()) for connection in client._channel.connections._open]
        assert kept

        def keep() -> None:
            os.read(until, 1)

        fork(keep)
        told.send(plan.lease.token)
        threading.Event().wait()
