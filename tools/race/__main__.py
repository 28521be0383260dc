"""`python -m race`: record the story of the front page's moving picture, see `make race`."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

import stack
from bench_worker.report import REPOSITORY, machine
from demo.__main__ import prepare_own
from demo.place import FLEET, PORT, WEIGHTS, OwnCluster, Place, apply, kubectl
from demo.screen import Screen
from demo.trainer import Trainer
from demo.watch import Watcher
from race import loop
from race.story import FIRST, LAST, Recording, play, written

RESULTS = REPOSITORY / "bench" / "results" / "race.json"
WORKERS = 3
SCRIPT = "loop"
START_SECONDS = 400


async def by_script(place: OwnCluster, folder: Path) -> Recording:
    """The side of the hand-written loop."""
    names = [f"{SCRIPT}-{n}" for n in range(WORKERS)]
    apply(place, loop.manifests(SCRIPT, stack.WORKER_IMAGE, WORKERS))
    await _wait(place, "rollout", "status", f"statefulset/{SCRIPT}", f"--timeout={START_SECONDS}s")
    cluster = place.cluster
    urls = {n: f"http://127.0.0.1:{cluster.forward('rl', f'pod/{n}', PORT)}" for n in names}
    service = f"http://127.0.0.1:{cluster.forward('rl', f'service/{SCRIPT}', PORT)}"
    script = loop.Loop(urls, dict.fromkeys(names, "base"), "base", [])
    await script.update(str(FIRST))
    async with httpx.AsyncClient(trust_env=False, timeout=2) as http:

        async def state(name: str) -> str:
            try:
                (await http.get(f"{urls[name]}/health")).raise_for_status()
            except httpx.HTTPError:
                script.loaded[name] = "base"  # it starts again with what its command line names
                return ""
            return script.loaded[name]

        async def states() -> dict[str, str]:
            return dict(zip(names, await asyncio.gather(*map(state, names)), strict=True))

        recording = await play(
            place,
            folder,
            url=service,
            workers=names,
            states=states,
            publish=script.update,
            label=lambda: script.version,
        )
    print("\n".join(script.log))
    kubectl(place, "delete", f"statefulset/{SCRIPT}", f"service/{SCRIPT}", "--wait=true")
    return recording


async def by_rlfleet(place: OwnCluster, folder: Path, trainer: Trainer) -> Recording:
    """The side of the operator."""
    fleet = stack.fleet_manifest(FLEET, replicas=WORKERS)
    apply(place, [fleet, stack.weights_manifest(WEIGHTS, fleet=FLEET, version=str(FIRST))])
    await _wait(
        place, "wait", "--for=condition=Ready", f"wv/{WEIGHTS}", f"--timeout={START_SECONDS}s"
    )
    watcher = Watcher(place, WORKERS)
    watching = asyncio.create_task(watcher.run())

    async def states() -> dict[str, str]:
        found = watcher.snapshot.workers.items()
        return {name: worker.version if worker.admitted else "" for name, worker in found}

    async def publish(version: str) -> None:
        await asyncio.to_thread(trainer.publish, version)

    try:
        return await play(
            place,
            folder,
            url=place.service_url(),
            workers=list(watcher.snapshot.workers),
            states=states,
            publish=publish,
            label=None,
        )
    finally:
        watching.cancel()


async def _wait(place: Place, *command: str) -> None:
    await asyncio.to_thread(kubectl, place, *command)


async def _record(place: OwnCluster, image: str) -> dict[str, Any]:
    trainer = await asyncio.to_thread(Trainer, place, image)
    sides: dict[str, Any] = {}
    try:
        for number in range(LAST + 1):
            await asyncio.to_thread(trainer.write, number)
        with tempfile.TemporaryDirectory() as folder:
            sides["loop"] = written(await by_script(place, Path(folder)))
        with tempfile.TemporaryDirectory() as folder:
            sides["rlfleet"] = written(await by_rlfleet(place, Path(folder), trainer))
    finally:
        trainer.close()
    return sides


def main() -> int:
    """Record both sides, and say what came out."""
    parser = argparse.ArgumentParser(prog="make race", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parsed = parser.parse_args()
    place, image = prepare_own("race", keep=parsed.keep, screen=Screen())
    if not isinstance(place, OwnCluster):
        raise TypeError("the race runs on a cluster of its own")
    try:
        sides = asyncio.run(_record(place, image))
    except subprocess.CalledProcessError as error:
        print(f"race: {error}\n{error.stderr}", file=sys.stderr)
        return 1
    finally:
        place.close()
    found = {"measured": {"date": datetime.now(UTC).date().isoformat(), **machine()}, **sides}
    RESULTS.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    for name, side in sides.items():
        tokens, wrong = (sum(reply[k] for reply in side["replies"]) for k in (2, 3))
        print(
            f"{name}: {len(side['replies'])} replies, {tokens} tokens, {wrong} of other weights than "
            f"their label's, {side['retried']} sent again, {side['lost']} lost, {side['seconds']} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
