"""A real Kubernetes on one Linux machine, without a container engine, gone without a trace.

`Cluster` is the Python interface, `python -m devcluster` the command line.
"""

from devcluster.cluster import Cluster
from devcluster.errors import DevclusterError
from devcluster.images import ImageConfig

__all__ = ["Cluster", "DevclusterError", "ImageConfig"]
