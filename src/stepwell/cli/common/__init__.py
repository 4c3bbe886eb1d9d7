"""Parts that several commands share.

- `apps`: the settings of typer that all commands share, and groups that import a command when it is called.
- `parameters`: the declaration of options and arguments, and the conversion of their texts.
- `exit_codes`: the exit codes, in one table.
- `output`: results to stdout, messages to stderr. All commands write through it, escaped on a terminal.
- `error_report`: the errors of commands that have subcommands, such as `stepwell plan apply`.
- `json_values`: values of the domain as plain JSON values.
- `addresses`, `state_directory`, `source`, `secret_options`, `request_options`, `worker_options`, `validations`:
  options that several commands have.
- `completions`: values that a shell completes, such as the ids of plans.
- `receipts`: the receipts that `why` and `diff` read.
- `answer_text`: an answer as a person reads it.
- `console`: consoles for tables and colours. `progress_bar`: bars on stderr while a command works. Both use rich.

The modules import each other, the client and the domain, but no command. Nothing here keeps state between two calls.
"""
