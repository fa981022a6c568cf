"""Language-model research on a shoestring: measure the machine, plan what fits, run it to the deadline."""

__version__ = "0.1.0"
