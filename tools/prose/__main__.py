"""Check the language of what users read: `python -m prose [FILE …]`; without files, all of it, with the
messages in the code and the names of tests.

Exit code 0 without a finding, 1 with one. The first run builds Vale, which takes minutes.
"""

from __future__ import annotations

import sys

from prose import messages, vale

TEXTS = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "docs",
    "crds",
    "examples",
    "operator",
    "charts",
    "tests",
    "tools",
    "client",
    "worker",
)
"""Files and folders, from the repository's root. `vale.ini` names the rules of each."""

if __name__ == "__main__":
    checked = vale.run(*(sys.argv[1:] or TEXTS), folder=vale.REPOSITORY)
    print(checked.stdout, end="")
    print(checked.stderr, end="", file=sys.stderr)
    findings = [] if sys.argv[1:] else messages.check()
    print("".join(f"{finding}\n" for finding in findings), end="")
    sys.exit(checked.returncode or bool(findings))
