"""The digests of a release's files, and where the files come from.

Source: in-toto Statement v1, SLSA provenance v1.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from release.source import Source

SUMS = "SHA256SUMS"
PROVENANCE = "provenance.json"


def write(source: Source, target: Path, given: Mapping[str, str]) -> None:
    """Write `provenance.json` about all files of a folder, and `SHA256SUMS` about both.

    `given`: the words of the command line.
    """
    subjects = [{"name": n, "digest": {"sha256": d}} for n, d in digests(target).items()]
    repository = given.get("repository") or "git+file:rlfleet"
    kind = f"{repository}#tools/release"
    predicate = {
        "buildDefinition": {
            "buildType": kind,
            "externalParameters": {"version": source.version, **given},
            "internalParameters": {"isFromCleanTree": source.is_clean},
            "resolvedDependencies": [{"uri": repository, "digest": {"gitCommit": source.commit}}],
        },
        "runDetails": {"builder": {"id": kind}},
    }
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": predicate,
    }
    (target / PROVENANCE).write_text(json.dumps(statement, indent=1) + "\n")
    lines = [f"{digest}  {name}\n" for name, digest in digests(target).items()]
    (target / SUMS).write_text("".join(lines))


def digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file below a folder, by its path there, sorted."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    found = {}
    for file in files:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        found[file.relative_to(folder).as_posix()] = digest
    return found
