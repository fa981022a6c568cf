"""Scores on held-out rows, and the simple baselines that a model must beat."""
