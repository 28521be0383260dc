"""Measures staging: what the digest costs, what one core does, and a stage next to busy streams."""
