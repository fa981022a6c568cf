"""Synthetic rows as a pure function of (stream, seed, i): the same bytes on every device, and no file needed."""
