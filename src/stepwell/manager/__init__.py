"""The process that owns the state. Start reading at `loop`."""
