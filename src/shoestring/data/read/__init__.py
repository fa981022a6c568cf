"""Corpora: files of any format and data sets of the hub, as documents."""
