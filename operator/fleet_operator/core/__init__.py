"""Decisions. Pure: no I/O, no clock, no randomness, no logging; `now` comes in as an argument."""
