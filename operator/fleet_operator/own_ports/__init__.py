"""Ports of our own processes: bounded for unknown clients, and the page of metrics."""
