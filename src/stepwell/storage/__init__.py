"""What survives a manager, and where."""
