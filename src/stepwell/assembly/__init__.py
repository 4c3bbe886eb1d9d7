"""From what strategies found to the text that a model reads: pure, in stages that can be replaced by name."""
