"""The diagrams of the documents, in a light and a dark version."""
