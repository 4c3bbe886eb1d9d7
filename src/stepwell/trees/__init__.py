"""Trees on disk: what is in one, what has changed in one, and changes to one that happen entirely or not at all."""
