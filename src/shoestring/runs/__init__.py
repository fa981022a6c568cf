"""One run: measure, plan, prepare, train, evaluate, report.

Each of these is a function from a recipe and earlier records to its own record in the run folder.
"""
