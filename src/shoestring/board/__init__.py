"""A live page of many runs, from their folders alone."""
