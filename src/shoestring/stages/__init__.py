"""The way of an experiment, one stage a file: measure, plan, prepare, train, evaluate, report.

Each stage is a function from a recipe and the records before it to its own record in the run folder.
"""
