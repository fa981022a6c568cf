"""Scaling laws: from losses of trained models to the model that a budget is best spent on. NumPy only, no torch."""
