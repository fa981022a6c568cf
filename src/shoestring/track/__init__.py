"""Metrics as JSON lines."""

from shoestring.track.lines import LineFile, read_lines

__all__ = ["LineFile", "read_lines"]
