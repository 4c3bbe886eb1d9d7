"""A strategy of one's own: it prefers fragments that a person has marked as important, beside the built-in ones."""

from collections.abc import Sequence

import stepwell as sw
from stepwell.strategies.protocol import StrategyView


class Important:
    """Ranks the fragments whose metadata say that they are important, the short ones first."""

    name = "important"
    capabilities = frozenset({"query"})

    def can_handle(self, request: sw.ContextRequest, view: StrategyView) -> float:
        return 0.5

    def assemble(
        self, request: sw.ContextRequest, view: StrategyView, budget_tokens: int
    ) -> Sequence[sw.ScoredFragment]:
        rows = [row for project in view.projects for row in view.rows(project) if row.metadata.get("important")]
        return [
            sw.ScoredFragment(row.project, row.fragment_id, 1 / (1 + row.tokens), row.tokens, row.revision, "marked")
            for row in rows
        ]

    def explain(self) -> str:
        return "Fragments with `important` in their metadata, the short ones first."


NOTES = {"rounding": "Totals are rounded to cents.", "colour": "Buttons are blue.", "tax": "Totals include the tax."}

with sw.Runtime.start(workers=1, strategies=[Important]) as runtime, runtime.client(projects=["shop"]) as client:
    for name, body in NOTES.items():
        marked = {"important": "yes"} if name == "tax" else {}
        client.tiers.store(sw.Fragment(fragment_id=name, source=f"{name}.md", body=body, metadata=marked))

    alone = client.strategies.submit("important", sw.ContextRequest(projects=["shop"], query="totals")).result()
    print("alone:", [(each.fragment_id, each.reason) for each in alone.fragments])

    answer = client.assemble("how are totals rounded?", strategies=["keyword", "important"], budget_tokens=200)
    for fragment in answer.fragments:
        print(fragment.source, sorted(fragment.strategies))
