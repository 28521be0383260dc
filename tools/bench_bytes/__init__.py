"""Measures what a version costs the store and a worker, in full and as a delta."""
