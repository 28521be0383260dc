"""What the worker costs over stock vLLM: the public port, the pause of a swap, the start."""
