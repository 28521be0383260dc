"""`python -m demo`: see `make demo`."""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import stack
from demo.place import (
    FLEET,
    NAMESPACE,
    WEIGHTS,
    CommandError,
    ExistingCluster,
    OwnCluster,
    Place,
    apply,
    end_if_running,
    kubectl,
    shared_folder,
)
from demo.sampler import Samples, sample
from demo.screen import Screen
from demo.story import DemoFailedError, Story
from demo.trainer import Trainer
from demo.verdict import judge
from demo.watch import Watcher
from devcluster import Cluster, DevclusterError
from stack.operator import CHART, RELEASE
from stack.operator import NAMESPACE as SYSTEM

CLUSTER_ID = "demo"
WORKERS = 3
START_SECONDS = 300


async def play(
    place: Place, worker_image: str, screen: Screen, records: Path, recording: Path | None
) -> bool:
    """Make the fleet, tell the story, judge it. Returns: whether everything held."""
    trainer = await asyncio.to_thread(Trainer, place, worker_image)
    await asyncio.to_thread(trainer.write, 0)
    screen.say(f"$ kubectl apply: an InferenceFleet of {WORKERS} workers and a WeightVersion")
    objects = [
        stack.fleet_manifest(FLEET, replicas=WORKERS),
        stack.weights_manifest(WEIGHTS, fleet=FLEET, version="1"),
    ]
    await asyncio.to_thread(trainer.write, 1)
    await asyncio.to_thread(apply, place, objects)
    watcher = Watcher(place, WORKERS)
    screen.snapshot = watcher.snapshot
    samples = Samples(records / "replies.jsonl")
    screen.samples = samples
    stop = asyncio.Event()
    background = [asyncio.create_task(watcher.run()), asyncio.create_task(screen.run())]
    sampling: asyncio.Task[None] | None = None
    try:
        screen.say("waiting until vLLM has started in every worker (about half a minute)")
        await _ready(place, screen)
        url = await asyncio.to_thread(place.service_url)
        model = objects[0]["spec"]["model"]["name"]
        sampling = asyncio.create_task(sample(url, model, samples, stop))
        story = Story(place, trainer, watcher.snapshot, samples, screen)
        await story.tell()
        screen.act("every token is recomputed under the checkpoint that its label names")
        stop.set()
        await sampling
        verdict = await asyncio.to_thread(judge, place, story, samples)
    except DemoFailedError as error:
        screen.say(str(error), "bold red")
        return False
    finally:
        stop.set()
        for task in (*background, *([sampling] if sampling else [])):
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        trainer.close()
    lines = [
        *verdict.lines,
        "",
        "Everything held." if verdict.holds else "SOMETHING DID NOT HOLD.",
    ]
    print("\n" + "\n".join(lines))
    if recording is not None:
        screen.save(recording, lines)
    return verdict.holds


async def _ready(place: Place, screen: Screen) -> None:
    command = ("wait", "--for=condition=Ready", f"wv/{WEIGHTS}", f"--timeout={START_SECONDS}s")
    done = await asyncio.to_thread(kubectl, place, *command, check=False)
    if done.returncode:
        told = await asyncio.to_thread(kubectl, place, "describe", "ifl,wv,pods", check=False)
        print(told.stdout, file=sys.stderr)
        raise DemoFailedError(f"the fleet is not ready after {START_SECONDS} s; see above")
    screen.say("all workers serve version 1", "green")


def prepare_own(cluster_id: str, *, keep: bool, screen: Screen) -> tuple[Place, str]:
    """Our own cluster with our images and a folder as weights volume."""
    screen.say("starting a Kubernetes (the first time its programs are built: 5 to 8 minutes)")
    end_if_running(cluster_id)
    cluster = Cluster.start(cluster_id=cluster_id, mounts=stack.mounts(), detach=keep)
    place = OwnCluster(cluster, keep=keep)
    try:
        screen.say("loading the images of this working tree")
        stack.load_images(cluster)
        screen.say("$ helm install rlfleet charts/rlfleet")
        stack.install(cluster)
        cluster.kubectl("create", "namespace", NAMESPACE)
        folder = shared_folder(cluster.folder)
        apply(place, stack.weights_volume(folder, NAMESPACE))
    except BaseException:
        place.close()
        raise
    return place, stack.WORKER_IMAGE


def prepare_existing(parsed: argparse.Namespace, screen: Screen) -> tuple[Place, str]:
    """The current kubeconfig's cluster, with given images and a given storage class."""
    place = ExistingCluster(keep=parsed.keep)
    screen.say("$ helm upgrade --install rlfleet charts/rlfleet")
    repository, _, tag = parsed.operator_image.rpartition(":")
    values = f"image.repository={repository},image.tag={tag},worker.image={parsed.worker_image}"
    where = ["--namespace", SYSTEM, "--create-namespace", "--wait", "--timeout", "180s"]
    command = ["helm", "upgrade", "--install", RELEASE, str(CHART), *where, "--set", values]
    subprocess.run(command, check=True, capture_output=True, env=place.environment)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    spec: dict[str, object] = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    if parsed.storage_class:
        spec["storageClassName"] = parsed.storage_class
    metadata = {"name": "weights"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    kubectl(place, "apply", "-f", "-", stdin=json.dumps(namespace))
    found = kubectl(place, "get", "pvc/weights", check=False)
    if found.returncode:  # one that is there is taken as it is
        apply(place, [claim | {"spec": spec}])
    return place, parsed.worker_image


def main() -> int:
    """Read the command line and play. Returns: the exit code, 0 only if everything held."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave everything running")
    parser.add_argument("--id", default=CLUSTER_ID, help="name of the demo's own cluster")
    parser.add_argument("--cluster", choices=("own", "existing"), default="own")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the story as an SVG")
    existing = parser.add_argument_group("with --cluster existing")
    existing.add_argument("--operator-image", default=stack.OPERATOR_IMAGE)
    existing.add_argument("--worker-image", default=stack.WORKER_IMAGE)
    existing.add_argument("--storage-class", help="one that many nodes may write (ReadWriteMany)")
    parsed = parser.parse_args()
    screen = Screen()
    place: Place | None = None
    try:
        if parsed.cluster == "own":
            place, image = prepare_own(parsed.id, keep=parsed.keep, screen=screen)
        else:
            place, image = prepare_existing(parsed, screen)
        with tempfile.TemporaryDirectory() as folder:
            held = asyncio.run(play(place, image, screen, Path(folder), parsed.record))
        if parsed.keep and isinstance(place, OwnCluster):
            _tell_how_to_go_on(place)
    except (DevclusterError, CommandError, subprocess.CalledProcessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    finally:
        if place is not None:
            place.close()
    return 0 if held else 1


def _tell_how_to_go_on(place: OwnCluster) -> None:
    cluster = place.cluster
    print(f"""
Everything is left running. Use it with

    export KUBECONFIG={cluster.kubeconfig} PATH={cluster.kubectl_path.parent}:$PATH
    kubectl -n {NAMESPACE} get ifl,wv,pods
    kubectl -n {NAMESPACE} describe wv {WEIGHTS}

and end it with `make cluster-down`.""")


if __name__ == "__main__":
    sys.exit(main())
