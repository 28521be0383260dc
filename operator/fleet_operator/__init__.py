"""The rlfleet operator: keeps fleets of vLLM workers on the weights that a trainer asks for."""
