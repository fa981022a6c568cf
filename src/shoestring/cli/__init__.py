"""The command line, one file per command. A command reads a recipe, calls one function and prints one table."""
