"""`/tokenize` and `/detokenize`, at the root as vLLM serves them, and below `/v1`.

At the root because clients that speak to vLLM take `/v1` off their base URL to get there; below
`/v1` because that is all that a gateway may let through.
"""
