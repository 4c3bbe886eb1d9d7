"""Changesets."""
