"""The worker's commands: `python -m fleet_worker serve | drain | manifest | check | audit`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable

from fleet_worker.drain_names import ENV_ADMIN_HOST, ENV_ADMIN_PORT


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code. Only the code of that command is imported."""
    parser = argparse.ArgumentParser(
        prog="python -m fleet_worker", description="Run and inspect vLLM workers of a fleet."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    _add_serve(commands.add_parser("serve", help="run a vLLM worker"))
    _add_drain(commands.add_parser("drain", help="drain and stop the worker of this pod"))
    _add_manifest(
        commands.add_parser("manifest", help="print the manifest or the digest of a checkpoint")
    )
    _add_check(
        commands.add_parser("check", help="check whether a worker would accept a checkpoint")
    )
    audit = commands.add_parser(
        "audit", help="recompute recorded replies and check their weight versions", add_help=False
    )
    audit.add_argument("rest", nargs=argparse.REMAINDER)
    raw = sys.argv[1:] if arguments is None else arguments
    if raw[:1] == ["audit"]:
        parsed = argparse.Namespace(command="audit", rest=raw[1:])
    else:
        # argparse would parse the flags after `--` as its own.
        split = raw.index("--") if "--" in raw else len(raw)
        parsed = parser.parse_args(raw[:split])
        parsed.engine_arguments = raw[split + 1 :]
    try:
        run = _command(parsed.command)
    except ModuleNotFoundError as error:
        parser.error(
            f"module {error.name} is missing: install rlfleet-server[worker] and rlfleet, or use the"
            " worker image"
        )
    return run(parsed)


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    if name == "serve":
        from fleet_worker.process.serve import serve  # noqa: PLC0415 - one command is run

        return serve
    if name == "manifest":
        from fleet_worker.process.manifest import manifest  # noqa: PLC0415 - one command is run

        return lambda given: manifest(given.directory, kind=given.kind, only_digest=given.digest)
    if name == "check":
        from fleet_worker.process.check import check  # noqa: PLC0415 - one command is run

        return check
    if name == "audit":
        from fleet_worker.audit.command import audit  # noqa: PLC0415 - one command is run

        return lambda given: audit(given.rest)
    from fleet_worker.process.drain import drain  # noqa: PLC0415 - one command is run

    return lambda given: drain(given.admin_host, given.admin_port)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.usage = "python -m fleet_worker serve [options] [-- arguments for vllm serve]"
    add = parser.add_argument
    add("--model", required=True, help="directory, or repository in the local Hugging Face cache")
    add("--revision", help="revision of the repository (default: main)")
    add("--served-model-name", required=True, help="model name in requests, for all versions")
    add("--version", required=True, help="version of the weights that --model names")
    add("--host", default="*", help="address of the public port; * for all (default: %(default)s)")
    add("--port", type=int, default=8000, help="public port (default: %(default)s)")
    add(
        "--admin-host",
        default=os.environ.get(ENV_ADMIN_HOST) or "127.0.0.1",
        help="address of the admin port (default: %(default)s)",
    )
    add(
        "--admin-port",
        type=int,
        default=os.environ.get(ENV_ADMIN_PORT) or "8081",
        help="admin port (default: %(default)s)",
    )
    add(
        "--metrics-host",
        default="127.0.0.1",
        help="address of the metrics port; * for all (default: %(default)s)",
    )
    add("--metrics-port", type=int, help="port that serves metrics without a key (default: none)")
    add(
        "--peer-port",
        type=int,
        help="port that serves versions to other workers of the fleet (default: none)",
    )
    add(
        "--peer-bytes-per-second",
        type=int,
        default=0,
        help="to send to other workers together; 0 (default) for no limit",
    )
    add(
        "--loading",
        type=_loading,
        default="Full",
        help="Full, or InPlace: write only what differs from the version in the engine, if possible",
    )
    add("--weights-root", action="append", default=[], help="load weights from here; repeatable")
    add("--weights-management", type=_management, default="Operator", help="Operator or External")
    add(
        "--driver-lease-seconds",
        type=float,
        default=600,
        help="end a trainer's pause after this many seconds without a call (default: %(default)s)",
    )
    add("--weight-transfer-backend", help="also receive weights over a collective: nccl, …")
    add(
        "--staging-memory-bytes",
        type=int,
        help="memory for staged weights (default: a quarter of the container's memory)",
    )
    add(
        "--max-loras",
        type=int,
        default=0,
        help="slots for versions of LoRA adapters (default: %(default)s)",
    )
    add(
        "--max-lora-rank",
        type=int,
        default=16,
        help="largest rank of a LoRA adapter (default: %(default)s)",
    )
    add(
        "--silence-seconds",
        type=float,
        default=120,
        help="fail /livez after this many seconds of engine silence (default: %(default)s)",
    )
    add(
        "--load-seconds",
        type=float,
        default=1800,
        help="fail /livez when a load takes longer than this (default: %(default)s)",
    )
    default_format = "text" if sys.stderr.isatty() else "json"
    add(
        "--log-format",
        choices=("json", "text"),
        default=default_format,
        help="format of log lines (default: text on a terminal, else json)",
    )
    add(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="minimum log level (default: %(default)s)",
    )


def _management(text: str) -> str:
    # Imported here because the preStop hook also runs this file and must start fast.
    from fleet_worker.protocol import Management  # noqa: PLC0415 - see above

    return Management(text).value


def _loading(text: str) -> str:
    from fleet_worker.protocol import Loading  # noqa: PLC0415 - as in `_management`

    return Loading(text).value


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--admin-host", help=f"default: ${ENV_ADMIN_HOST}, or 127.0.0.1")
    parser.add_argument("--admin-port", type=int, help=f"default: ${ENV_ADMIN_PORT}, or 8081")


def _add_manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", help="directory of a checkpoint or a LoRA adapter")
    parser.add_argument("--digest", action="store_true", help="print the digest only")
    _add_kind(parser)


def _add_kind(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--kind",
        choices=("checkpoint", "adapter"),
        help="what the directory is read as (default: a checkpoint if it holds one)",
    )


def _add_check(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("directory", help="directory of a checkpoint or a LoRA adapter")
    add(
        "--against",
        required=True,
        metavar="MODEL",
        help="the worker's model: directory, or repository in the local Hugging Face cache",
    )
    add("--revision", help="revision of the repository (default: main)")
    add(
        "--weights-root",
        action="append",
        default=[],
        help="accept only directories below this one; repeatable (default: all)",
    )
    add(
        "--max-lora-rank",
        type=int,
        default=16,
        help="largest rank of a LoRA adapter; 0: no adapters (default: %(default)s)",
    )
    _add_kind(parser)
    add("-o", "--output", choices=("text", "json"), default="text", help="default: %(default)s")


if __name__ == "__main__":
    sys.exit(main())
