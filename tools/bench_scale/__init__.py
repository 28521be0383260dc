"""How the operator scales, side by side with fan-outs written by hand: see `make bench-scale`."""
