"""Measures the cost of a digest for every checkpoint: staging in one pass against two passes without a digest."""
