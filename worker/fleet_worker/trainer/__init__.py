"""Trainers that drive a worker themselves: what they may do, and the routes of each project."""
