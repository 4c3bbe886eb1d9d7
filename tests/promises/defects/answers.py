"""Defects that break the promise of answers."""

from __future__ import annotations

from tests.promises.model import Defect

LARGER = "An answer is never larger than its budget, by the exact count of its text."
SAME = "The same view, question and answering strategies give the same bytes."
FAILS = "A strategy that fails costs itself, and the answer names it."
FOREIGN = "Nothing of a project that was not asked for is in the answer, or changes it."

FEATURE = "features/assembly.feature"
ASSEMBLY = "tests/property/test_assembly.py"
STRATEGIES = "tests/property/test_strategies.py"
PACKING = "tests/property/test_packing.py"
PROCESSES = "tests/crossprocess/test_assembly.py"

DEFECTS = (
    Defect(
        14,
        LARGER,
        "An answer may have 30 tokens more than its budget.",
        "assembly/pipeline.py",
        "        self._budget: Final = inputs.request.budget_tokens\n",
        "        self._budget: Final = inputs.request.budget_tokens + 30\n",
        (
            f"{FEATURE}: An answer is never larger than its budget",
            f"{PACKING}::test_the_best_match_is_always_there",
        ),
    ),
    Defect(
        14,
        SAME,
        "The results of strategies are used in the order in which they arrive.",
        "assembly/stages/select.py",
        "    ordered = sorted(results, key=lambda result: result.strategy)\n",
        "    ordered = list(results)\n",
        (f"{ASSEMBLY}::test_the_order_of_arrival_does_not_show",),
    ),
    Defect(
        14,
        SAME,
        "A worker that has a share of a view takes its statistics from the share, and not from the view.",
        "strategies/partition.py",
        "    while isinstance(view, ViewShare):\n",
        "    while isinstance(view, ViewShare) and not view.parts:\n",
        (f"{STRATEGIES}::test_the_number_of_parts_does_not_show",),
    ),
    Defect(
        14,
        FAILS,
        "The answer does not name a strategy whose result cannot be used.",
        "assembly/stages/select.py",
        '            failures.append(Failure(result.strategy, INVALID, f"strategy {result.strategy!r} {fragments}"))\n',
        "            continue\n",
        (f"{ASSEMBLY}::test_rubbish_costs_only_itself",),
    ),
    Defect(
        14,
        FAILS,
        "A strategy whose result cannot be used fails the answer.",
        "assembly/stages/select.py",
        '            failures.append(Failure(result.strategy, INVALID, f"strategy {result.strategy!r} {fragments}"))\n',
        "            raise InvalidArgument(fragments)\n",
        (f"{ASSEMBLY}::test_rubbish_costs_only_itself",),
    ),
    Defect(
        14,
        FAILS,
        "The answer does not name a strategy that has raised an error.",
        "client/workflows/assemble.py",
        "for name, error in execution.failures.items())",
        "for name, error in execution.failures.items() if not name)",
        (f"{FEATURE}: A strategy that fails costs the answer itself alone",),
    ),
    Defect(
        14,
        FOREIGN,
        "A session may ask about projects that it was not opened for.",
        "domain/verdict.py",
        "        if self.projects is None:\n            return\n        for project in projects:\n",
        "        if self.projects is None or projects:\n            return\n        for project in projects:\n",
        (f"{PROCESSES}::test_nobody_sees_another_project",),
    ),
    Defect(
        14,
        FOREIGN,
        "A strategy searches all projects of its view, asked for or not.",
        "strategies/ranking.py",
        "    return [project for project in view.projects if project in request.projects]\n",
        "    return [project for project in view.projects if project or request.projects]\n",
        (f"{STRATEGIES}::test_other_projects_do_not_show",),
    ),
)
