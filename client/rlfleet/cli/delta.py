"""`rlfleet delta`: the difference of two full checkpoints, as a version that workers load."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from rlfleet.arguments import check
from rlfleet.cli import show
from rlfleet.cli.options import Format, Output
from rlfleet.deltas.libraries import libraries
from rlfleet.errors import RlfleetError, UnusableWeights
from rlfleet_resources.base import Resource

_NUMBER = re.compile(r"[0-9]+$")


class DeltaView(Resource):
    """A delta that was written.

    Fields:
        result_digest: of the whole weights that it makes from its base: the `--digest` of `rlfleet publish`.
        changed_share: elements that differ, 0 to 1.
        written_bytes: of all its files.
        full_bytes: of the weight files of the full checkpoint.
    """

    directory: str
    version: str
    base_version: str
    base_digest: str
    result_digest: str
    encoding: str
    changed_share: float
    changed_tensors: int
    written_bytes: int
    full_bytes: int


def delta(
    base: Annotated[
        Path, typer.Argument(help="The full checkpoint of the version before.", file_okay=False)
    ],
    new: Annotated[Path, typer.Argument(help="The full new checkpoint.", file_okay=False)],
    out: Annotated[
        Path, typer.Argument(help="The directory to write; it must be empty or not exist.")
    ],
    version: Annotated[
        str | None, typer.Option(help="The new version (default: by OUT, such as 43 of step_43).")
    ] = None,
    base_version: Annotated[
        str | None, typer.Option(help="The version before (default: by BASE).")
    ] = None,
    output: Format = Output.TABLE,
) -> None:
    """Write what differs between two full checkpoints, for workers that have the first."""
    names = (version or _version_of(out), base_version or _version_of(base))
    for name in names:
        check(name)
    if names[0] == names[1]:
        raise UnusableWeights(
            f"both versions are {names[0]}; name them with --version and --base-version"
        )
    with libraries():
        from rlfleet.deltas import between  # noqa: PLC0415 - see libraries
    columns = (TextColumn("comparing"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    console = show.errors()
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:

        def begun(size: int) -> Callable[[int], None]:
            task = bar.add_task("", total=size)
            return lambda count: bar.advance(task, count)

        try:
            done = between.write_between(
                base, new, out, version=names[0], base_version=names[1], begun=begun
            )
        except FileExistsError as error:
            raise RlfleetError(str(error)) from error
    own = {field: getattr(done, field) for field in DeltaView.model_fields if hasattr(done, field)}
    found = DeltaView(directory=str(out.absolute()), version=names[0], base_version=names[1], **own)
    show.show(found, output, lambda: _render(found))


def _version_of(directory: Path) -> str:
    """`43` of `step_43`, with its zeros; the whole name if it does not end with a number."""
    name = directory.absolute().name
    number = _NUMBER.search(name)
    return number[0] if number else name


def _render(found: DeltaView) -> None:
    console = show.console()
    part = found.written_bytes / found.full_bytes if found.full_bytes else 0.0
    console.print(
        f"{escape(found.directory)}: version {found.version} as a delta of {found.base_version}. "
        f"{found.changed_share:.2%} of the elements differ, in "
        f"{show.plural(found.changed_tensors, 'tensor')}. It has {found.written_bytes} bytes, {part:.1%} of "
        f"the full checkpoint ({found.encoding})"
    )
    console.print(f"base    {found.base_digest}")
    console.print(f"result  {found.result_digest}")
    console.print(
        f"Publish it, by its path in the workers: rlfleet publish {found.version} --path {escape(found.directory)} "
        f"--digest {found.result_digest}"
    )
