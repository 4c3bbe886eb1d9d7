"""Where the bytes of bodies are."""
