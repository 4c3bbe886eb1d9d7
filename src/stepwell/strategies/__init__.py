"""Strategies: which fragments answer a request, each by its own idea of what matters."""
