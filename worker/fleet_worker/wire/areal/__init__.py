"""AReaL's routes for weights from disk, on the admin port."""
