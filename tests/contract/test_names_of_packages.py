"""Until a release, no text asks for a name that the index of packages does not have."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACES = (
    "README.md",
    "CONTRIBUTING.md",
    "client",
    "docs",
    "examples",
    "charts",
    "operator",
    "worker",
)
KINDS = {".md", ".py", ".yaml", ".txt"}
INSTALL = re.compile(
    r"\b(?:pip3?|uv|pipx)[\w ]* install (?:-\S+ )*['\"]?(?:rlfleet|rlfleet-server)(?=[\s'\"\[=`]|$)"
)


def test_no_text_installs_our_distributions_by_name() -> None:
    found = []
    for place in PLACES:
        top = ROOT / place
        for file in [top] if top.is_file() else sorted(top.rglob("*")):
            if file.suffix in KINDS and "decisions" not in file.parts:
                text = file.read_text()
                found += [f"{file.relative_to(ROOT)}: {each}" for each in INSTALL.findall(text)]

    assert found == []
