"""Decisions of the worker: pure functions and frozen records.

Imports the standard library and `fleet_worker.protocol` only. No clock, no files, no engine: what
is needed comes in as arguments.
"""
