"""Injects failures into a real fleet, and measures the recovery.

fleet.py      a fleet and its WeightVersion, as a user of kubectl sees them.
processes.py  signals to the processes of workers and operators, from outside of their containers.
network.py    answers that are lost on their way, and partitions.
store.py      a shared file system that hangs.
holds.py      keeping a rollout in a phase for as long as a fault needs.
rows.py       the failures, each a story: hold, break, let go.
recovery.py   a row played under load: what clients saw, and the seconds until the fleet was whole.
table.py      the same as a page of the documentation.
__main__.py   `make chaos`: random failures, for a given number of rollouts.
"""
