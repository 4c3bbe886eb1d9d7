"""Directory trees on disk: capture changes in a tree, merge three versions of a file, and change a tree atomically.

A tree is the set of files, symbolic links and empty directories below a root. This package knows nothing of plans or
managers: `client.workflows` turns a plan's net changes into `Delta` values and calls this package in the caller's own
process, because the manager never touches a user's files.

Entry points:

    transaction.TreeTransaction   apply a list of changes entirely or not at all, also when the process is killed
    lock.RootLock                 exclude other transactions at a root while several things are done there
    tree_lock.TreeLock            keep captures apart from captures and changes of trees that overlap
    recovery                      undo, list and finalize transactions that earlier processes did not finish
    key, sealed_name              recognise the transactions of this user's own processes
    capture.TreeCapture           find out what changed below a root while other programs worked in it
    scratch.scratch_copy          a private copy of a tree, which is removed in any case
    merge.file_merge              merge three versions of one file

Layers, from the top: `transaction` -> `recovery`, `forward` -> `lock`, `undo` -> `tree_lock`, `change_plan`,
`staging_dir` -> `key` -> `root`, `undo_log`, `sealed_name` -> `entry`, `syscalls`; and `capture` -> `spool` -> `walk`
-> `ignore`, `root`; and `scratch` -> `tree_lock`, `walk`. The package may import `domain`, `errors` and `limits`, and
nothing of the client.

Invariants:

- Every system call that changes a tree is in `syscalls`, behind the hook `on_step`, so that tests can kill a process
  before each one.
- No path is resolved twice. Directories are opened one component at a time, without following links or `..`, and all
  work is done relative to the open descriptors. A path can therefore not be made to lead out of the root.
- The state of a transaction on disk is the name of its directory in `.stepwell`; each change of state is one rename.
- A tree may have come from an attacker. Of what is found in `.stepwell`, only directories with this user's seal in
  their name are used, changed or removed.
- Objects of this package belong to one thread. Threads and processes exclude each other through `RootLock` and
  `TreeLock`.
"""
