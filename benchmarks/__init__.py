"""Side by side in one run: `python -m benchmarks`. A figure is only ever a ratio to a peer in the same run."""
