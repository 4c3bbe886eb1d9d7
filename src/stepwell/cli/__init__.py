"""The command line: `stepwell COMMAND`, for users and for shell scripts.

Entry points: `main.main` is what the installed program `stepwell` and `python -m stepwell` call. It imports
`command_line`, which lists the commands with their summaries, runs one and turns errors into a message and an exit
code.

The command `stepwell NAME` is the module `NAME`, and `stepwell plan NAME` the module `plan.NAME`. Such a module has an
`app`, which is typer's description of the command, and `run`: its parameters are the options, its docstring is the help
below the summary, and it returns the exit code. A module is imported when its command is called, so that no command
waits for the imports of the others. `common` has what several commands share.

Imports: this is the top layer. It may import every other package except `stepwell.testing`; no other package imports
it. (The demonstration in `examples` does, for its options and its error messages.)

Rules that every command keeps:

- Results go to stdout, everything else (errors, progress, hints) to stderr, so that a result can be piped.
- With `--json` stdout has one JSON object on one line and nothing else. Its keys are part of the interface.
- An expected error is one line on stderr that says what to do, never a traceback. The exit codes are in
  `common.exit_codes`.
- Text from files and plans is escaped before it reaches a terminal, because it could contain control sequences.
"""
