"""The rules, pure: no clock, file, socket, logger or process in here. Start reading at `machine`."""
