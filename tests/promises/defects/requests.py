"""Defects that break the promise that a request takes effect once."""

from __future__ import annotations

from tests.promises.model import Defect

AGAIN = "A client sends a request whose connection died again with its number."
ONCE = "It takes effect once and gets the same reply, across a restart."
UNKNOWN = 'the error is `OutcomeUnknown` or `SessionExpired`, never "failed"'

SESSION = "tests/unit/client/session/test_once.py"
CUT = f"{SESSION}::test_write_that_is_cut_happens_once"
DELIVERY = "tests/unit/client/session/test_delivery.py"
KILLS = "tests/crossprocess/test_kills.py::test_killed_under_load"
FAILPOINTS = "tests/faults/test_durability.py::TestFailpoints"

DEFECTS = (
    Defect(
        9,
        AGAIN,
        "The client gives a request that it sends again a new number.",
        "client/session/delivery.py",
        "            message = self._message = self._build(*self._rules.numbers.assign(self))\n",
        "            message = self._build(*self._rules.numbers.assign(self))\n",
        (CUT, f"{DELIVERY}::test_message_stays_the_same", KILLS),
    ),
    Defect(
        9,
        AGAIN,
        "The client gives a request up as soon as its connection dies.",
        "client/session/delivery.py",
        "        if self._failures == 1:\n",
        "        if self._failures == 0:\n",
        (CUT,),
    ),
    Defect(
        9,
        ONCE,
        "The manager does not remember replies.",
        "manager/reply_cache.py",
        "        session.remember(response.request_id, frame)\n",
        "",
        (CUT, f"{SESSION}::test_threads_that_are_cut_at_random_happen_once"),
    ),
    Defect(
        9,
        ONCE,
        "The manager forgets the reply of the oldest pending request, one too many.",
        "manager/sessions.py",
        "            self._forget_below(answered)\n        if request_id",
        "            self._forget_below(answered + 1)\n        if request_id",
        ("tests/property/test_simulator.py::test_seed_is_always_the_same_run",),
    ),
    Defect(
        9,
        ONCE,
        "Replies are remembered in memory only, and a restart forgets them.",
        "manager/reply_cache.py",
        "        if is_stored:\n            self._journal.record_reply",
        "        if is_stored and not frame:\n            self._journal.record_reply",
        (f"{FAILPOINTS}::test_death_at_each_point_of_a_turn", KILLS),
    ),
    Defect(
        9,
        ONCE,
        "The part of a batch that was executed before a crash is executed again.",
        "manager/large_requests.py",
        "        if self._journal.revision != revision:\n            self._store_part(request)\n",
        "",
        (f"{FAILPOINTS}::test_death_in_the_middle_of_a_batch",),
    ),
    Defect(
        9,
        UNKNOWN,
        "The client sends a write again although the manager has forgotten its session.",
        "client/session/delivery.py",
        "            self.sent_in != generation\n            and isinstance",
        "            self.sent_in is None\n            and isinstance",
        (
            f"{SESSION}::test_write_in_a_forgotten_session_is_not_sent_again",
            f"{DELIVERY}::test_only_a_write_that_was_sent_expires",
        ),
    ),
    Defect(
        9,
        UNKNOWN,
        "A write that may have taken effect is reported as one that has failed.",
        "client/session/delivery.py",
        "ended_by, is_sent=self.sent_in is not None))",
        "ended_by, is_sent=False))",
        (
            f"{SESSION}::test_manager_in_memory_is_not_waited_for",
            f"{DELIVERY}::test_final_error",
        ),
    ),
)
