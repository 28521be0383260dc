"""The two kinds of cluster."""

from __future__ import annotations

from typing import Literal

Profile = Literal["api", "node"]
"""`api`: control plane only, for objects without pods. `node`: everything."""

PROFILES: tuple[Profile, ...] = ("api", "node")
