"""All files that a release publishes, made on this machine: `make release VERSION=0.1.0`."""
