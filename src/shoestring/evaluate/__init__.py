"""Scores on held-out rows, and the simple strategies that a model must beat."""
