"""The files of a data directory: the lock, the mark, the validity of the index of reads, and who may enter.

`store_files.StoreFiles` is the entry point: the store reaches the disk through it only. `directory.DataDirectory` locks
a directory for one manager, and `private_files` opens files without following a link.

Allowed imports: `storage.sql` and `storage.database`, `limits`, `errors`, `boot`, `text`.
"""
