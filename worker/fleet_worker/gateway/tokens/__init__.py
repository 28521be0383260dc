"""The token path: tokens in instead of messages, ids and their log-probabilities out.

One implementation serves the `tokens` of a chat, `/v1/chat/completions/tokens`, `nvext.token_data`
and the `token_ids` of `/inference/v1/generate`. The ids enter where vLLM's decode stage takes those
of a prefill stage. Tool parsing, sampling and streaming are vLLM's, and the prompt is exactly the
client's.
"""
