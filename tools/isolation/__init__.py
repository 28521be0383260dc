"""Measures the costs of one tenant for another, and writes their table."""
