"""The command line: `stepwell COMMAND`, for users and for shell scripts.

Entry points: `main.main` is what the installed program `stepwell` and `python -m stepwell` call. It imports
`command_line`, which has the parser, runs one command and turns errors into a message and an exit code.

Each command is one module with three names: `SUMMARY`, the line in `stepwell --help`; `add_arguments`, which adds its
options to a parser; and `run`, which does the work and returns the exit code. `plan` is a package because it has ten
subcommands. `common` has what several commands share.

Imports: this is the top layer. It may import every other package except `stepwell.testing`; no other package imports
it. (The demonstration in `examples` does, for its options and its error messages.)

Rules that every command keeps:

- Results go to stdout, everything else (errors, progress, hints) to stderr, so that a result can be piped.
- With `--json` stdout has one JSON object on one line and nothing else. Its keys are part of the interface.
- An expected error is one line on stderr that says what to do, never a traceback. The exit codes are in
  `common.exit_codes`.
- Text from files and plans is escaped before it reaches a terminal, because it could contain control sequences.
"""
