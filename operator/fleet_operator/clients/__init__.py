"""The only modules that speak to the outside: the Kubernetes API and the workers."""
