"""How a rollout and the test that started it keep in step: a line each way.

Standard library only: this runs in the environment of each client.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

BASE_URL, TOKENIZER = sys.argv[1:3]
MODEL = "policy"
KEY_VARIABLE = "POLICY_API_KEY"
KEY = os.environ[KEY_VARIABLE]

# Letters, and the token that ends a message: a turn has text, and ends by itself. On fewer
# tokens two weights may agree by chance.
SAMPLING = {"temperature": 1.0, "min_tokens": 24, "allowed_token_ids": [2, *range(67, 73)]}
MAX_TOKENS = 400


def tell(**what: Any) -> None:
    """Say what happened, and wait until the test says to go on: the weights may be others then."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
    if not sys.stdin.readline():
        sys.exit("the test has gone")


class Stamps:
    """The weight versions that replies have named in their headers."""

    def __init__(self) -> None:
        self.seen: list[dict[str, str | None]] = []

    def watch(self, client: Any) -> None:
        """Look at the replies of an httpx client."""
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks.get("response", []), self._see]}

    async def _see(self, response: Any) -> None:
        if response.headers.get("x-weight-version-start"):
            names = ("start", "end")
            self.seen.append({n: response.headers.get(f"x-weight-version-{n}") for n in names})
