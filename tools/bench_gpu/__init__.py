"""All that a GPU shows and CPUs do not, in one command: `make bench-gpu`."""
