"""Copy `crds/` into the chart, each wrapped in the values that switch it.

    python3 tools/sync_crds.py            write the copies
    python3 tools/sync_crds.py --check    exit 1 if they are out of date

The CRDs are in `templates/`, because helm never upgrades those of a chart's `crds/`. On uninstall, helm
would delete templates, so they have the policy `keep`.
"""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "crds"
TARGET = REPOSITORY / "charts" / "rlfleet" / "templates" / "crds"

KEEP = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


def wrapped(crd: str) -> str:
    """The template for one CRD."""
    head, mark, rest = crd.partition("metadata:\n")
    if not mark:
        raise ValueError("a CRD without metadata")
    return (
        "{{- if .Values.crds.enabled }}\n"
        "{{- /* Written by tools/sync_crds.py from crds/; edit there. */}}\n"
        f"{head}{mark}{KEEP}{rest}"
        "{{- end }}\n"
    )


def main() -> None:
    """Write or check."""
    stale = []
    for source in sorted(SOURCE.glob("*.yaml")):
        target = TARGET / source.name
        text = wrapped(source.read_text())
        if not target.exists() or target.read_text() != text:
            stale.append(target)
            if "--check" not in sys.argv:
                target.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date, run tools/sync_crds.py: {', '.join(map(str, stale))}")


if __name__ == "__main__":
    main()
