"""Find a checkpoint's directory and open it, checked without reading its tensors.

The worker looks for a Hugging Face repository in the local cache, and downloads nothing. Source: cache
layout of huggingface_hub (`models--ORG--NAME/{refs,snapshots,blobs}`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import (
    Directory,
    FileState,
    OpenFile,
    Roots,
    SmallFile,
)
from fleet_worker.checkpoint.format import CONFIG_LIMIT
from fleet_worker.checkpoint.headers import specs_of
from fleet_worker.checkpoint.os_errors import os_errors
from fleet_worker.checkpoint.places import open_directory
from fleet_worker.checkpoint.texts import Texts, added_tokens_of, template_of
from fleet_worker.checkpoint.weight_sets import INDEX_LIMIT, check_tensors_once, chosen_set
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.source import COMMIT
from rlfleet_resources.weight_files import CONFIG_FILE, INDEX_FILE

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*")
_GENERATION_FILE = "generation_config.json"
_TOKENIZER_FILE = "tokenizer_config.json"
_TEMPLATE_FILE = "chat_template.jinja"


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the cache directory of huggingface_hub."""
    if named := environment.get("HF_HUB_CACHE"):
        return Path(named)
    home = environment.get("HF_HOME")
    return Path(home) / "hub" if home else Path("~/.cache/huggingface/hub").expanduser()


def snapshot(repository: str, revision: str, *, cache: Path | None = None) -> str:
    """Return the directory of a cached repository at a revision (branch, tag or commit).

    Errors:
        Refusal: `SourceNotFound` if it is not in the cache.
    """
    commit = commit_of(repository, revision, cache=cache)
    return str(_folder(repository, cache) / "snapshots" / commit)


def commit_of(repository: str, revision: str, *, cache: Path | None = None) -> str:
    """Return the commit (40 hex digits) that the cache has of a repository's revision.

    A download may move a branch. A commit always names the same files.

    Errors:
        Refusal: `SourceNotFound` if it is not in the cache; `SourceUnreadable` if the cache cannot
            be read.
    """
    for text, pattern in ((repository, _REPOSITORY), (revision, _REVISION)):
        if not pattern.fullmatch(text) or ".." in text:
            raise Refusal(Reason.SOURCE_NOT_FOUND, "invalid name of a repository or revision")
    folder = _folder(repository, cache)
    with os_errors("the Hugging Face cache"):
        commit = revision if COMMIT.fullmatch(revision) else _read_reference(folder, revision)
        is_cached = bool(COMMIT.fullmatch(commit)) and (folder / "snapshots" / commit).is_dir()
    if not is_cached:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{repository}@{revision} is not in the local Hugging Face cache; download it first,"
            " because the worker downloads nothing",
        )
    return commit


def _read_reference(folder: Path, revision: str) -> str:
    """Return the text of a branch or tag, which is a commit unless it is damaged; empty without one."""
    try:
        return (folder / "refs" / revision).read_text(errors="replace").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return ""


def _folder(repository: str, cache: Path | None) -> Path:
    return (cache or cache_directory()) / f"models--{repository.replace('/', '--')}"


def open_checkpoint(path: str, roots: Roots | None) -> Checkpoint:
    """Open a checkpoint and check it without reading its tensors.

    Args:
        path: Absolute path of a directory, or URI of a prefix.
        roots: The allowed roots. None for the model's own directory.

    Errors:
        Refusal: any of the source and checkpoint reasons.
    """
    directory = open_directory(path, roots)
    try:
        return checkpoint_in(directory, directory.read(INDEX_FILE, limit=INDEX_LIMIT))
    finally:
        directory.close()


def checkpoint_in(directory: Directory, index_file: SmallFile | None) -> Checkpoint:
    """Open the checkpoint in an open directory, as `open_checkpoint`."""
    files: list[OpenFile] = []
    try:
        # Each is read once: the digest is that of the bytes that were checked.
        config_file = directory.read(CONFIG_FILE, limit=CONFIG_LIMIT)
        config = config_of(CONFIG_FILE, config_file)
        index = index_file.content if index_file is not None else None
        chosen = chosen_set(directory.names, index, config)
        if chosen.name != INDEX_FILE:
            index = index_file = None  # left over from another save
        specs = {}
        for name in chosen.files:
            file = directory.open(name)
            files.append(file)
            specs[name] = specs_of(file)
        check_tensors_once(index, specs)
        companions = companions_of(config_file, index_file)
        texts = _texts_in(directory)
        small = {n: content for n, content in directory.small.items() if n != INDEX_FILE or index}
        return Checkpoint(
            directory.path, config, tuple(files), specs, companions, texts=texts, small=small
        )
    except BaseException:
        for file in files:
            file.close()
        raise


def _texts_in(directory: Directory) -> Texts:
    """Return what the files next to the weights say. No load needs them, so none refuses a checkpoint."""
    unreadable = []
    found: dict[str, Any] = {_TEMPLATE_FILE: None}
    for name in (_GENERATION_FILE, _TOKENIZER_FILE, _TEMPLATE_FILE):
        try:
            if (file := directory.read(name, limit=CONFIG_LIMIT)) is not None:
                is_json = name != _TEMPLATE_FILE
                found[name] = config_of(name, file) if is_json else file.content.decode()
        except (Refusal, UnicodeDecodeError):
            unreadable.append(name)
    tokenizer = found.get(_TOKENIZER_FILE, {})
    template = template_of(found[_TEMPLATE_FILE], tokenizer)
    added = added_tokens_of(tokenizer)
    return Texts(found.get(_GENERATION_FILE, {}), template, added, tuple(unreadable))


def config_of(name: str, file: SmallFile | None) -> dict[str, Any]:
    """Return a configuration, which must be a JSON object."""
    if file is None:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"the directory has no {name}, which describes its weights",
        )
    try:
        config = json.loads(file.content, object_hook=_special_floats)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is not a JSON object")
    return config


def _special_floats(entry: dict[str, Any]) -> Any:
    """Return the number that transformers 5 writes as an object, and any other object as it is."""
    named = entry.get("__float__") if len(entry) == 1 else None
    return float(named) if named in ("Infinity", "-Infinity") else entry


def companions_of(*files: SmallFile | None) -> dict[str, tuple[FileState, str]]:
    """Return the states and digests of the small files next to the weights, of those that exist."""
    return {
        file.name: (file.state, hashlib.sha256(file.content).hexdigest())
        for file in files
        if file is not None
    }
