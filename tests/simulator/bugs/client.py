"""Bugs of the client: numbers of requests, resending, and the order of answers."""

from __future__ import annotations

from contextlib import AbstractContextManager

from stepwell.aio.connection import AsyncConnection
from stepwell.client.api.watch import WatchCursor
from stepwell.client.session.delivery import Deliverable, Delivery
from stepwell.client.session.request_numbers import Numbered, RequestNumbers
from stepwell.errors import StepwellError
from stepwell.protocol.messages import ManagerMessage, WatchEvents
from tests.simulator.bugs.registry import bug, patched


@bug("The client gives a new number to a request that it sends again.")
def new_number_for_resent_request() -> AbstractContextManager[None]:
    message = Delivery.message

    def message_with_new_number(self: Delivery) -> Deliverable:
        if self._build is not None:
            self._rules.numbers.end(self)
            self._message = None
        return message(self)

    return patched((Delivery, "message", message_with_new_number))


@bug("The client sends a write again although the session in which it was sent is gone.")
def resent_after_session_is_gone() -> AbstractContextManager[None]:
    return patched((Delivery, "_is_expired", lambda _self, _generation: False))


@bug("The client tells the manager that all earlier requests are answered, although some are pending.")
def answered_too_high() -> AbstractContextManager[None]:
    assign = RequestNumbers.assign

    def assign_without_pending(self: RequestNumbers, request: Numbered) -> tuple[int, int]:
        number, _ = assign(self, request)
        return number, number

    return patched((RequestNumbers, "assign", assign_without_pending))


@bug("The answer to a request whose task was cancelled goes to the next request.")
def answer_of_cancelled_task_not_dropped() -> AbstractContextManager[None]:
    answer = AsyncConnection._answer

    def answer_first_that_waits(self: AsyncConnection, message: ManagerMessage | StepwellError) -> None:
        while len(self._awaited) > 1 and self._awaited[0].answer.cancelled():
            given_up = self._awaited.popleft()
            if given_up.on_end is not None:
                given_up.on_end()
        answer(self, message)

    return patched((AsyncConnection, "_answer", answer_first_that_waits))


@bug("A watch that reconnects asks for events one revision too late.")
def watch_resumes_too_late() -> AbstractContextManager[None]:
    subscription = WatchCursor.subscription

    def later_subscription(self: WatchCursor) -> WatchEvents:
        wanted = subscription(self)
        is_reconnected = self.revision > 0 and wanted.since is not None
        return WatchEvents(0, wanted.since + 1, wanted.projects) if is_reconnected and wanted.since else wanted

    return patched((WatchCursor, "subscription", later_subscription))


@bug("A client's partial send loses the bytes that the socket did not accept.")
def client_loses_unsent_bytes() -> AbstractContextManager[None]:
    def flush(self: AsyncConnection) -> None:
        try:
            if self._unsent:
                self._sent += self._socket.send(self._unsent)
                self._unsent.clear()
        except BlockingIOError:
            self._watch_writes()
        except OSError as error:
            self._on_send_error(error)

    return patched((AsyncConnection, "_flush", flush))
