"""The documents of the repository, and the objects of ours that they show."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "charts/rlfleet/README.md",
    ROOT / "client/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Language and text of a fenced block."""


def samples() -> Iterator[tuple[str, dict[str, Any]]]:
    """Fleets and WeightVersions in blocks of YAML and in files of it, with a name for each."""
    texts = [(file, file.read_text()) for file in sorted((ROOT / "docs").rglob("*.yaml"))]
    texts += [
        (document, text)
        for document in DOCUMENTS
        for language, text in BLOCK.findall(document.read_text())
        if language == "yaml"
    ]
    for number, (file, text) in enumerate(texts):
        for found in yaml.safe_load_all(text):
            if found and str(found.get("apiVersion", "")).startswith("rlfleet.dev/"):
                yield f"{file.relative_to(ROOT)} {number} {found['kind']}", found
