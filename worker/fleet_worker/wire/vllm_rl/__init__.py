"""vLLM's own routes for online RL, which it serves in development mode only, on the admin port.

Spoken by TRL, SkyRL, NeMo-RL and vLLM's client for weight transfer.
"""
