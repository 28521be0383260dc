"""The inference engine: the port by which the worker drives it, and vLLM behind that port."""
