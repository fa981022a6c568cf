"""The command line: one file a verb. A verb reads a recipe, calls one function and prints one table."""
