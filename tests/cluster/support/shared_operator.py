"""One operator for all tests that only need that an operator runs; a start takes seconds.

On a busy machine it may lose its Lease and end. Then it starts again, as in a Deployment.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Self

from tests.cluster.support.admin import Credentials
from tests.cluster.support.api_proxy import ApiProxy
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import Release, operator_arguments

from devcluster import Cluster


class SharedOperator:
    """Starts when a test asks for it, and stops for a test that starts operators of its own."""

    def __init__(self, cluster: Cluster, release: Release, folder: Path) -> None:
        self.cluster = cluster
        self.release = release
        self._folder = folder
        self._stack = AsyncExitStack()
        self._running: OperatorProcess | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def leading(self) -> OperatorProcess:
        """Start it unless it runs. Returns: the process, which leads."""
        if self._running is None:
            proxy = await self._stack.enter_async_context(
                ApiProxy(Credentials(self.cluster.kubeconfig))
            )
            kubeconfig = proxy.kubeconfig(self._folder, self.release.token)
            self._running = OperatorProcess(
                proxy, kubeconfig, operator_arguments(self.release), again=True
            )
            await self._running.start()
        await self._running.leading()
        return self._running

    async def stop(self) -> None:
        """Stop it if it runs; its Lease is free then."""
        if self._running is not None:
            await self._running.stop()
            self._running = None
            await self._stack.aclose()
