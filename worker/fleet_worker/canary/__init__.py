"""Canary prompts: running them on the weights in the engine, and comparing what comes out."""
