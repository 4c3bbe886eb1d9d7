"""Receipts: documents of how assembled answers came about.

A client stores a receipt after it has assembled an answer. The manager keeps the newest ones, within bounds in number
and bytes, and never reads their bodies: `stepwell.assembly` defines the format.

- `model`: `ReceiptRow`.
- `commands` and `rules`: store, read and list.
- `table`: receipts by id and in the order of storing.

It imports the domain's core, and of other subjects only `tiers.model`, because the body of a receipt is a body like any
other.

Invariants: a receipt never changes, and storing it again has no effect. No fragment moves because of a receipt. A
session sees a receipt only if it sees all of its projects.
"""
