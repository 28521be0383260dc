"""Helpers for sampling clients: version demands, and which weights made the tokens of a reply.

Source: docs/reference/wire.md, "Weight versions", and docs/reference/worker.md, "Provenance audit".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from rlfleet.errors import IncompleteReply

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The weights that a request demands. A worker that does not have them answers 409 with `Retry-After`.

    Fields:
        exact: tokens of this version only.
        minimum: tokens of this numbered version, or of a later one of its run.
        run_id: the run that they must belong to.

    >>> Sampling(minimum="43", run_id="run-8").headers()
    {'x-weight-version-min': '43', 'x-weight-run': 'run-8'}
    """

    exact: str | None = None
    minimum: str | None = None
    run_id: str | None = None

    def headers(self) -> dict[str, str]:
        """Headers for the request, such as `extra_headers` of the openai client.

        >>> Sampling(exact="43").headers()
        {'x-weight-version-exact': '43'}
        """
        return self._named("x-weight-version-exact", "x-weight-version-min", "x-weight-run")

    def body(self) -> dict[str, str]:
        """Fields for the body, such as `extra_body` of the openai client. Routers may drop headers.

        >>> Sampling(exact="43").body()
        {'weight_version_exact': '43'}
        """
        return self._named("weight_version_exact", "weight_version_min", "weight_run")

    def _named(self, *names: str) -> dict[str, str]:
        values = (self.exact, self.minimum, self.run_id)
        return {name: value for name, value in zip(names, values, strict=True) if value is not None}


class WeightSpan(BaseModel):
    """Tokens `start` ≤ i < `end` of a choice were sampled from these weights.

    Fields:
        run_id: training run, if the version belongs to a named one.
        digest: the first 12 hex digits of the digest of the files, if known.
        adapter: version of the LoRA adapter; `version` is then that of the base weights.
        kv_from: the oldest weights whose keys and values these tokens may have read.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    version: str
    start: int
    end: int
    run_id: str | None = None
    digest: str | None = None
    adapter: str | None = None
    adapter_run_id: str | None = None
    adapter_digest: str | None = None
    kv_from: str | None = None
    kv_from_run_id: str | None = None
    kv_from_digest: str | None = None


_SPANS = TypeAdapter(tuple[WeightSpan, ...])


@dataclass(frozen=True, slots=True)
class Label:
    """Weights, as the headers of a reply name them."""

    version: str
    run_id: str | None = None
    digest: str | None = None


def weight_versions(reply: object, choice: int = 0) -> tuple[WeightSpan, ...]:
    """The spans of a choice, in the order of its tokens.

    Args:
        reply: A dict, an object of the openai client or of any other pydantic models, or an
            `httpx.Response` that was read. Of a stream, the chunk that ends the choice.
        choice: The index of the choice. Replies without choices (responses, messages) have one list.

    Returns:
        Empty for a choice without tokens.

    Errors: IncompleteReply if the reply names no weights.

    >>> weight_versions({"choices": [{"weight_versions": [{"version": "43", "start": 0, "end": 9}]}]})[0].end
    9
    """
    body = _body(reply)
    holder = _choice(body, choice) if "choices" in body else body.get("response") or body
    return _spans(holder)


def labels_of(headers: Mapping[str, str]) -> tuple[Label, Label | None] | None:
    """The weights of the first and of the last token, by the headers of a reply.

    Args:
        headers: With names in any case, such as `response.headers` of httpx.

    Returns:
        None for a reply without these headers. A streamed reply has no last label.

    >>> labels_of({"x-weight-version-start": "42", "x-weight-version-end": "43"})
    (Label(version='42', run_id=None, digest=None), Label(version='43', run_id=None, digest=None))
    """
    small = {name.lower(): value for name, value in headers.items()}

    def label(end: str) -> Label | None:
        names = (f"x-weight-{what}-{end}" for what in ("version", "run", "digest"))
        version, run_id, digest = (small.get(name) for name in names)
        return None if version is None else Label(version, run_id, digest)

    first = label("start")
    return None if first is None else (first, label("end"))


def record(
    reply: object, *, prompt_token_ids: Sequence[int] | None = None, reply_id: str = ""
) -> list[Record]:
    """A reply in the form that `python -m fleet_worker audit` reads, one record for each choice.

    Args:
        reply: As for `weight_versions`: of chats, completions or `/inference/v1/generate`.
        prompt_token_ids: The tokens of the prompt, if the reply does not have them.
        reply_id: An id for the records; by default the reply's own `id`.

    Errors: IncompleteReply names the choice, the part that it lacks, and the field to request it with.

    >>> record(reply, prompt_token_ids=[1, 2])[0]["weight_versions"]
    [{'version': '43', 'start': 0, 'end': 2}]
    """
    body = _body(reply)
    name = reply_id or str(body.get("id") or "")
    return [
        _record(body, choice, prompt_token_ids, f"{name}/{choice.get('index', i)}")
        for i, choice in enumerate(_choices(body))
    ]


def _choices(body: Record) -> list[Record]:
    """The choices of a reply. Errors: IncompleteReply."""
    choices = body.get("choices") or []
    if not isinstance(choices, list) or not all(isinstance(one, dict) for one in choices):
        raise IncompleteReply("the choices of the reply are not a list of objects")
    return choices


def _record(
    body: Record, choice: Record, prompt_token_ids: Sequence[int] | None, name: str
) -> Record:
    prompt = prompt_token_ids
    for place in (choice, body):
        prompt = place.get("prompt_token_ids") if prompt is None else prompt
    tokens, logprobs = choice.get("token_ids"), _logprobs(choice)
    if prompt is None:
        raise _lacks(name, "the prompt's token ids", "give prompt_token_ids=")
    if tokens is None:
        raise _lacks(name, "token_ids", "send return_token_ids: true")
    if logprobs is None or len(logprobs) != len(tokens) or None in logprobs:
        raise _lacks(name, "one log-probability for each token", "send logprobs: true")
    spans, covered = _spans(choice), 0
    for span in spans:
        covered = span.end if span.start == covered < span.end else -1
    if covered != len(tokens):
        raise _lacks(name, "weight_versions over all tokens", "take the reply from a worker itself")
    return {
        "id": name,
        "prompt_token_ids": list(prompt),
        "token_ids": list(tokens),
        "logprobs": logprobs,
        "weight_versions": [span.model_dump(exclude_none=True) for span in spans],
    }


def _logprobs(choice: Record) -> list[float] | None:
    """Log-probabilities of the sampled tokens: chats and generations list entries, completions numbers."""
    found = choice.get("logprobs") or {}
    if found.get("content") is not None:
        return [entry.get("logprob") for entry in found["content"]]
    values = found.get("token_logprobs")
    return None if values is None else list(values)


def _body(reply: object) -> Record:
    if isinstance(reply, Mapping):
        return dict(reply)
    for method in ("model_dump", "json"):
        if callable(read := getattr(reply, method, None)):
            found = read()
            if isinstance(found, dict):
                return found
    raise IncompleteReply(
        f"{type(reply).__name__} is not a reply; give a dict, a pydantic object or a response"
    )


def _choice(body: Record, index: int) -> Record:
    for position, choice in enumerate(body["choices"]):
        if choice.get("index", position) == index:
            return dict(choice)
    raise IncompleteReply(f"the reply has no choice {index}")


def _spans(holder: Record) -> tuple[WeightSpan, ...]:
    try:
        return _SPANS.validate_python(holder["weight_versions"])
    except KeyError:
        raise IncompleteReply(
            "the reply has no weight_versions; take it from a worker itself, and of a stream the "
            "chunk that ends the choice"
        ) from None
    except ValidationError as error:
        raise IncompleteReply(f"weight_versions cannot be read: {error}") from error


def _lacks(name: str, what: str, remedy: str) -> IncompleteReply:
    return IncompleteReply(f"choice {name} lacks {what}; {remedy}")
