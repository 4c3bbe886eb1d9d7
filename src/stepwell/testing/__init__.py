"""Test doubles."""
