"""Reads the settings of a process from flags or environment variables (flags win), and its release."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

from pydantic import BaseModel, ValidationError

S = TypeVar("S", bound=BaseModel)


def parse(
    model: type[S],
    *,
    program: str,
    description: str,
    variables: str,
    arguments: Sequence[str] | None = None,
) -> S:
    """Read the command line. Ends the process with a message if a value is invalid.

    Args:
        model: Each field with a description is a flag, and its description is the help.
        program: The command that starts the program.
        description: The description of the program.
        variables: Prefix of the environment variables, such as `RLFLEET_`.
        arguments: Those of the process if not given.
    """
    parser = argparse.ArgumentParser(
        prog=program,
        description=description,
        epilog=f"Every flag can be given as a variable instead: --log-level as {variables}LOG_LEVEL.",
        argument_default=argparse.SUPPRESS,
    )
    flags = {name: field for name, field in model.model_fields.items() if field.description}
    for name, field in flags.items():
        default = f" (default: {field.default})" if field.default else ""
        parser.add_argument(_flag(name), help=f"{field.description}{default}")
    found = {name: os.environ.get(variables + name.upper()) for name in flags}
    given = {name: value for name, value in found.items() if value is not None}
    try:
        return model.model_validate(given | vars(parser.parse_args(arguments)))
    except ValidationError as invalid:
        parser.error(
            "; ".join(_message(model, str(e["loc"][0]), e["msg"]) for e in invalid.errors())
        )


def release() -> str:
    """The release of this process; `unknown` if it runs from its sources."""
    try:
        return version("rlfleet-server")
    except PackageNotFoundError:
        return "unknown"


def words(text: str | tuple[str, ...]) -> tuple[str, ...]:
    """The words of a flag that are separated by commas, each once."""
    found = text.replace(" ", "").split(",") if isinstance(text, str) else text
    return tuple(dict.fromkeys(word for word in found if word))


def fleets(text: str | tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
    """Namespace and name of each fleet of a flag: `<namespace>/<fleet>`, separated by commas."""
    return tuple(tuple(word.split("/")) for word in words(text)) if isinstance(text, str) else text


def _message(model: type[BaseModel], name: str, why: str) -> str:
    return f"{_flag(name)} ({model.model_fields[name].description}): {why}"


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
