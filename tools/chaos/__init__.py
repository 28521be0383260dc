"""Breaking a real fleet on purpose, and measuring how long it takes to be whole again.

fleet.py      a fleet and its WeightVersion, as a person with kubectl meets them
processes.py  signals to the processes of workers and operators, from outside of their containers
network.py    answers that are lost on their way, and partitions
store.py      a shared file system that hangs
holds.py      keeping a rollout in a phase for as long as a fault needs
rows.py       the failures, each a story: hold, break, let go
recovery.py   a row played under load: what clients saw, and the seconds until the fleet was whole
table.py      the same as a page of the documentation
__main__.py   `make chaos`: failures at random, for as many rollouts as are asked for
"""
