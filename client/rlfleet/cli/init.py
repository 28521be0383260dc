"""`rlfleet init`: the manifests of a first fleet, in a folder. Of the cluster it asks only where the RL API is."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.markup import escape

from rlfleet.cli import api_place, cluster, model_facts, show
from rlfleet.cli.api import Api
from rlfleet.cli.first_manifests import HUB_CREDENTIAL, ROOT, FirstFleet, files_of
from rlfleet.cli.model_facts import ModelFacts
from rlfleet.cli.options import Context, Kubeconfig
from rlfleet.cli.sizes import gpus_for, sizes
from rlfleet.cli.trainer_settings import SETTINGS, Trainer
from rlfleet.errors import RlfleetError
from rlfleet.words import plural

_FLEET = re.compile(
    r"(?!.*-(?:workers|admin-token|applied|router)$)[a-z](?:[-a-z0-9]{0,43}[a-z0-9])?"
)
"""Source: the rules of metadata.name in the CRD of fleets."""
_LABEL = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_PLACE = re.compile(rf"{_LABEL.pattern}/{_LABEL.pattern}")
_REVISION = re.compile(r"[A-Za-z0-9][\w./-]{0,99}", re.ASCII)
T = TypeVar("T")
_ASSUMED_GB = 16.0
"""Of a model that cannot be read: one of 8 billion parameters of 16 bits."""
_MOST_GPUS = 8
"""Of a node, if none are named: one worker is one pod."""


def init(
    name: Annotated[
        str, typer.Argument(help="Of the fleet, its WeightVersion and the folder.")
    ] = "policy",
    model: Annotated[
        str | None,
        typer.Option(help="Repository of the Hugging Face Hub, or a directory that has the model."),
    ] = None,
    trainer: Annotated[
        Trainer | None, typer.Option(help="Whose settings are written (default: plain).")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of all objects (default: rl).")
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            min=0, help="Of one worker; 0 for CPUs (default: as many as the model needs)."
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(help="Of the workers (default: that of the chart, which is for GPUs)."),
    ] = None,
    storage_class: Annotated[
        str | None,
        typer.Option(help="Of the new volume claim; many nodes mount it (default: the cluster's)."),
    ] = None,
    replicas: Annotated[int, typer.Option(min=0, max=10_000, help="Workers.")] = 2,
    gpu_memory: Annotated[float, typer.Option(min=1, help="Memory of one GPU, in GB.")] = 80,
    checkpoint_gb: Annotated[
        float | None,
        typer.Option(min=0.001, help="Size of the model, if it cannot be read (default: 16)."),
    ] = None,
    revision: Annotated[
        str, typer.Option(help="Branch, tag or commit of the repository.")
    ] = "main",
    claim: Annotated[
        str | None, typer.Option(help="An existing volume claim, in place of a new one.")
    ] = None,
    rl_api: Annotated[
        str | None,
        typer.Option(
            metavar="NAMESPACE/NAME",
            help="The RL API that the trainer calls (default: that of the cluster's release, "
            "else rlfleet-system/rlfleet-api).",
        ),
    ] = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    folder: Annotated[
        Path | None, typer.Option(help="Folder that is written (default: ./NAME).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take defaults.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write the manifests of a first fleet: workers, storage, a download of the model, a trainer's account and settings.

    On a terminal it asks for what no option names. Sizes follow from the model, where it can be read.
    """
    ask = _Questions(may_ask=not yes and _is_terminal()).ask
    _require(_FLEET, name, "NAME", "at most 45 lower-case letters, digits and -, from a letter on")
    model = ask("Model (repository or directory)", model, "")
    if not model:
        raise typer.BadParameter("name the model: --model Qwen/Qwen3-8B, or a directory")
    directory = Path(model).resolve() if Path(model).is_dir() else None
    if directory == Path("/"):
        raise typer.BadParameter(
            "/ is the root of this machine; name the directory of the model", param_hint="--model"
        )
    if directory is None:
        _require(_REPOSITORY, model, "--model", "OWNER/NAME, or a directory of this machine")
    _require(_REVISION, revision, "--revision", "a branch, a tag or a commit")
    trainer = ask("Trainer", trainer, Trainer.PLAIN)
    namespace = ask("Namespace", namespace, "rl")
    _require(_LABEL, namespace, "--namespace", "lower-case letters, digits and -")

    facts = (
        model_facts.facts_of_directory(directory)
        if directory
        else model_facts.facts_of_repository(model, revision)
    )
    size, known = _size(facts, checkpoint_gb)
    wanted = gpus_for(size, gpu_memory)
    if gpus is None and wanted > _MOST_GPUS:
        raise typer.BadParameter(
            f"a worker of {model} needs {wanted} GPUs of {gpu_memory:g} GB, and it is one pod; name --gpus, "
            "larger ones (--gpu-memory), or a smaller model"
        )
    gpus = max(0, ask("GPUs of one worker (0 for CPUs)", gpus, wanted))
    if not gpus and "transfer" in (SETTINGS[trainer].weights or {}):
        raise typer.BadParameter(
            f"{trainer} sends weights over NCCL, which needs GPUs; name --gpus, or publish from files with --trainer "
            f"{Trainer.PLAIN}"
        )
    if claim is None:
        storage_class = ask("Storage class (empty: the cluster's)", storage_class, "") or None
    for option, given in (("--storage-class", storage_class), ("--claim", claim)):
        if given is not None:
            _require(_SUBDOMAIN, given, option, "the name of an object")

    first = FirstFleet(
        name=name,
        namespace=namespace,
        model=(directory or Path(model)).name.lower(),
        repository=None if directory else model,
        revision=revision,
        path=_path(model, directory),
        replicas=replicas,
        sizes=sizes(size, gpus, heads=facts.heads, longest=facts.longest),
        claim=claim or f"{name}-weights",
        is_new=claim is None,
        storage_class=storage_class,
        trainer=trainer,
        image=image,
    )
    where = _rl_api(first, rl_api, context, kubeconfig)
    first = replace(first, rl_api=where.place)
    target = folder or Path(name)
    written = _write(target, files_of(first), force=force)
    why = f"{model} has {size / 1e9:.1f} GB{known}"
    _report(first, target, written, [why, where.text], directory)


def _rl_api(
    first: FirstFleet, option: str | None, context: str | None, kubeconfig: str | None
) -> api_place.Found:
    given = None
    if option is not None:
        _require(_PLACE, option, "--rl-api", "NAMESPACE/NAME of the RL API's Service")
        given = api_place.named(option)
    if not first.uses_rl_api:
        return api_place.Found(first.rl_api)
    try:
        api: Api | RlfleetError = cluster.connect(None, context, kubeconfig)
    except RlfleetError as error:
        api = error
    return api_place.find(api, given)


@dataclass(frozen=True, slots=True)
class _Questions:
    """Asks for what no option names; without a terminal it takes the default."""

    may_ask: bool

    def ask(self, question: str, given: T | None, default: T) -> T:
        """The option, the answer, or the default, of whose type all three are."""
        if given is not None or not self.may_ask:
            return default if given is None else given
        found: T = typer.prompt(question, default=default, show_default=default != "")
        return found


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def _require(pattern: re.Pattern[str], text: str, option: str, what: str) -> None:
    if pattern.fullmatch(text) is None:
        raise typer.BadParameter(f"{text!r} is not {what}", param_hint=option)


def _size(facts: ModelFacts, given_gb: float | None) -> tuple[int, str]:
    """Bytes of the model, and where they are from, if that needs attention."""
    if given_gb is not None:
        return round(given_gb * 1e9), " (--checkpoint-gb)"
    if facts.checkpoint_bytes is not None:
        return facts.checkpoint_bytes, ""
    note = f"the size is not known ({facts.unread}), so {_ASSUMED_GB:g} GB are assumed; name it with --checkpoint-gb"
    show.errors().print(f"[yellow]warning:[/] {escape(note)}")
    return round(_ASSUMED_GB * 1e9), ", as assumed"


def _path(model: str, directory: Path | None) -> str:
    """The directory as workers see it: the same where the volume is mounted here, too."""
    if directory is not None and directory.is_relative_to(ROOT) and directory != Path(ROOT):
        return str(directory)
    return f"{ROOT}/{(directory or Path(model)).name}"


def _write(folder: Path, made: dict[str, str], *, force: bool) -> list[Path]:
    paths = {folder / name: text for name, text in made.items()}
    there = [path for path in paths if path.exists()]
    if there and not force:
        raise typer.BadParameter(
            f"{there[0]} exists; name another --folder, or --force replaces it"
        )
    try:
        for path, text in paths.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    except OSError as error:
        raise typer.BadParameter(f"{folder} cannot be written: {error.strerror}") from None
    return [*paths]


def _report(
    first: FirstFleet, folder: Path, written: list[Path], reasons: list[str], directory: Path | None
) -> None:
    console = show.console()
    for path in written:
        console.print(f"written to {path}", markup=False)
    why, rl_api = reasons
    of_each = plural(first.sizes.gpus, "GPU") if first.sizes.gpus else "CPUs"
    console.print(
        f"{plural(first.replicas, 'worker')} with {of_each} and {first.sizes.memory}Gi of memory each: {why}",
        markup=False,
    )
    if not first.sizes.gpus and first.image is None:
        console.print(
            "The default image of workers is for GPUs. Name one for CPUs, built from the target worker-cpu, with "
            "--image, or in spec.engine.image of fleet.yaml.",
            markup=False,
        )
    if rl_api:
        console.print(rl_api, markup=False)
    if directory is not None and str(directory) != first.path:
        console.print(
            f"Copy {directory} to {first.path} in the volume of claim {first.claim}, readable for all (chmod -R a+rX).",
            markup=False,
        )
    console.print("Next:")
    for command in _commands(first, folder):
        console.print(f"  {command}", markup=False)


def _commands(first: FirstFleet, folder: Path) -> list[str]:
    """In their order. Workers start when the model is there."""
    quoted = shlex.quote(str(folder))
    before = [f"-f {quoted}/{name}" for name in ("storage.yaml", "trainer.yaml")]
    before = before if first.is_new else before[1:]
    found = [f"kubectl create namespace {first.namespace}   # unless it exists"]
    if first.repository is not None:
        found.append(
            f"kubectl -n {first.namespace} create secret generic {HUB_CREDENTIAL} --from-literal=token=hf_...   # for a gated model"
        )
        before.append(f"-f {quoted}/download.yaml")
    found.append(f"kubectl apply {' '.join(before)}   # as an account that may create Roles")
    if first.repository is not None:
        found.append(
            f"kubectl -n {first.namespace} logs -f job/{first.job} --pod-running-timeout=30m   # until it is complete"
        )
    return [
        *found,
        f"rlfleet validate {quoted}",
        f"kubectl apply -f {quoted}/fleet.yaml",
        f"rlfleet watch {first.name} -n {first.namespace}",
    ]
