"""The index of one directory: answers to questions about its files, without a manager.

`stepwell assemble` uses it where no manager is named. The files are the state, and the index is derived from them: it
is kept in the user's cache, follows the files at each question, and is built again if the cache cannot be used. The
strategies and the pipeline are those of a runtime. The built-in strategies run in the process of the command, because
their indexes are mapped from the cache in a few milliseconds, and starting a manager and workers would take longer than
the answer. Worker processes are started for three things: to split many files, to index them, and to run strategies of
other packages.

Entry points, in the order of reading:

- `directory.DirectoryIndex`: opens the index of a directory, brings it up to date, and answers.
- `model`: the rows and files that an index has at one revision; `view.DirectoryView` shows them to strategies.
- `refresh`: compares the files with the index, and reads the changed ones.
- `contents`: an index with everything derived from it, as it is written to a file and restored from one.
- `array_file`: the format of that file. `cache`: where it lies, and who may write it.
- `receipts`: the receipts of the last answers. `installed_strategies`: strategies of other packages.

Imports: everything below `runtime`; only the command line imports it.

Invariants:

- A reader of the cache sees a whole file of one revision: a new one replaces it in one step, and checksums are
  compared when it is opened. Reading takes no lock.
- A body is read from its file, and its digest compared. The cache has no copy of the files.
- An index that followed any changes answers as one that was built anew.
- Making Python objects takes longer than reading the file. So postings, columns and sets of fragments stay arrays, ids
  are tabulated when one is asked for, and a command imports no code of managers, workers and terminals that it does not
  use.
"""
