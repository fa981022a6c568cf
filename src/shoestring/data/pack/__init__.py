"""Which tokens stand in which row, and in which order rows are read."""
