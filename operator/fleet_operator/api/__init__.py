"""What users see: the two resources, their conditions, and the names of everything we create."""
