"""The promises, broken one at a time: evidence that the tests in `docs/promises.md` fail when one does not hold.

`python -m tests.promises` copies the repository, puts one planted defect into the copy, runs the tests that must find
it, and expects each of them to fail. Without the defect the same tests must pass. `--only 9` does so for one promise,
and `--write` writes the table of defects in `docs/promises.md`.

Read in this order:
- `model`: a planted defect.
- `defects`: the table of them, in the order of the promises.
- `repository_copy`: a copy of the repository, in which one defect at a time stands.
- `test_run`: the named tests, run in a copy, and their outcomes.
- `proof`: all runs, and the verdict about each defect.
- `document`: what `docs/promises.md` says of both.
"""
