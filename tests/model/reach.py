"""Which mistakes make a difference in a history: it is played once, without a mistake, for all of them.

Each function with a mistake is also called as the mistake has it. If the results differ, `decide` is called once more
with the mistake, and the decisions are compared. All of this is pure except for two functions, so that more calls change
nothing. Where no decision differs, the history with the mistake would be the same, and need not be played.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FunctionType, GeneratorType
from typing import Any

from tests.model.mutants import LeftOut, Mutant
from tests.model.mutate import exchanged_code, forget, shorter_table

from fleet_operator.core import decision
from fleet_operator.core.observed import FleetObserved

_DECIDES = {"PERMITS": "why_not", "_NEXT": "_next_work"}
"""The function that looks at a table."""
_CHANGE_THEIR_OBJECT = frozenset({"runtime/epochs.py", "runtime/call_record.py"})


@dataclass
class _Watch:
    """Mistakes during a history, by their numbers.

    Fields:
        differ: those that made a difference: to a decision, or to a function outside of decisions. With what
            differed first.
        touched: those that made a difference to a function in the present decision; None outside of one.
        is_comparing: functions are called for a comparison, and compare nothing themselves.
        made: the mistake that is made now, for a comparison of decisions.
    """

    differ: dict[int, str] = field(default_factory=dict)
    touched: set[int] | None = None
    is_comparing: bool = False
    made: int | None = None

    def is_known(self, number: int) -> bool:
        return number in self.differ or (self.touched is not None and number in self.touched)

    def note(self, numbers: Iterable[int]) -> None:
        if self.touched is not None:
            self.touched.update(numbers)
        else:
            self.differ.update(dict.fromkeys(numbers, "the runtime"))


@dataclass
class _Probe:
    """A function and its alternatives, by the number of their mistakes."""

    watch: _Watch
    real: Callable[..., Any]
    others: dict[int, Callable[..., Any]] = field(default_factory=dict)

    def __call__(self, *given: Any, **named: Any) -> Any:
        watch = self.watch
        if watch.made is not None or watch.is_comparing:
            function = self.real if watch.made is None else self.others.get(watch.made, self.real)
            return function(*given, **named)
        others = {n: f for n, f in self.others.items() if not watch.is_known(n)}
        if not others:
            return self.real(*given, **named)
        found = _outcome(self.real, given, named)
        watch.is_comparing = True
        outcomes = {n: _outcome(other, given, named) for n, other in others.items()}
        watch.is_comparing = False
        kind, result = found
        if isinstance(result, FunctionType):  # it decides when it is called
            inner = {n: f for n, (_, f) in outcomes.items() if isinstance(f, FunctionType)}
            watch.note(outcomes.keys() - inner.keys())
            return _Probe(watch, result, inner)
        said = _said(found)
        watch.note(n for n, outcome in outcomes.items() if _said(outcome) != said)
        return _given_back(kind, result)


@dataclass
class _Decision(_Probe):
    """`decide`: mistakes that made a difference in it are made once more, and the decisions compared."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        watch = self.watch
        watch.touched = set(self.others)
        found = _outcome(self.real, given, named)
        touched, watch.touched = watch.touched - watch.differ.keys(), None
        said = _said(found)
        for number in sorted(touched):
            watch.made = number
            # The real functions have remembered results in it, which would hide the mistake.
            afresh = [replace(g) if isinstance(g, FleetObserved) else g for g in given]
            other = _outcome(self.others.get(number, self.real), afresh, named)
            if _said(other) != said:
                watch.differ[number] = _difference(found[1], other[1])
        watch.made = None
        return _given_back(*found)


def _given_back(kind: str, result: Any) -> Any:
    if kind == "raises":
        raise result
    return _played(*result) if kind == "yields" else result


def _played(yielded: Sequence[Any], returned: Any) -> Generator[Any, None, Any]:
    yield from yielded
    return returned


def _run(generator: Generator[Any, None, Any]) -> tuple[Sequence[Any], Any]:
    """Returns what a generator yields and returns."""
    yielded = []
    while True:
        try:
            yielded.append(next(generator))
        except StopIteration as ended:
            return yielded, ended.value


def _outcome(function: Callable[..., Any], given: Any, named: Any) -> tuple[str, Any]:
    """Returns the result of a call: a value, all that it yields and returns, or an error."""
    try:
        found = function(*given, **named)
        is_generator = isinstance(found, GeneratorType)
        return ("yields", _run(found)) if is_generator else ("returns", found)
    except Exception as error:  # noqa: BLE001 - a mistake may raise anything
        return "raises", error


def _said(outcome: tuple[str, Any]) -> tuple[str, Any]:
    """An outcome in a form that can be compared: two errors are never equal."""
    kind, result = outcome
    return (kind, repr(result)) if kind == "raises" else outcome


def _difference(one: object, other: object) -> str:
    """The parts of two decisions that differ, calls first."""
    if not isinstance(one, decision.Decision) or not isinstance(other, decision.Decision):
        return "an error"
    if one.worker_calls != other.worker_calls or one.pod_actions != other.pod_actions:
        return "calls"
    statuses = [(one.fleet, other.fleet)]
    statuses += [
        (one.weights[uid], other.weights[uid]) for uid in one.weights.keys() & other.weights.keys()
    ]
    found = {
        f"{type(a).__name__}.{name}"
        for a, b in statuses
        for name in type(a).model_fields
        if getattr(a, name) != getattr(b, name)
    }
    return ", ".join(sorted(found)) or "no call and no status"


@contextmanager
def differing(mistakes: Sequence[Mutant | LeftOut]) -> Iterator[Mapping[int, str]]:
    """The numbers of the mistakes that have made a difference until now, with what differed first."""
    watch = _Watch()
    probes = {decision.decide: _Decision(watch, _copy(decision.decide, decision.decide.__code__))}
    for number, mistake in enumerate(mistakes):
        for function, other in _others(mistake).items():
            real = _copy(function, function.__code__)
            probes.setdefault(function, _Probe(watch, real)).others[number] = other
    undo = [_laid_over(function, probe) for function, probe in probes.items()]
    forget()
    try:
        yield watch.differ
    finally:
        for restore in undo:
            restore()
        forget()


def _others(mistake: Mutant | LeftOut) -> dict[FunctionType, Callable[..., Any]]:
    """The functions of a mistake, as the mistake has them."""
    if isinstance(mistake, LeftOut):
        return {_decides(mistake): _with_shorter_table(mistake)}
    codes = exchanged_code(mistake)
    if mistake.file in _CHANGE_THEIR_OBJECT:
        return dict.fromkeys(codes, _unlike)
    return {f: _copy(f, code) for f, code in codes.items()}


def _unlike(*_given: Any, **_named: Any) -> object:
    """Takes the place of a function that cannot be called twice: each call makes a difference."""
    return object()


def _decides(mistake: LeftOut) -> FunctionType:
    found = vars(mistake.home)[_DECIDES[mistake.table]]
    assert isinstance(found, FunctionType)
    return found


def _with_shorter_table(mistake: LeftOut) -> Callable[..., Any]:
    function = _decides(mistake)
    real = _copy(function, function.__code__)

    def other(*given: Any, **named: Any) -> Any:
        with shorter_table(mistake):
            return real(*given, **named)

    return other


def _copy(function: FunctionType, code: Any) -> FunctionType:
    copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _laid_over(function: FunctionType, probe: _Probe) -> Callable[[], None]:
    """Let a function call its probe. Returns: what undoes it."""
    before = function.__code__, function.__defaults__, function.__kwdefaults__
    name = f"_probe_of_{id(function)}"
    namespace: dict[str, Any] = {}
    exec(f"def probed(*given, **named): return {name}(*given, **named)", namespace)  # noqa: S102 - ours
    function.__globals__[name] = probe
    function.__defaults__, function.__kwdefaults__ = None, None
    function.__code__ = namespace["probed"].__code__

    def restore() -> None:
        function.__code__, function.__defaults__, function.__kwdefaults__ = before
        del function.__globals__[name]

    return restore
