"""The blocking client: what most training loops use."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Any, Self

from rlfleet.access import find_access
from rlfleet.arguments import Directory, Version
from rlfleet.async_weights import AsyncWeights
from rlfleet.deltas.options import Deltas
from rlfleet.deltas.written import Written
from rlfleet.follow import Event
from rlfleet.kube import BlockingKube
from rlfleet.ports import Place, run_blocking
from rlfleet.resources import WeightVersion
from rlfleet.rl_access import RlAccess
from rlfleet.rl_api import BlockingRlApi
from rlfleet.rollout import Rollout
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.weights_status import HistoryEntry


class Weights:
    """One WeightVersion, to which a trainer publishes. Several threads may use it.

    Args:
        name: Name of the WeightVersion. With a URL, name of the fleet.
        namespace: By default that of the context or of the pod; with a URL `$RLFLEET_NAMESPACE`, too.
        url: Address of the RL API, by default `$RLFLEET_API_URL`; without one the Kubernetes API is used.
        token: Token for the RL API, by default `$RLFLEET_API_TOKEN`.
        token_file: A file with the token, read each time; by default `$RLFLEET_API_TOKEN_FILE`.
        ca: A file with its authorities in PEM, by default `$RLFLEET_API_CA_FILE`, then the system's.
        kubeconfig: A file; by default `$KUBECONFIG`, the pod's service account, or `~/.kube/config`.
        context: Of the kubeconfig; by default the current one. Both go before `$RLFLEET_API_URL`.
        field_manager: The API server records this name as the writer of the fields.
        objects: A blocking `rlfleet.ports.Place` to use instead of either API.

    Errors of every method: also NotConfigured, NotFound, Forbidden, and Unavailable after a silent minute.

    >>> with Weights("policy", namespace="rl") as weights:
    ...     print(weights.current().spec.version)
    42
    """

    def __init__(
        self,
        name: str,
        *,
        namespace: str | None = None,
        url: str | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        ca: str | Path | None = None,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        field_manager: str = "trainer",
        objects: Place | None = None,
    ) -> None:
        if objects is None:
            access = find_access(
                namespace=namespace,
                url=url,
                token=token,
                token_file=token_file,
                ca=ca,
                kubeconfig=kubeconfig,
                context=context,
            )
            if isinstance(access, RlAccess):
                objects = BlockingRlApi(access, name)
            else:
                objects = BlockingKube(access, field_manager)
        self.name = name
        self._weights = AsyncWeights(name, objects=objects)

    @property
    def written(self) -> Written | None:
        """The version that this client wrote last, with its bytes; None if it has written none."""
        return self._weights.written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections.

        >>> weights.close()
        """
        run_blocking(self._weights.close())

    def publish(
        self,
        version: Version,
        *,
        path: Directory | None = None,
        state_dict: Mapping[str, Any] | None = None,
        model: Any = None,
        directory: Directory | None = None,
        config_from: Directory | None = None,
        written_to: Directory | None = None,
        delta: bool | Deltas = False,
        digest: str | None = None,
        run_id: str | None = None,
        same_files: bool = False,
        create_for: str | None = None,
        traceparent: str | None = None,
        wait: bool = True,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """Ask the fleet for a version, and wait until all workers with traffic serve it.

        Args:
            version: Label of the weights, such as `43` or `step_43`; the number 43 is the label `43`.
            path: Their directory, as workers see it; by default the source with the version for `{version}`.
            state_dict: Write these tensors first, of numpy or torch: name → tensor, as the checkpoint has them.
            model: Write this model of transformers first, as its `save_pretrained` does.
            directory: Write the full checkpoint in this directory first, such as one that was saved locally.
            config_from: With `state_dict`, a directory with config.json and the tokenizer's files.
            written_to: Where to write `path` from here, if this machine mounts it elsewhere.
            delta: Write only what differs from the version that this client wrote before; see `Deltas`.
            digest: `sha256:…` of their manifest; None removes the object's, or is that of what is written.
            run_id: Training run; by default the object keeps its run.
            same_files: Under a source without `{version}`, the version names the files of the one before.
            create_for: The fleet of a WeightVersion that does not exist yet; then `path` is required.
            traceparent: The parent of the rollout's span, as in W3C Trace Context; None removes it.
            wait: Whether to wait for the outcome.
            wait_for_files: Wait also for a directory that no worker finds, else refused after 10 seconds.
            timeout_seconds: How long to wait, and half a minute more without a network. The version stays desired.

        Returns: the rollout with its timings. Without `wait`, its state at the beginning.

        Errors:
            Refused: the fleet refuses the version, raised as soon as the rollout stalls, or cannot begin.
                `SourceFixed`: nothing is changed, since the source has no `{version}` and no path is given.
            Superseded: another writer has asked for another version.
            TimedOut: the rollout continues.
            FileExistsError, UnusableWeights, NotWritten: the version is not written, and not published.
            TypeError: an argument is of another kind, which its message names. Nothing is written.

        >>> rollout = weights.publish("43", path="/weights/step_43", timeout_seconds=600)
        >>> rollout.timings.total_seconds, rollout.timings.max_worker_pause_seconds
        (1.9, 0.5)
        """
        return run_blocking(
            self._weights.publish(
                version,
                path=path,
                state_dict=state_dict,
                model=model,
                directory=directory,
                config_from=config_from,
                written_to=written_to,
                delta=delta,
                digest=digest,
                run_id=run_id,
                same_files=same_files,
                create_for=create_for,
                traceparent=traceparent,
                wait=wait,
                wait_for_files=wait_for_files,
                timeout_seconds=timeout_seconds,
            )
        )

    def wait(
        self,
        rollout: Rollout | None = None,
        *,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """Wait for a rollout that `publish(wait=False)` has returned. Returns and errors: as `publish`.

        Without one, wait for the desired version, also for files, workers and the end of a suspension.

        >>> rollout = weights.publish("43", wait=False)
        >>> weights.wait(rollout).applied
        True
        """
        return run_blocking(
            self._weights.wait(
                rollout, wait_for_files=wait_for_files, timeout_seconds=timeout_seconds
            )
        )

    def rollback(
        self,
        version: Version,
        *,
        path: Directory | None = None,
        digest: str | None = None,
        wait: bool = True,
        wait_for_files: bool = False,
        timeout_seconds: float = 600,
    ) -> Rollout:
        """Go back to an earlier version of the run. Returns and errors: as `publish`.

        Args:
            version: A version that was served before.
            path: Its directory; by default the one that the fleet has recorded (`status.pinned`).
            digest: The digest of its files, for a version that is `DigestRequired` without it.
            wait: As for `publish`.
            wait_for_files: As for `publish`.
            timeout_seconds: As for `publish`.

        Errors: also NotFound, without a path, for a version that the fleet has no record of.

        >>> weights.rollback("41").version
        '41'
        """
        return run_blocking(
            self._weights.rollback(
                version,
                path=path,
                digest=digest,
                wait=wait,
                wait_for_files=wait_for_files,
                timeout_seconds=timeout_seconds,
            )
        )

    def undo(
        self, *, wait: bool = True, wait_for_files: bool = False, timeout_seconds: float = 600
    ) -> Rollout:
        """Take the last `publish` back. Returns and errors: as `publish`.

        The fleet goes back to what it serves still, if the desired version was not applied, else to the
        version of the run that was applied before. Errors: also NotFound, without such a version.

        >>> weights.undo().version
        '41'
        """
        return run_blocking(
            self._weights.undo(
                wait=wait, wait_for_files=wait_for_files, timeout_seconds=timeout_seconds
            )
        )

    def retry(self, *, wait: bool = True, timeout_seconds: float = 600) -> Rollout:
        """Try an abandoned version once more. Returns and errors: as `publish`.

        The refusal from before the retry is raised again only when it changes, or at the timeout.

        >>> weights.retry().applied
        True
        """
        return run_blocking(self._weights.retry(wait=wait, timeout_seconds=timeout_seconds))

    def suspend(self) -> WeightVersion:
        """Begin no rollout until `resume`. A rollout that has paused workers is finished first.

        >>> weights.suspend().spec.suspend
        True
        """
        return run_blocking(self._weights.suspend())

    def resume(self) -> WeightVersion:
        """Continue suspended rollouts.

        >>> weights.resume().spec.suspend
        False
        """
        return run_blocking(self._weights.resume())

    def current(self) -> WeightVersion:
        """The object as it is now. `is_observed`: whether its status is about its present spec.

        >>> now = weights.current()
        >>> now.spec.version, now.status.applied_version, now.is_observed
        ('42', '42', True)
        """
        return run_blocking(self._weights.current())

    def history(self) -> tuple[HistoryEntry, ...]:
        """The last rollouts, at most 10, newest first.

        >>> [(entry.version, entry.result) for entry in weights.history()]
        [('42', 'Applied'), ('41', 'Applied')]
        """
        return run_blocking(self._weights.history())

    def workers(self) -> FleetStatus:
        """The fleet's status: counts of workers, versions that they serve, lagging ones, address.

        >>> fleet = weights.workers()
        >>> fleet.workers.serving, [(v.version, v.workers) for v in fleet.versions], fleet.endpoint
        (4, [('42', 4)], 'http://policy.rl.svc:8000')
        """
        return run_blocking(self._weights.workers())

    def watch(self) -> Generator[Event]:
        """The present state, then every change, until the caller stops.

        It survives lost connections and restarts; of changes in a gap it yields the last state.

        >>> for event in weights.watch():
        ...     print(event.type, event.weights.spec.version, event.weights.status.phase)
        ...     break
        ADDED 42 Applied
        """
        events = self._weights.watch()
        try:
            while (event := run_blocking(_next(events))) is not None:
                yield event
        finally:
            run_blocking(events.aclose())

    def metrics(self, *, trained_version: str | int | None = None) -> dict[str, float]:
        """Timings, age and lag as flat figures; `wandb.log(weights.metrics())` takes them.

        Args:
            trained_version: The newest weights of the trainer, for the lag; by default the desired ones.

        >>> figures = weights.metrics(trained_version=44)
        >>> figures["rlfleet/total_seconds"], figures["rlfleet/lag_versions"]
        (1.7, 2.0)
        """
        return run_blocking(self._weights.metrics(trained_version=trained_version))


async def _next(events: AsyncGenerator[Event]) -> Event | None:
    """The next event; None at the end."""
    return await anext(events, None)
