"""Indexes that the built-in strategies keep of a project between two requests.

An index is derived data: it belongs to one worker process, is never stored, and can be built anew from any view.
`incremental.IncrementalIndex` brings an index from one view to another by the changes between them, or by a comparison
of all rows where the view cannot tell the changes. `index_cache.IndexCache` keeps one index for each project.

- `bm25` (with `postings` and `terms`): the words of the fragments, scored by BM25; `keyword_hits` searches it.
- `columns`: fragments in slots with arrays of numbers beside them; `timeline` and `embeddings` add columns.
- `proximity` (with `references`): the order of a source's parts, and references between fragments.

Imports: numpy, the domain's rows and outlines, `strategies.protocol`, `strategies.partition` and `strategies.progress`;
no strategy.

Invariants: an index that followed any sequence of views returns the same, to the last bit, as one built for the last
view. An update that fails in the middle leaves an index that the next update repairs. Indexes have no lock, because one
thread of a worker uses them.
"""
