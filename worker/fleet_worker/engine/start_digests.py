"""The digests of the weights that vLLM starts on, in a file next to the links to them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

LOAD_FORMAT = "rlfleet"
"""vLLM's name of the loader that compares them (`engine.start_loader`)."""
_FILE = "rlfleet-digests.json"


def write_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Write tensor name → digest into a directory that vLLM starts on."""
    (folder / _FILE).write_text(json.dumps(digests))


def read_digests(folder: Path) -> dict[str, str] | None:
    """Return tensor name → digest; None in a directory that the worker has not made."""
    try:
        text = (folder / _FILE).read_text()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return dict(json.loads(text))
