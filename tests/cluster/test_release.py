"""`make release` makes files that install what they say, from these files alone."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.support.tiny import write_tiny
from tests.support.waiting import eventually

import envs
from devcluster import Cluster
from free_ports import free_port
from images.build import PACKAGES
from images.registry import command as serving
from release import programs
from release.programs import run
from rlfleet_resources.names import router_selector

ROOT = Path(__file__).parents[2]
VERSION = yaml.safe_load((ROOT / "charts/rlfleet/Chart.yaml").read_text())["version"]
FORGE = "https://github.com/owner/rlfleet"
REGISTRY = "mirror.example/team"
BUILDS_IMAGES = os.geteuid() == 0 and all(map(shutil.which, ("buildah", "debootstrap")))
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a release of the working tree, with the small images where they can be built."""
    target = tmp_path_factory.mktemp("release") / "dist"
    words = ("--version", VERSION, "--repository", FORGE, "--registry", REGISTRY)
    images = ("--images", "operator,router" if BUILDS_IMAGES else "none")
    command = [sys.executable, "-m", "release", *words, *images, "--dirty", "--target", target]
    run(command, cwd=ROOT)
    return target


@pytest.fixture(scope="module")
def cluster(devcluster_api_possible: None) -> Iterator[Cluster]:
    with Cluster.start(profile="api") as started:
        yield started


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry on loopback."""
    folder, port = tmp_path_factory.mktemp("registry"), free_port()
    command = serving(folder, f"127.0.0.1:{port}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        eventually(lambda: b"listening" in (folder / "log").read_bytes() or answers(port))
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def answers(port: int) -> bool:
    asked = ["curl", "-sf", "--noproxy", "*", f"http://127.0.0.1:{port}/v2/"]
    return subprocess.run(asked, capture_output=True, check=False).returncode == 0


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_sums_and_the_provenance_name_each_file(made: Path) -> None:
    files = {p.relative_to(made).as_posix(): digest(p) for p in made.rglob("*") if p.is_file()}
    sums = dict(
        reversed(line.split("  ", 1)) for line in (made / "SHA256SUMS").read_text().splitlines()
    )
    statement = json.loads((made / "provenance.json").read_text())
    subjects = {each["name"]: each["digest"]["sha256"] for each in statement["subject"]}

    assert sums == {name: found for name, found in files.items() if name != "SHA256SUMS"}
    assert subjects == {name: s for name, s in sums.items() if name != "provenance.json"}
    made_from, made_by = statement["predicate"].values()
    (origin,) = made_from["resolvedDependencies"]
    # SLSA: all that was chosen, without defaults.
    images = {"images": "operator,router"} if BUILDS_IMAGES else {}
    chosen = {"version": VERSION, "repository": FORGE, "registry": REGISTRY, **images}
    assert made_from["externalParameters"] == chosen
    assert len(origin["digest"]["gitCommit"]) == 40
    # SLSA: the builder is named by an address, and the run has no other fields.
    assert made_by == {"builder": {"id": f"{FORGE}#tools/release"}}


@pytest.mark.parametrize(
    ("wheel", "pinned", "command", "written"),
    [
        ("rlfleet[cli]", "dev", ["rlfleet", "--help"], "Usage: rlfleet"),
        ("rlfleet[cli]", "dev", ["rlfleet", "--version"], f"rlfleet {VERSION}\n"),
        ("rlfleet[cli]", "dev", ["kubectl-rlfleet", "--help"], "Usage: kubectl rlfleet"),
        ("rlfleet[cli]", "dev", ["kubectl_complete-rlfleet", "publ"], "publish\t"),
        (
            "rlfleet_server[operator]",
            "operator",
            ["python", "-m", "fleet_operator", "--help"],
            "usage: python -m fleet_operator",
        ),
        (
            "rlfleet_server[operator]",
            "operator",
            ["python", "-m", "fleet_api", "--help"],
            "usage: python -m fleet_api",
        ),
        (
            "rlfleet_server[worker-cpu]",
            "worker",
            ["python", "-m", "fleet_worker", "manifest", "{checkpoint}"],
            "  config.json\n",
        ),
    ],
    ids=["client", "version", "plugin", "completion", "operator", "RL API", "worker"],
)
def test_a_wheel_runs_in_a_fresh_environment(
    made: Path, tmp_path: Path, wheel: str, pinned: str, command: list[str], written: str
) -> None:
    name, extra = wheel.removesuffix("]").split("[")
    (file,) = (made / "python").glob(f"{name}-{VERSION}-*.whl")
    client = made / "python" / f"rlfleet-{VERSION}-py3-none-any.whl"
    checkpoint = write_tiny(tmp_path / "checkpoint")
    uv, folder = envs._uv(), tmp_path / "fresh"
    run([uv, "venv", "-q", "--python", sys.executable, folder], cwd=tmp_path)
    cache = f"UV_CACHE_DIR={envs.cache_folder() / 'uv'}"
    install = ["env", cache, uv, "pip", "install", "-q", "--python", folder / "bin/python"]
    # Both wheels by their files: the server's one needs the client's by its name, which no index has.
    found = [f"{file}[{extra}]", *([client] if name != "rlfleet" else [])]
    pins = ["--constraint", ROOT / f"requirements/{pinned}.txt"]
    if pinned == "worker":
        pins += ["--override", ROOT / "requirements/worker-overrides.txt"]
    run([*install, *found, *pins], cwd=tmp_path)
    done = subprocess.run(
        [folder / "bin" / command[0], *(w.format(checkpoint=checkpoint) for w in command[1:])],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert written in done.stdout


@pytest.mark.parametrize("name", ["rlfleet", "rlfleet_server"])
def test_an_sdist_builds_the_released_wheel(made: Path, tmp_path: Path, name: str) -> None:
    run(["tar", "-xf", made / "python" / f"{name}-{VERSION}.tar.gz"], cwd=tmp_path)
    building = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path]
    run(building, cwd=tmp_path / f"{name}-{VERSION}")
    (wheel,) = tmp_path.glob("*.whl")

    assert digest(wheel) == digest(made / "python" / wheel.name)


def test_the_api_server_takes_the_manifest_without_helm(made: Path, cluster: Cluster) -> None:
    cluster.kubectl("apply", "--server-side", "-f", str(made / "install.yaml"))
    sample = ROOT / "crds/samples/valid/fleet-smallest.yaml"
    cluster.kubectl("wait", "--for=condition=Established", "crd/inferencefleets.rlfleet.dev")
    cluster.kubectl("apply", "-f", str(sample))

    found = cluster.kubectl("-n", "rlfleet-system", "get", "deployment", "-o", "json").stdout
    images = {
        container["image"]
        for item in json.loads(found)["items"]
        for container in item["spec"]["template"]["spec"]["containers"]
    }
    assert images == {f"{REGISTRY}/rlfleet/operator:{VERSION}"}


@pytest.mark.skipif(not BUILDS_IMAGES, reason="images are built by root, buildah and debootstrap")
def test_the_manifest_runs_operator_and_router_from_the_released_images(
    made: Path, devcluster_node_possible: None
) -> None:
    """The node has no network: it knows the images by their names in the archives alone."""
    router = f"{REGISTRY}/rlfleet/router:{VERSION}"
    with Cluster.start(nodes=1) as cluster:
        for image in ("operator", "router"):
            cluster.load_archive(made / "images" / f"rlfleet-{image}-{VERSION}.tar")
        cluster.kubectl("apply", "--server-side", "-f", str(made / "install.yaml"))
        ready = ("wait", "--for=condition=Available", "deployment", "--all", "--timeout=120s")
        cluster.kubectl("-n", "rlfleet-system", *ready)
        fleet = yaml.safe_load((ROOT / "crds/samples/valid/fleet-router.yaml").read_text())
        fleet["spec"]["router"]["image"] = router
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(fleet))
        labels = ",".join(f"{key}={value}" for key, value in router_selector("policy").items())
        waiting = ("wait", "pod", "-l", labels, "--timeout=120s")
        cluster.kubectl(*waiting, "--for=create")
        cluster.kubectl(*waiting, "--for=jsonpath={.status.phase}=Running")
        pod = cluster.kubectl("get", "pod", "-l", labels, "-o", "name").stdout.strip()
        # No worker is there, so the pod waits for one before it starts its router.
        helped = ("exec", pod, "--", "vllm-router", "--help")
        assert "--worker-urls" in cluster.kubectl(*helped).stdout


@pytest.fixture(scope="module")
def pushed(made: Path, registry: str) -> tuple[str, ...]:
    """Helm's words for the chart, after `oras` has pushed it to the registry."""
    source, place = made / "chart" / f"oci:{VERSION}", f"{registry}/rlfleet/charts/rlfleet"
    pushing = [programs.oras(), "cp", "--from-oci-layout", "--to-plain-http", source]
    run([*pushing, f"{place}:{VERSION}"], cwd=made)
    return (f"oci://{place}", "--version", VERSION, "--plain-http")


def test_helm_gets_the_released_chart_from_a_registry(
    made: Path, pushed: tuple[str, ...], tmp_path: Path
) -> None:
    run([programs.helm(), "pull", *pushed], cwd=tmp_path)

    pulled = tmp_path / f"rlfleet-{VERSION}.tgz"
    assert digest(pulled) == digest(made / "chart" / pulled.name)


def test_helm_installs_upgrades_and_uninstalls_the_chart_of_the_registry(
    pushed: tuple[str, ...], devcluster_api_possible: None
) -> None:
    """No node runs the operator here, so nothing waits for it."""
    chart = ("rlfleet", *pushed, "--namespace", "rlfleet-system")
    with Cluster.start(profile="api") as cluster:
        installed = cluster.helm("install", *chart, "--create-namespace").stdout
        deployment = ("-n", "rlfleet-system", "get", "deployment", "-o", "json")
        (before,) = json.loads(cluster.kubectl(*deployment).stdout)["items"]
        changed = ("--reset-then-reuse-values", "--set", "replicaCount=1")
        cluster.helm("upgrade", *chart, *changed)
        (after,) = json.loads(cluster.kubectl(*deployment).stdout)["items"]
        cluster.kubectl("apply", "-f", str(ROOT / "crds/samples/valid/fleet-smallest.yaml"))
        cluster.helm("uninstall", "rlfleet", "--namespace", "rlfleet-system")
        left = json.loads(cluster.kubectl(*deployment).stdout)["items"]
        fleets = json.loads(cluster.kubectl("get", "ifl", "-A", "-o", "json").stdout)["items"]

    assert "STATUS: deployed" in installed
    assert before["spec"]["template"]["spec"]["containers"][0]["image"] == (
        f"{REGISTRY}/rlfleet/operator:{VERSION}"
    )
    assert (before["spec"]["replicas"], after["spec"]["replicas"]) == (2, 1)
    assert left == []
    assert len(fleets) == 1


def test_the_manifest_is_the_chart_with_a_namespace(made: Path, tmp_path: Path) -> None:
    archive = made / "chart" / f"rlfleet-{VERSION}.tgz"
    words = ("template", "rlfleet", archive, "--namespace", "rlfleet-system")
    rendered = list(yaml.safe_load_all(run([programs.helm(), *words], cwd=tmp_path)))
    namespace, *objects = yaml.safe_load_all((made / "install.yaml").read_text())

    assert objects == rendered
    assert (namespace["kind"], namespace["metadata"]["name"]) == ("Namespace", "rlfleet-system")


@pytest.mark.parametrize(("image", "packages"), PACKAGES.items())
def test_the_lists_name_the_pinned_packages(made: Path, image: str, packages: str) -> None:
    found = json.loads((made / f"sbom/{image}.cdx.json").read_text())
    names = {(each["name"], each["version"]) for each in found["components"]}
    pinned = (ROOT / f"requirements/{packages}.txt").read_text()

    assert len(names) > 10
    assert all(f"{package}=={version}" in pinned for package, version in names)


def test_the_notes_are_those_of_the_version(made: Path) -> None:
    notes = (made / "notes.md").read_text()

    assert notes.strip()
    assert "\n## " not in notes
