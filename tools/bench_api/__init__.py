"""Benchmark of the RL API: one call to a fleet's address, next to a client that calls all workers."""
