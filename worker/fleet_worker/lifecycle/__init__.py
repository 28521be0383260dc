"""The life of a worker: its states, its lock, and the calls that pause, stage, load and resume."""
