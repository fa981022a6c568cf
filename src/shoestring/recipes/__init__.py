"""The recipes of `shoestring demo`."""
