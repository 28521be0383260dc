"""Benchmark of routers in front of real workers: what they cost, and what a warm cache gains."""
