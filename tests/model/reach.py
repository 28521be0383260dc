"""Which mistakes make a difference in a history: it is played once, without a mistake, for all of them.

Each function with a mistake is also called as the mistake has it, and the results are compared. `core` is pure, so that
the second call changes nothing; so are the others that have mistakes, but for two. Where all results are the same, the history with the mistake would be the
same, too, and need not be played.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, GeneratorType
from typing import Any, ClassVar

from tests.model.mutants import LeftOut, Mutant
from tests.model.mutate import exchanged_code, forget, shorter_table

_DECIDES = {"PERMITS": "why_not", "_NEXT": "_next_work"}
"""The function that looks at a table."""
_CHANGE_THEIR_OBJECT = frozenset({"runtime/epochs.py", "runtime/call_record.py"})


@dataclass
class _Probe:
    """A function and its alternatives, by the number of their mistakes. `differ`: those that made a difference."""

    real: Callable[..., Any]
    others: dict[int, Callable[..., Any]] = field(default_factory=dict)
    differ: set[int] = field(default_factory=set)
    is_comparing: ClassVar[bool] = False

    def __call__(self, *given: Any, **named: Any) -> Any:
        if _Probe.is_comparing or self.others.keys() <= self.differ:
            return self.real(*given, **named)
        found = _outcome(self.real, given, named)
        _Probe.is_comparing = True
        try:
            others = {
                number: _outcome(other, given, named)
                for number, other in self.others.items()
                if number not in self.differ
            }
        finally:
            _Probe.is_comparing = False
        kind, result = found
        if isinstance(result, FunctionType):  # it decides when it is called
            inner = {n: f for n, (_, f) in others.items() if isinstance(f, FunctionType)}
            self.differ |= others.keys() - inner.keys()
            return _Probe(result, inner, self.differ)
        said = _said(found)
        self.differ.update(number for number, other in others.items() if _said(other) != said)
        if kind == "raises":
            raise result
        return iter(result) if kind == "yields" else result


def _outcome(function: Callable[..., Any], given: Any, named: Any) -> tuple[str, Any]:
    """What a call returns, yields or raises."""
    try:
        found = function(*given, **named)
        return ("yields", [*found]) if isinstance(found, GeneratorType) else ("returns", found)
    except Exception as error:  # noqa: BLE001 - a mistake may raise anything
        return "raises", error


def _said(outcome: tuple[str, Any]) -> tuple[str, Any]:
    """An outcome in a form that can be compared: two errors are never equal."""
    kind, result = outcome
    return (kind, repr(result)) if kind == "raises" else outcome


@contextmanager
def differing(mistakes: Sequence[Mutant | LeftOut]) -> Iterator[set[int]]:
    """The numbers of the mistakes that make a difference meanwhile; complete at the end."""
    found: set[int] = set()
    probes: dict[FunctionType, _Probe] = {}
    for number, mistake in enumerate(mistakes):
        for function, other in _others(mistake).items():
            probe = probes.setdefault(function, _Probe(_copy(function, function.__code__)))
            probe.others[number] = other
    undo = [_laid_over(function, probe) for function, probe in probes.items()]
    forget()
    try:
        yield found
    finally:
        for restore in undo:
            restore()
        forget()
        for probe in probes.values():
            found |= probe.differ


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
