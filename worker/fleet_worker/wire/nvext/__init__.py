"""Dynamo's `nvext` on chats and completions: tokens in, and what the engine knows of them out.

Taken: `token_data`, `extra_fields`, `cache_salt`, `agent_hints.priority`,
`routed_experts_prompt_start`. Any other key is refused: Dynamo's others steer its router.
"""
