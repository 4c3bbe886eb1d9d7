"""The word index: which fragments have a term, in which fields and files, and their scores for a query.

Entry points, in the order of reading:

- `bm25.Bm25Index`: the index of one project. `keyword_hits` searches it, for strategies that begin at hits.
- `terms` cuts texts into terms, and `fields` tells signature, documentation, code, strings and comments apart
  (`lexical_syntax`). `postings` has the terms of the fragments as sorted arrays.
- `query` reads a query: its zones, and the places that it names. `file_ranking` scores fragments by it, with the files
  that they are in (`files`), the commits that changed these (`commits`), and the turns beside a turn (`passages`).
- `plain_bm25` is BM25 without any of that, which evaluations show as a floor.

Imports: numpy, and from `index` only `incremental`, `snapshot` and `references`.

Invariants: scores depend on the fragments of the project alone, and not on the order in which they came. Sums are of
whole numbers, so that they are exact.
"""
