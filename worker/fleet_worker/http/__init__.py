"""HTTP on ASGI, shared by the ports of a worker: reading, answering, errors, health and metrics."""
