"""Chooses between the RL API and the Kubernetes API."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rlfleet.errors import NotConfigured
from rlfleet.kubeconfig import Access, load_access
from rlfleet.rl_access import URL, RlAccess, rl_access


def find_access(
    *,
    namespace: str | None = None,
    url: str | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    ca: str | Path | None = None,
    kubeconfig: str | Path | None = None,
    context: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Access | RlAccess:
    """The RL API if an argument or `$RLFLEET_API_URL` names it, else the Kubernetes API.

    A kubeconfig or a context among the arguments goes before the variable.

    Errors: NotConfigured.
    """
    by_kubeconfig = kubeconfig is not None or context is not None
    if url is not None and by_kubeconfig:
        raise NotConfigured("url and a kubeconfig or a context are given; give one of them")
    address = url or (None if by_kubeconfig else environment.get(URL))
    if address:
        return rl_access(
            address,
            token=token,
            token_file=token_file,
            ca=ca,
            namespace=namespace,
            environment=environment,
        )
    if token is not None or token_file is not None or ca is not None:
        raise NotConfigured(
            f"token, token_file and ca are for the RL API, which is not named; give url=, or set {URL}"
        )
    return load_access(kubeconfig, context=context, namespace=namespace, environment=environment)
