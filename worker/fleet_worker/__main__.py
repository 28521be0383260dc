"""`python -m fleet_worker serve | drain | manifest | audit`."""

from __future__ import annotations

import argparse
import os
import sys

from fleet_worker.drain_names import ENV_ADMIN_HOST, ENV_ADMIN_PORT


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns its exit code. Commands are imported when they are called."""
    parser = argparse.ArgumentParser(prog="python -m fleet_worker", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_serve(commands.add_parser("serve", help="run a vLLM worker"))
    _add_drain(commands.add_parser("drain", help="end the worker of this pod in good order"))
    _add_manifest(commands.add_parser("manifest", help="what names a checkpoint's content"))
    audit = commands.add_parser("audit", help="recompute who made which token", add_help=False)
    audit.add_argument("rest", nargs=argparse.REMAINDER)
    raw = sys.argv[1:] if arguments is None else arguments
    if raw[:1] == ["audit"]:
        from fleet_worker.audit.command import audit as run  # noqa: PLC0415 - one command is run

        return run(raw[1:])
    # argparse would take the flags after `--` for its own.
    split = raw.index("--") if "--" in raw else len(raw)
    parsed = parser.parse_args(raw[:split])
    if parsed.command == "serve":
        try:
            from fleet_worker.runtime.serve import serve  # noqa: PLC0415 - one command is run
        except ModuleNotFoundError as error:
            parser.error(f"{error.name} is missing: install rlfleet[worker], or use its image")

        parsed.engine_arguments = raw[split + 1 :]
        return serve(parsed)
    if parsed.command == "manifest":
        from fleet_worker.runtime.manifest import manifest  # noqa: PLC0415 - one command is run

        return manifest(parsed.directory, only_digest=parsed.digest)
    from fleet_worker.runtime.drain import drain  # noqa: PLC0415 - one command is run

    return drain(parsed.admin_host, parsed.admin_port)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.usage = "python -m fleet_worker serve [options] [-- arguments for vllm serve]"
    add = parser.add_argument
    add("--model", required=True, help="directory, or repository in the local Hugging Face cache")
    add("--revision", help="of the repository (default: main)")
    add("--served-model-name", required=True, help="what requests name; the same for all versions")
    add("--version", required=True, help="label of the model's own weights")
    add("--host", default="0.0.0.0", help="of the public port (default: %(default)s)")
    add("--port", type=int, default=8000, help="public port (default: %(default)s)")
    add("--admin-host", default=os.environ.get(ENV_ADMIN_HOST) or "127.0.0.1")
    add("--admin-port", type=int, default=int(os.environ.get(ENV_ADMIN_PORT) or 8081))
    add("--metrics-host", default="127.0.0.1")
    add("--metrics-port", type=int, help="metrics without a key (default: none)")
    add("--weights-root", action="append", default=[], help="where versions may be; repeatable")
    add("--weights-management", type=_management, default="Operator", help="Operator or External")
    add("--driver-lease-seconds", type=float, default=600, help="of a trainer's pause")
    add("--weight-transfer-backend", help="take weights over a collective, too: nccl, …")
    add("--staging-memory-bytes", type=int, help="default: a quarter of the container's memory")
    add(
        "--max-loras", type=int, default=0, help="versions of LoRA adapters at once (default: none)"
    )
    add("--max-lora-rank", type=int, default=16, help="largest rank of an adapter")
    add("--silence-seconds", type=float, default=120, help="of the engine, until /livez fails")
    add("--load-seconds", type=float, default=1800, help="longest load, until /livez fails")
    default_format = "text" if sys.stderr.isatty() else "json"
    add("--log-format", choices=("json", "text"), default=default_format)
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def _management(text: str) -> str:
    # Imported when the option is read: the preStop hook runs this file, too, and has no time.
    from fleet_worker.protocol import Management  # noqa: PLC0415

    return Management(text).value


def _add_drain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--admin-host")
    parser.add_argument("--admin-port", type=int)


def _add_manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", help="of a checkpoint or an adapter")
    parser.add_argument("--digest", action="store_true", help="print the digest only")


if __name__ == "__main__":
    sys.exit(main())
