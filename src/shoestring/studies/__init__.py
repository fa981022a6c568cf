"""Over many runs: laws, optima, comparisons, sweeps."""
