"""The public port: the latch in front of vLLM's routes, and weight versions in their replies."""
