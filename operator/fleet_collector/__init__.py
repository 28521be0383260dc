"""Deletes versions from a volume that nothing needs any more (docs/how-to/delete-old-versions.md)."""
