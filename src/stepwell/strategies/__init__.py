"""Strategies: each ranks the fragments of some projects for a request, by one notion of relevance.

A strategy is a pure function of a request and a view. It runs in a worker process, on the state at one revision, and
returns scored fragments. It never changes any state, so a strategy that fails, hangs or crashes costs its own result
only. `stepwell.assembly` makes one answer of the results of several strategies.

Entry points, in the order of reading:

- `protocol`: the types that a strategy receives and returns. Programs that bring a strategy of their own need only
  these.
- `registry`: strategies by name: built in, installed as entry points, or given by a program.
- `payload`: the message that carries a request to a worker and a result back.
- `ranking` and `partition`: the rules that all strategies share. A result fills about twice the budget, and a view can
  be divided among several workers.
- `builtin/`: the six strategies that come with stepwell: keyword, recency, graph, semantic, tiered and plan-decision.
- `index/`: the indexes that these keep of a project between two requests.

Imports: `domain`, `protocol` (the handles of catalogues), `errors` and `limits`. Nothing here imports the manager, the
client or the pool, because the same code runs in a worker process and in the threads of `stepwell.testing`.

Invariants:

- The same request on the same view gives the same result, to the last bit. It does not matter which views an index has
  followed before, nor among how many workers the view is divided.
- Word frequencies and references of one project come from that project alone: no score tells what another one holds.
- Ties are broken by project and id.
- A strategy instance serves one request at a time. Nothing here has a lock.
"""
