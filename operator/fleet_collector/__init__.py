"""Deletes versions from volumes and object stores that nothing needs any more (docs/how-to/delete-old-versions.md)."""
