"""Ingest: from a directory on disk to fragments, and from a changed directory to the rows that change.

The client's ingest workflow calls these modules in this order:

1. `discovery.discover` lists the files of a directory, without following symbolic links. It leaves out the well-known
   secret files of `secret_files`.
2. `inventory.plan` compares them with the rows that the project has: unchanged, to be read, gone.
3. `files.split_file` reads a file, redacts the secrets in it (`redaction`, with the table in `secret_formats`), and
   splits it into parts; workers do this for large trees, and the client for small ones.
4. `changes` turns the outcome of a file into rows to store and to delete.

`secret_policy` says which secrets are left out and redacted; callers choose it. `split.split` chooses a splitter by the
name of the file; the splitters in `splitters/` only say where parts begin.

Imports: `domain` (rows, outlines, digests), `errors` and `limits`. Nothing here talks to a manager: the client's
workflow does.

Invariants:

- Every byte of a redacted text is in exactly one part, in order, so a text can be put together again from its
  fragments. It has the lines of its file.
- Where a file is split depends on its name, its bytes and the policy alone. `split.VERSION` is raised when the rules
  change.
- No secret of a known format is in a fragment, unless the caller has asked for it.
- The row that stands for a file is written last. So an interrupted ingest is seen as incomplete and done again.
- Nothing outside the root is read.
"""
