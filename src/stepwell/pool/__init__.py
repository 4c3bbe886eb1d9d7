"""Processes that work for a program or a manager, and never outlive it."""
