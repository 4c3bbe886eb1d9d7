"""The manager's side of shared memory. One process and one thread use it; nothing here is locked.

`body_store.BodyStore` is the entry point for bodies, `catalogue.Catalogues` for the catalogues of projects. Both take
their space from an `arena.Arena` of `segments`. `compaction.BackgroundWork` converts and moves bodies between two turns
of the loop, `upload.Upload` receives one large body, and `durable_bodies.DurableBodies` is the interface to a store
that survives the manager.

Invariants:
    What can fail for want of memory fails before the state changes (`BodyStore.require_room`).
    A segment without live bodies goes back to the system; live bodies are moved out of sparse segments.
    All work is done in slices of about a millisecond, so that the loop is not delayed.
"""
