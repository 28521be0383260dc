"""prime-rl's own control routes, on the admin port; it also uses vLLM's `/pause` and `/resume`."""
