"""Write the lists of strategies and pause modes in `crds/`. Copy `crds/` into the chart, each wrapped in the values
that switch it, and their status schemas into the operator.

    python3 tools/sync_crds.py            write the copies
    python3 tools/sync_crds.py --check    exit 1 if they are out of date

The CRDs are in `templates/`, because helm never upgrades those of a chart's `crds/`. On uninstall, helm
would delete templates, so they have the policy `keep`.

The operator compares the schemas that the API server serves with those of its own release.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, get_args

import yaml

from fleet_operator.api.fleet import PauseMode, Strategy
from rlfleet_resources.fleet_status import TransitionStrategy

REPOSITORY = Path(__file__).resolve().parent.parent
SOURCE = REPOSITORY / "crds"
TARGET = REPOSITORY / "charts" / "rlfleet" / "templates" / "crds"
SCHEMAS = REPOSITORY / "operator" / "fleet_operator" / "api" / "status_schemas.json"

KEEP = """\
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""


_WORDS = {
    "pause modes": get_args(PauseMode),
    "every strategy": get_args(Strategy),
    "strategies of a transition": get_args(TransitionStrategy),
}
_LIST = re.compile(rf"enum: \[[^]]*\](.*# ({'|'.join(_WORDS)})\n)")


def listed(crd: str) -> str:
    """A CRD with the words of the lists whose line ends with their name."""
    return _LIST.sub(lambda found: f"enum: [{', '.join(_WORDS[found[2]])}]{found[1]}", crd)


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


def status_schemas() -> str:
    """The schemas of the statuses by the plural of the kind, without descriptions."""
    found = {}
    for source in sorted(SOURCE.glob("*.yaml")):
        crd = yaml.safe_load(source.read_text())
        (version,) = crd["spec"]["versions"]
        schema = version["schema"]["openAPIV3Schema"]["properties"]["status"]
        found[crd["spec"]["names"]["plural"]] = _without_descriptions(schema)
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def _without_descriptions(schema: dict[str, Any]) -> dict[str, Any]:
    found = {k: v for k, v in schema.items() if k != "description"}
    if "properties" in schema:
        inner = schema["properties"].items()
        found["properties"] = {name: _without_descriptions(each) for name, each in inner}
    if "items" in schema:
        found["items"] = _without_descriptions(schema["items"])
    return found


def main() -> None:
    """Write or check."""
    stale = []
    wanted = {source: listed(source.read_text()) for source in sorted(SOURCE.glob("*.yaml"))}
    wanted |= {TARGET / source.name: wrapped(crd) for source, crd in wanted.items()}
    wanted[SCHEMAS] = status_schemas()
    for target, text in wanted.items():
        if not target.exists() or target.read_text() != text:
            stale.append(target)
            if "--check" not in sys.argv:
                target.write_text(text)
    if stale and "--check" in sys.argv:
        sys.exit(f"out of date, run tools/sync_crds.py: {', '.join(map(str, stale))}")


if __name__ == "__main__":
    main()
