"""Versions that a trainer writes itself: full checkpoints, and deltas of the version before.

It needs the extra `rlfleet[delta]`. docs/how-to/publish-deltas.md has the form on disk.
"""
