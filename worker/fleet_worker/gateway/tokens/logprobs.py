"""Name the tokens of log-probabilities by id, text and bytes.

The worker always requests ids from vLLM (`return_token_ids`, `return_tokens_as_token_ids`) and writes
the form that the client wants. Ids of sampled tokens are those of the engine, never rebuilt from text.
Ids of other candidates are those that vLLM writes as their names.

```
chat         {"token": "token_id:5", "logprob": …}  →  {"token": " a", "token_id": 5, "bytes": [32, 97], …}
completions  {"tokens": ["token_id:5"], …}          →  {"tokens": [" a"], …}
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fleet_worker.engine.facts import Offsets, text_of

PREFIX = "token_id:"

BytesOf = Callable[[int], bytes | None]
"""Token id → its bytes; None if they are not known."""


class LengthError(ValueError):
    """Ids and log-probabilities do not match."""


def name_entries(
    entries: Sequence[dict[str, Any]], ids: Sequence[int], bytes_of: BytesOf, *, as_ids: bool
) -> None:
    """Name the tokens of `logprobs.content[]` of a chat reply, in place.

    Args:
        entries: One per token, with the names that vLLM writes if ids are requested.
        ids: The sampled tokens.
        bytes_of: Returns the bytes of a token.
        as_ids: Whether the client wants `token_id:<id>` as the token's name.

    Errors:
        LengthError: the numbers of entries and ids differ, or the entries are of other tokens.
    """
    if len(entries) != len(ids):
        raise LengthError(f"{len(entries)} log-probabilities for {len(ids)} tokens")
    for entry, token_id in zip(entries, ids, strict=True):
        if id_of(entry["token"]) != token_id:
            raise LengthError(f"a log-probability of {entry['token']} for token {token_id}")
        _name(entry, token_id, bytes_of, as_ids=as_ids)
        for candidate in entry.get("top_logprobs") or ():
            _name(candidate, id_of(candidate["token"]), bytes_of, as_ids=as_ids)


def name_sampled(entries: Sequence[dict[str, Any]], ids: Sequence[int], bytes_of: BytesOf) -> None:
    """Name the sampled tokens of entries that vLLM has named by text, in place.

    Errors:
        LengthError: the numbers of entries and ids differ.
    """
    if len(entries) != len(ids):
        raise LengthError(f"{len(entries)} log-probabilities for {len(ids)} tokens")
    for entry, token_id in zip(entries, ids, strict=True):
        _name(entry, token_id, bytes_of, as_ids=False)


def check_lists(logprobs: dict[str, Any], ids: Sequence[int]) -> None:
    """Check that a completion's `logprobs` are those of the sampled tokens.

    Errors:
        LengthError: they are those of other tokens.
    """
    found = [id_of(name) for name in logprobs["tokens"]]
    if found != list(ids) or len(logprobs["token_logprobs"]) != len(found):
        raise LengthError(f"{len(found)} log-probabilities for {len(ids)} tokens, or for others")


def name_lists(logprobs: dict[str, Any], bytes_of: BytesOf, offsets: Offsets) -> None:
    """Name the tokens of a completion's `logprobs`, in place.

    Args:
        logprobs: With the names that vLLM writes if ids are requested.
        bytes_of: Returns the bytes of a token.
        offsets: Text offsets of this choice.
    """
    ids = [id_of(name) for name in logprobs["tokens"]]
    logprobs["tokens"] = [name_of(token_id, bytes_of) for token_id in ids]
    logprobs["text_offset"] = [offsets.next(bytes_of(token_id) or b"") for token_id in ids]
    logprobs["top_logprobs"] = [
        None if each is None else _named(each, bytes_of) for each in logprobs["top_logprobs"]
    ]


def id_of(name: str) -> int:
    """Return the id in a name that vLLM wrote.

    Errors:
        LengthError: the name has no id.
    """
    digits = name.removeprefix(PREFIX)
    if digits == name or not digits.isdecimal():
        raise LengthError(f"{name!r} is not a token id")
    return int(digits)


def name_of(token_id: int, bytes_of: BytesOf) -> str:
    """Return the name of a token: its text, or its id if the text is not known."""
    raw = bytes_of(token_id)
    return f"{PREFIX}{token_id}" if raw is None else text_of(raw)


def _named(candidates: dict[str, float], bytes_of: BytesOf) -> dict[str, float]:
    """Return the candidates by name. Of two with the same name the second keeps its id."""
    named: dict[str, float] = {}
    for written, value in candidates.items():
        name = name_of(id_of(written), bytes_of)
        named[written if name in named else name] = value
    return named


def _name(entry: dict[str, Any], token_id: int, bytes_of: BytesOf, *, as_ids: bool) -> None:
    raw = bytes_of(token_id)
    entry["token"] = f"{PREFIX}{token_id}" if as_ids or raw is None else text_of(raw)
    entry["token_id"] = token_id
    entry["bytes"] = None if raw is None else list(raw)
