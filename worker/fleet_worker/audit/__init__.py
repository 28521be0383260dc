"""The provenance audit: who made which token, recomputed instead of believed.

Every sampled token of a reply came with its log-probability and with the version that is said to
have made it. The audit computes the same log-probability again, without the engine: transformers,
float32, teacher forcing on prompt and tokens, under the checkpoint of that version and under the
versions next to it. Where the claim is true the two numbers agree to the engine's rounding; where
it is not they are far apart, unless the two versions hardly differ.

It knows nothing of how a worker makes its labels, and shares no code with that. Weights are told
apart by run, version and digest, as spans name them: a directory is refused for tokens that were
made by other bytes, whatever it is called.
"""
