"""What prompts say about a version: does it compute, does it babble, how far is it from the last.

The first run of a version is the next version's baseline: the tokens that the baseline sampled are
scored again under the new weights, and the two distributions are compared position by position.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet_worker.protocol import ProbeReport

_GRAM = 4


@dataclass(frozen=True, slots=True)
class Position:
    """What the model said of one token.

    Fields:
        token: id of the token that stands here.
        known: id → log-probability in nats of the most probable tokens and of `token` itself.
    """

    token: int
    known: Mapping[int, float]

    @property
    def logprob(self) -> float:
        """Log-probability of the token that stands here; not a number where it is not known."""
        return self.known.get(self.token, math.nan)


@dataclass(frozen=True, slots=True)
class Continuation:
    """What a version made of one prompt."""

    prompt: tuple[int, ...]
    positions: tuple[Position, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        """Ids of the continuation."""
        return tuple(position.token for position in self.positions)


@dataclass(frozen=True, slots=True)
class Run:
    """All continuations of one version."""

    version: str
    continuations: tuple[Continuation, ...]
    run_id: str | None = None
    digest: str | None = None

    @property
    def weights(self) -> tuple[str, str | None, str | None]:
        """What names the weights: two runs may count alike."""
        return self.version, self.run_id, self.digest


class History:
    """The runs that matter: of the version probed last, and of the one before it.

    Fields:
        report: of the version probed last.
    """

    def __init__(self) -> None:
        self.report: ProbeReport | None = None
        self.baseline: Run | None = None
        self._latest: Run | None = None

    def note(self, run: Run) -> None:
        """Take a new run; one of other weights makes the run before it the baseline."""
        if self._latest is not None and self._latest.weights != run.weights:
            self.baseline = self._latest
        self._latest = run


Scores = Sequence[Sequence[Position]]
"""A baseline's continuations, each position as the new version sees it."""


def report(run: Run, baseline: Run | None, scores: Scores) -> ProbeReport:
    """What a run says.

    Args:
        run: Of the version in question.
        baseline: Of the version before it, if there is one.
        scores: The baseline's continuations under the version in question; empty without one.
    """
    pairs = []
    if baseline is not None:
        for continuation, scored in zip(baseline.continuations, scores, strict=True):
            pairs += list(zip(continuation.positions, scored, strict=True))
    seen = [p for c in run.continuations for p in c.positions] + [new for _, new in pairs]
    comparable = [(old, new) for old, new in pairs if _is_finite(old) and _is_finite(new)]
    return ProbeReport(
        version=run.version,
        run_id=run.run_id,
        digest=run.digest,
        compared_with=baseline.version if baseline is not None else None,
        finite=all(_is_finite(position) for position in seen),
        repetition=max((repetition(c.tokens) for c in run.continuations), default=0.0),
        logprob_drift=_mean([abs(old.logprob - new.logprob) for old, new in comparable]),
        kl=_mean([divergence(old, new) for old, new in comparable]),
        tokens=len(comparable),
    )


def repetition(tokens: Sequence[int]) -> float:
    """Share of the 4-grams of a text that the most frequent one makes up; 0 if none recurs."""
    grams = [tuple(tokens[start : start + _GRAM]) for start in range(len(tokens) - _GRAM + 1)]
    if not grams:
        return 0.0
    count = Counter(grams).most_common(1)[0][1]
    return count / len(grams) if count > 1 else 0.0


def divergence(old: Position, new: Position) -> float:
    """Kullback-Leibler divergence of `new` from `old`, in nats.

    Over the tokens that both know, with all others taken together as one: never more than the
    divergence over the whole vocabulary, and 0 only if these agree.
    """
    tokens = sorted(old.known.keys() & new.known.keys())
    ps = [math.exp(old.known[token]) for token in tokens]
    qs = [math.exp(new.known[token]) for token in tokens]
    ps.append(max(0.0, 1 - sum(ps)))
    qs.append(max(0.0, 1 - sum(qs)))
    # What rounding takes from a probability near 0 must not become an infinite quotient.
    least = 1e-12
    terms = (p * math.log(max(p, least) / max(q, least)) for p, q in zip(ps, qs, strict=True))
    return max(0.0, sum(terms))


def _is_finite(position: Position) -> bool:
    # Tokens that cannot be sampled may have probability 0; the one that was sampled may not.
    not_numbers = any(math.isnan(value) for value in position.known.values())
    return math.isfinite(position.logprob) and not not_numbers


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
