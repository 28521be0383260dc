"""The token path: tokens in instead of messages, ids and their log-probabilities out.

One implementation behind every way in: the `tokens` of a chat, `/v1/chat/completions/tokens`,
`nvext.token_data`, `token_ids` of `/inference/v1/generate`. vLLM's own seam takes the ids (its
decode stage reuses those of a prefill stage), so that tool parsing, sampling and streaming are
vLLM's, and the prompt is exactly what the client sent.
"""
