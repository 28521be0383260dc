"""Calls to all processes of the engine at once."""

from __future__ import annotations

from typing import Any

from fleet_worker.errors import EngineFailure


class Processes:
    """The engine's processes: one per accelerator."""

    def __init__(self, client: Any) -> None:
        """Reach them through vLLM's engine client."""
        self._client = client

    async def call(self, method: str, *, touched: bool = True, **arguments: Any) -> list[Any]:
        """Call a method of vLLM's worker class or of our extension in all processes.

        Args:
            method: Name of the method.
            touched: Whether a failed call may have changed the model.
            arguments: Keyword arguments of the method. They are sent as bytes, so plain values only.

        Returns:
            The results by rank.

        Errors:
            EngineFailure: the first error of a process, or of the call itself.
        """
        try:
            answers = list(
                await self._client.collective_rpc("rlfleet_call", args=(method, arguments))
            )
        except Exception as error:
            raise engine_failure(error, touched=touched) from error
        if any(not isinstance(each, dict) or each.get("method") != method for each in answers):
            raise EngineFailure(f"the engine's processes do not answer to {method}", touched=True)
        errors = [each["error"] for each in answers if each["error"] is not None]
        if errors:
            raise EngineFailure(errors[0], touched=touched)
        return [each["result"] for each in answers]


def engine_failure(error: Exception, *, touched: bool) -> EngineFailure:
    """Return the failure for an error of the engine. It raises many types, which are all treated alike."""
    message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return EngineFailure(message, touched=touched)
