"""Makes a mistake in the code under test, in this process, and undoes it.

Only the code of functions is exchanged. They stay the same objects, so the mistake also holds in modules that have
imported them before.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from tests.model.mutants import LeftOut, Mutant

_UNDER_TEST = ("fleet_operator", "fleet_worker", "rlfleet_resources", "tests.model")


@contextmanager
def mistaken(mutant: Mutant | LeftOut | None) -> Iterator[None]:
    """The code under test has this mistake meanwhile; None: no mistake."""
    match mutant:
        case Mutant():
            made = _other_code(mutant)
        case LeftOut():
            made = shorter_table(mutant)
        case None:
            yield
            return
    with made:
        forget()
        try:
            yield
        finally:
            forget()


@contextmanager
def _other_code(mutant: Mutant) -> Iterator[None]:
    codes = exchanged_code(mutant)
    before = {function: function.__code__ for function in codes}
    for function, code in codes.items():
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


@cache
def exchanged_code(mutant: Mutant) -> Mapping[FunctionType, CodeType]:
    """The functions that a mistake changes, with their code then."""
    name = f"{mutant.package}/{mutant.file}".removesuffix(".py").replace("/", ".")
    module = importlib.import_module(name)
    path = str(module.__file__)
    text = Path(path).read_text()
    assert text.count(mutant.line) == 1, f"the line is not in {mutant.file}, or not once"
    code = compile(text.replace(mutant.line, mutant.instead), path, "exec", dont_inherit=True)
    found = {f: new for f, new in _functions(module, code) if _differ(f.__code__, new)}
    assert found, f"no function of {mutant.file} has the line"
    return found


@contextmanager
def shorter_table(mistake: LeftOut) -> Iterator[None]:
    """A rule is left out meanwhile."""
    whole = getattr(mistake.home, mistake.table)
    assert mistake.rule in whole, f"{mistake.table} has no such rule"
    if isinstance(whole, Mapping):
        rest: object = {key: value for key, value in whole.items() if key != mistake.rule}
    else:
        rest = tuple(rule for rule in whole if rule is not mistake.rule)
    setattr(mistake.home, mistake.table, rest)
    try:
        yield
    finally:
        setattr(mistake.home, mistake.table, whole)


def _functions(owner: ModuleType | type, code: CodeType) -> Iterator[tuple[FunctionType, CodeType]]:
    """Each function of a module or class, with its code in another compilation."""
    for inner in code.co_consts:
        if not isinstance(inner, CodeType):
            continue
        found = vars(owner).get(inner.co_name)
        if isinstance(found, type):
            yield from _functions(found, inner)
        elif (function := _plain(found)) is not None and _arguments(function) == inner.co_varnames[
            : inner.co_argcount
        ]:
            yield function, inner


def _plain(found: object) -> FunctionType | None:
    """The function behind an attribute, if it is one."""
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = getattr(found, "__wrapped__", found)
    return found if isinstance(found, FunctionType) else None


def _arguments(function: FunctionType) -> tuple[str, ...]:
    return function.__code__.co_varnames[: function.__code__.co_argcount]


def _differ(one: CodeType, other: CodeType) -> bool:
    return _likeness(one) != _likeness(other)


def _likeness(code: CodeType) -> tuple[object, ...]:
    """Returns the effect of code, without its lines."""
    consts = (_likeness(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts)
    return code.co_code, code.co_names, code.co_varnames, *consts


def forget() -> None:
    """Clear what functions have remembered: it may come from the other code."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_UNDER_TEST):
            for value in list(vars(module).values()):
                clear = getattr(value, "cache_clear", None)
                if callable(clear):
                    clear()
