"""Indexes that the built-in strategies keep of a project between two requests.

An index is derived data: it belongs to one process, and can be built anew from any view.
`incremental.IncrementalIndex` brings an index from one view to another by the changes between them, or by a comparison
of all rows where the view cannot tell the changes. `index_cache.IndexCache` keeps one index for each project.

- `words`: the words of the fragments, scored by BM25F and by files.
- `columns`: fragments in slots with arrays of numbers beside them; `timeline` and `embeddings` add columns.
- `proximity` (with `references` and `slot_sets`): the order of a source's parts, and references between fragments.
- `snapshot`: all that an index keeps, as a file can hold it.

Imports: numpy, the domain's rows and outlines, `strategies.protocol`, `strategies.partition` and `strategies.progress`;
no strategy.

Invariants: an index that followed any sequence of views returns the same, to the last bit, as one built for the last
view. An update that fails in the middle leaves an index that the next update repairs. Indexes have no lock, because one
thread of a worker uses them.
"""
