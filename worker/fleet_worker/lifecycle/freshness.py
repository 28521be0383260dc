"""How far the weights of this worker are behind the desired version, as far as the worker can know.

The operator names the desired versions at each read. Between two reads the worker assumes the worst: a
newer version has been desired since the last one. So a worker that hears nothing is not fresh for long.
"""

from __future__ import annotations

from collections.abc import Callable

from fleet_worker.protocol import Lag, VersionOf, WantedRequest, lag_of

_LABELS = ("0", "1", "2", "3")
_MORE = "4+"
UNKNOWN = "unknown"
LAG_LABELS = (*_LABELS, _MORE, UNKNOWN)
"""Values of the label `lag`."""


class Freshness:
    """The last desired versions that the operator has named."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: monotonic seconds."""
        self._clock = clock
        self._heard: WantedRequest | None = None
        self._heard_at = 0.0

    @property
    def limits(self) -> bool | None:
        """Whether the worker refuses requests by the lag of its weights. None: it knows no lag."""
        return self._heard.limits if self._heard is not None else None

    def hear(self, request: WantedRequest) -> None:
        """Take the operator's word. Its seconds count from now."""
        self._heard = request if request.wanted else None
        self._heard_at = self._clock()

    def lag_of(self, version: str | None, run_id: str | None) -> Lag | None:
        """The largest lag that these weights may have now; None if the operator has said nothing."""
        heard = self._heard
        if heard is None or version is None:
            return None
        lag = lag_of(heard.wanted, VersionOf(version, run_id), complete=heard.complete)
        return lag._replace(seconds=lag.seconds + self._clock() - self._heard_at)

    def label_of(self, version: str, run_id: str | None) -> str:
        """The value of the label `lag` for tokens of these weights."""
        lag = self.lag_of(version, run_id)
        if lag is None:
            return UNKNOWN
        return _LABELS[lag.versions] if lag.versions < len(_LABELS) else _MORE

    def excess(self, version: str | None, run_id: str | None) -> str:
        """Why these weights are too old for new requests, in words; empty if they are not."""
        heard = self._heard
        if heard is None or not heard.limits:
            return ""
        lag = self.lag_of(version, run_id)
        if lag is None:
            return ""
        if heard.max_versions is not None and lag.versions > heard.max_versions:
            return (
                f"version {version} is {lag.versions} behind version {heard.wanted[0].version}, and"
                f" spec.staleness permits {heard.max_versions}"
            )
        if heard.max_seconds is not None and lag.seconds > heard.max_seconds:
            return (
                f"a newer version than {version} may have been desired for more than"
                f" {heard.max_seconds:g} s, which is what spec.staleness permits"
            )
        return ""
