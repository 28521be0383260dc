"""`/inference/v1/generate`: vLLM's own token route, strict about what it is asked.

vLLM drops unknown keys of `sampling_params` without a word, a `cache_salt` among them, and with it
the promise not to read keys and values of older weights.
"""
