"""Assembly: from the results of strategies to the text that a model reads, under a budget of tokens.

The client calls `pipeline.assemble` with a request, a view and the results of the strategies that it asked. The stages
run in this order; `components.Components` is the table of them, and each can be replaced by name or by a function:

  select      which of the results are used
  allocate    the weight of each strategy, and the tokens that it may bring in alone
  fuse        one relevance of each fragment out of the scores of all strategies
  expand      fragments that stand around the hits become candidates, too
  dedupe      of fragments with the same body, one stays
  score       relevance, hierarchy, quality and recency become one score
  pack        the best candidates that fit, at the greatest depth that fits (depth)
  order       related pieces stand together
  preamble    one line about where the pieces come from, and what is missing
  skeleton    the decisions of the plan for which the question is asked
  render      Markdown with sources and line ranges

Further entry points: `receipt.Receipt` records how an answer came about, `replay.replay` makes the same bytes from it
again, `explain` puts it into words, and `evaluation` measures answers against known evidence.

Imports: `strategies` (types, terms), `ingest.splitters.turns`, `domain`, `errors` and `limits`. Assembly does no I/O:
it reads bodies through the view that it is given, and an import contract forbids files, sockets, clocks and random
numbers.

Invariants:
- The same inputs give the same bytes. Results are taken in order of the strategies' names, ties are broken by project
  and id, and no clock is read.
- `total_tokens` is the exact count of the text, and never more than the budget.
- A strategy that returns an impossible result costs its own result only.
- Receipt and answer are made from the delivered text, not from the intentions of a stage.
"""
