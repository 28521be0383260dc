"""The only modules that send requests: to the Kubernetes API and to workers."""
