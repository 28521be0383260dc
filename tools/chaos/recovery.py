"""A failure played under load: what clients saw, and the seconds until the fleet was whole."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from chaos.fleet import Fleet
from chaos.holds import Phase
from chaos.rows import Row


@dataclass(frozen=True)
class Recovery:
    """One failure, survived.

    Fields:
        seconds: from the end of the fault until every wanted worker served the wanted version.
        retried: attempts of clients without a complete answer; each was tried again.
        lost: requests without a complete answer in the end.
    """

    row: str
    phase: str
    seconds: float
    sent: int
    retried: int
    lost: tuple[str, ...]


def play(fleet: Fleet, row: Row, phase: Phase, replies: Path) -> Recovery:
    """Play one row in one phase while clients generate. `replies`: file that theirs are kept in.

    Errors: NotInTimeError, or kubectl's, if the fleet does not recover in time.
    """
    seconds = 0.0

    def work() -> None:
        nonlocal seconds
        waited_since = row.play(fleet, phase)
        begun = time.monotonic() if waited_since is None else waited_since
        fleet.wait_whole()
        seconds = time.monotonic() - begun

    fleet.wait_served()
    samples = fleet.while_sampling(replies, work)
    return Recovery(
        row=row.name,
        phase=phase,
        seconds=seconds,
        sent=samples.sent,
        retried=sum(samples.retried.values()),
        lost=tuple(samples.lost),
    )
