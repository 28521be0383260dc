"""The API for users: the two resources, their conditions, and the names of all created objects."""
