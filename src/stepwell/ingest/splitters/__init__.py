"""Splitters."""
