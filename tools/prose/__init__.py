"""The house's language: a Vale style, and what `make lint` holds to it."""
