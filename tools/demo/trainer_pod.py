"""Runs inside the trainer's pod: writes the checkpoints that its standard input names.

    step N            a good checkpoint, as /weights/step_N
    truncated N       one whose weight file ends in the middle

Answers each line with `done`. It stays alive, since importing torch takes seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from checkpoints import write_checkpoint


def main() -> None:
    """Read commands until the input ends."""
    weights = Path(os.environ["WEIGHTS"])
    for line in sys.stdin:
        kind, number = line.split()
        name = "base" if number == "0" else f"step_{number}"
        folder = write_checkpoint(weights / name, seed=int(number))
        if kind == "truncated":
            file = folder / "model.safetensors"
            os.truncate(file, file.stat().st_size // 2)
        print("done", flush=True)


if __name__ == "__main__":
    main()
