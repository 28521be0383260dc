"""Checkpoints: what a directory holds, whether it fits the running model, and its bytes in memory."""
