"""Running the provenance audit over replies that tests have collected."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stack.offline import audit as audit_file

__all__ = ["audit", "audit_file", "records_of"]


def records_of(
    prompt: Sequence[int], reply: Mapping[str, Any], name: str = ""
) -> list[dict[str, Any]]:
    """The audit's records of a reply of `/inference/v1/generate`, one a choice."""
    return [
        {
            "id": f"{name}/{choice['index']}",
            "prompt_token_ids": list(prompt),
            "token_ids": choice["token_ids"],
            "logprobs": [entry["logprob"] for entry in choice["logprobs"]["content"]],
            "weight_versions": choice["weight_versions"],
        }
        for choice in reply["choices"]
    ]


def audit(
    folder: Path,
    records: Iterable[Mapping[str, Any]],
    checkpoints: Mapping[str, Path],
    model: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Write the records and audit them in the worker's environment.

    Args:
        folder: For the file of records.
        records: As `records_of` makes them.
        checkpoints: Version → directory, in the order of the run.
        model: The fleet's model, whose types its tensors are cast to.
    """
    file = folder / "replies.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return audit_file(file, checkpoints, model=model)
