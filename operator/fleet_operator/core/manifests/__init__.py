"""Builds the pods and other objects of a fleet, and reads pods of the API server."""
