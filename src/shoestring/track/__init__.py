"""Metrics as JSON lines."""

from shoestring.track.lines import LineFile, NoLines, read_lines

__all__ = ["LineFile", "NoLines", "read_lines"]
