"""Measures what a digest of every checkpoint costs: one pass with it, against two passes without."""
