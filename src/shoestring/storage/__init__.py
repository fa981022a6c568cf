"""Tensors in files that notice damage."""
