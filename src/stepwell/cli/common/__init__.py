"""Parts that several commands share.

- `exit_codes`: the exit codes, in one table.
- `output`: results to stdout, messages to stderr. All commands write through it, escaped on a terminal.
- `parser`: the parser of all commands.
- `json_values`: values of the domain as plain JSON values.
- `addresses`, `state_directory`, `source`, `secret_options`, `validations`: options that several commands have, with
  their defaults.
- `embedded`: a manager for one command, with a cache on disk.
- `progress_bar`: bars on stderr while a command works.
- `subcommand`: the frame of commands that have subcommands, such as `stepwell plan apply`.

The modules import each other, the client and the domain, but no command. Nothing here keeps state between two calls.
"""
