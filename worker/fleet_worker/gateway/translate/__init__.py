"""The dialects of the public port: a request to one of vLLM's, and the reply back."""
