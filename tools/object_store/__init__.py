"""Real servers for tests and measurements, which keep objects as files of a folder: versitygw for S3, and
fake-gcs-server for Google Cloud Storage.
"""
