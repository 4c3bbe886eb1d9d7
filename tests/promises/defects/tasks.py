"""Defects that break the promise of tasks."""

from __future__ import annotations

from tests.promises.model import Defect

OUTCOME = "Every accepted task ends in exactly one outcome."
ATTEMPT = "only the result of the current attempt counts"
QUARANTINE = "Three workers that die of a task quarantine it, with the evidence."
DEADLINE = "A task past its deadline is stopped."

FEATURE = "features/tasks.feature"
TASKS = "tests/property/test_tasks.py::TestTasks"
WORKERS = "tests/crossprocess/test_workers.py"
FUTURES = "tests/unit/client/session/test_task_futures.py"

DEFECTS = (
    Defect(
        10,
        OUTCOME,
        "A task is lost with the worker that dies of it.",
        "domain/tasks/rules.py",
        "        changes.append(RowChanged(task, after))\n    changes +=",
        "        changes.append(RowChanged(task, None if after.state is TaskState.QUEUED else after))\n    changes +=",
        (TASKS,),
    ),
    Defect(
        10,
        OUTCOME,
        "An outcome that has overtaken the submission is acknowledged, so that the submission begins a second task.",
        "client/session/task_futures.py",
        "            received = tuple(each for each in self._unacknowledged if each not in self._submitting)\n",
        "            received = tuple(self._unacknowledged)\n",
        (
            f"{FUTURES}::test_submission_that_its_outcome_has_overtaken",
            f"{FUTURES}::test_submissions_that_their_outcomes_have_overtaken",
        ),
    ),
    Defect(
        10,
        ATTEMPT,
        "The result of an earlier attempt is accepted.",
        "domain/tasks/rules.py",
        "    held = task.state, task.worker_id, task.attempt\n"
        "    return held == (TaskState.LEASED, origin.session_id, command.attempt)",
        "    return task.state is TaskState.LEASED and bool(command.attempt and origin)",
        (
            "tests/unit/domain/tasks/test_rules.py::test_late_result",
            "tests/unit/manager/test_task_dispatch.py::test_late_result_is_refused",
        ),
    ),
    Defect(
        10,
        QUARANTINE,
        "A task is given to further workers, however many have died of it.",
        "domain/tasks/rules.py",
        "        elif len(deaths) < limits.TASK_DEATHS_MAX:",
        "        elif len(deaths) < 4 * limits.TASK_DEATHS_MAX:",
        (
            TASKS,
            f"{FEATURE}: A strategy that kills its workers is quarantined after three",
            f"{WORKERS}::test_storm_of_deaths",
        ),
    ),
    Defect(
        10,
        QUARANTINE,
        "The evidence of a worker's death does not reach the task.",
        "domain/tasks/rules.py",
        "        replace(death, evidence=command.evidence) if death.pid",
        "        death if death.pid",
        (f"{FEATURE}: A strategy that kills its workers is quarantined after three",),
    ),
    Defect(
        10,
        DEADLINE,
        "The deadlines of tasks are not looked at.",
        "manager/housekeeping.py",
        "        if by_deadline and by_deadline[0][0] <= self._clock.now_ms():",
        "        if by_deadline and by_deadline[0][0] < 0:",
        (f"{FEATURE}: A strategy that hangs is stopped at its deadline",),
        may_hang=True,
    ),
    Defect(
        10,
        DEADLINE,
        "A task ends at its deadline, and its worker goes on with it.",
        "domain/tasks/rules.py",
        "        changes += (RowChanged(task, ended[-1]), *_stop_worker_of(state, task))\n",
        "        changes += (RowChanged(task, ended[-1]),)\n",
        (
            "tests/unit/domain/tasks/test_rules.py::test_deadline",
            "tests/unit/manager/test_task_dispatch.py::test_deadline_kills_the_worker",
        ),
    ),
)
