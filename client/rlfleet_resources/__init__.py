"""The resources as operator, RL API, client and command line share them: light, and pure."""
