"""A real S3 server for tests and measurements: versitygw, which keeps objects as files of a folder."""
