"""Tables that more than one command prints."""
