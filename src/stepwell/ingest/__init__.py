"""From a directory on disk to fragments: which files there are, and where each of them is split."""
