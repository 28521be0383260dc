"""The order of things: what a worker does, step by step, with one engine and one lock."""
