"""Runs inside the trainer's pod: writes checkpoints and publishes them, as its standard input says.

    step N            write a good checkpoint, as /weights/step_N
    truncated N       write one whose weight file ends in the middle
    publish N         ask the fleet for version N, and wait for the outcome
    ask N             ask for it without waiting
    wait              wait for the outcome of what was asked for

Answers each line with a line of JSON. It stays alive, since importing torch takes seconds.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import write_checkpoint
from rlfleet import Refused, RlfleetError, Rollout, Weights

LIMIT_SECONDS = 120.0
FOLDER = Path(os.environ["WEIGHTS"])


def main() -> None:
    """Read commands until the input ends."""
    with Weights(os.environ["WEIGHT_VERSION"]) as weights:
        for line in sys.stdin:
            print(json.dumps(_answer(weights, *line.split())), flush=True)


def _answer(weights: Weights, act: str, number: str = "") -> dict[str, Any]:
    match act:
        case "step":
            return _write(number)
        case "truncated":
            return _write(number, truncated=True)
        case "publish":
            return _outcome(lambda: weights.publish(number, timeout_seconds=LIMIT_SECONDS))
        case "ask":
            return _outcome(lambda: weights.publish(number, wait=False))
        case "wait":
            return _outcome(lambda: weights.wait(timeout_seconds=LIMIT_SECONDS))
        case _:
            return {"error": f"unknown act {act}"}


def _write(number: str, *, truncated: bool = False) -> dict[str, Any]:
    name = "base" if number == "0" else f"step_{number}"
    folder = write_checkpoint(FOLDER / name, seed=int(number))
    if truncated:
        file = folder / "model.safetensors"
        os.truncate(file, file.stat().st_size // 2)
    return {}


def _outcome(work: Callable[[], Rollout]) -> dict[str, Any]:
    try:
        timings = work().timings
    except Refused as refused:
        return {"refused": refused.reason, "message": refused.message}
    except RlfleetError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {
        "total_seconds": timings.total_seconds,
        "max_worker_pause_seconds": timings.max_worker_pause_seconds,
    }


if __name__ == "__main__":
    main()
