"""Measures the cost of the worker over stock vLLM: the public port, the pause of a swap, the start."""
