"""Planned changes of a fleet of real workers cut no request of its clients.

Clients generate through the Service all the time. One whose request is turned away tries again, as
clients of OpenAI's kind do; a reply that is cut short counts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.conftest import FLEET, WORKERS, Fleet

CUT = "a partial reply"


def uids(fleet: Fleet) -> dict[str, str]:
    return {name: p["metadata"]["uid"] for name, p in fleet.pods().items()}


def nothing_is_cut(fleet: Fleet, folder: Path, work: Callable[[], Any]) -> None:
    samples = fleet.while_sampling(folder / "replies.jsonl", work)

    assert samples.answered > 0
    assert samples.lost == []
    assert samples.reasons[CUT] == 0, dict(samples.reasons)


def test_scaling_from_three_workers_to_one_cuts_nothing(fleet: Fleet, tmp_path: Path) -> None:
    fleet.kubectl("scale", f"ifl/{FLEET}", "--replicas=3")
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)

    def shrink() -> None:
        fleet.kubectl("scale", f"ifl/{FLEET}", "--replicas=1")
        fleet.eventually(lambda: len(uids(fleet)) == 1, "one worker is left", seconds=120)

    nothing_is_cut(fleet, tmp_path, shrink)
    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS}")
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)
