"""Processes that work on one thing together."""
