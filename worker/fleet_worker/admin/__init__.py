"""The operator's protocol, `/v1/worker/*`, on the worker's own port."""
