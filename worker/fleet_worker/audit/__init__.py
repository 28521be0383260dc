"""The provenance audit: recompute which weights made each token of a reply.

Every sampled token of a reply has a log-probability and a version. The audit computes the same
log-probability without the engine, by teacher forcing with transformers in float32. It does so with
the checkpoint of that version and with the versions next to it. If the label is right, the two numbers
agree up to the engine's rounding. If it is wrong they are far apart, unless the two versions hardly
differ.

The audit shares no code with the labels of the worker. It identifies weights by run, version and
digest, as spans do. It refuses a directory with another digest than the tokens name.
"""
