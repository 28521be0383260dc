"""`rlfleet init`: a folder of manifests that pass `rlfleet validate`, and the Job that downloads the model."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.contract.test_documents import strict_schema
from tests.support import fake_modules
from tests.support.cli import CLI, golden, run
from tests.support.pages import ROOT
from tests.support.recorded_chart import recorded
from tests.unit.client.cli.test_validate import Cluster
from typer.testing import CliRunner, Result

from rlfleet.cli import api_place, cluster
from rlfleet.cli import init as verb
from rlfleet.cli.app import app
from rlfleet.cli.model_facts import facts_of_directory
from rlfleet.cli.sizes import gpus_for, sizes
from rlfleet.cli.spec_rules import of_fleet
from rlfleet.cli.trainer_settings import Trainer
from rlfleet.errors import Forbidden, NotConfigured

GOLDEN = CLI / "golden/init"
DOWNLOAD = Path(verb.__file__).with_name("download.sh")
CONFIG = {"num_attention_heads": 32, "max_position_embeddings": 40960}
LARGE = 16_400_000_000


class Sibling:
    def __init__(self, name: str, size: int) -> None:
        self.rfilename, self.size = name, size


class FakeHub:
    """A repository of the Hub, which may be gated or away."""

    def __init__(self, folder: Path, *, error: Exception | None = None) -> None:
        self.config, self.error = folder / "hub-config.json", error
        self.config.write_text(json.dumps(CONFIG))
        self.files = [
            Sibling("model-1.safetensors", LARGE - 400_000_000),
            Sibling("model-2.safetensors", 400_000_000),
            Sibling("consolidated.safetensors", LARGE),
            Sibling("original/model.safetensors", LARGE),
            Sibling("README.md", 1000),
        ]
        self.is_gated = False

    def model_info(self, *_: Any, **__: Any) -> Any:
        if self.error:
            raise self.error
        return type("Info", (), {"siblings": self.files})

    def hf_hub_download(self, *_: Any, **__: Any) -> str:
        if self.is_gated:
            raise PermissionError("the repository is gated")
        return str(self.config)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeHub:
    made = FakeHub(tmp_path)
    members = {"HfApi": lambda: made, "hf_hub_download": made.hf_hub_download}
    fake_modules.install(monkeypatch, {"huggingface_hub": members})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "1000")  # Typer draws a frame, which cuts words
    return made


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests ask no cluster of this machine."""

    def connect(*_: Any, **__: Any) -> None:
        raise NotConfigured("there is no kubeconfig")

    monkeypatch.setattr(cluster, "connect", connect)


def init(*options: str, typed: str = "") -> Result:
    return CliRunner().invoke(app, ["init", *options], input=typed)


def fleet_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all((folder / "fleet.yaml").read_text()))["spec"]
    return found


@pytest.mark.usefixtures("hub")
def test_a_folder_holds_what_a_first_fleet_needs(tmp_path):
    options = ("--model", "Qwen/Qwen3-8B", "--trainer", "prime-rl", "--storage-class", "nfs")

    done = init("policy", *options, "--gpus", "2")

    assert done.exit_code == 0, done.output
    written = {
        str(f.relative_to(tmp_path)) for f in (tmp_path / "policy").rglob("*") if f.is_file()
    }
    assert written == {
        "policy/storage.yaml", "policy/download.yaml", "policy/trainer.yaml", "policy/fleet.yaml",
        "policy/trainer/prime-rl.toml",
    }  # fmt: skip
    for file in sorted(written):
        golden((tmp_path / file).read_text(), Path(file).name, GOLDEN)
    golden(done.stdout, "output.txt", GOLDEN)


@pytest.mark.parametrize(
    ("options", "image", "warns"),
    [
        (["--gpus", "0"], None, True),
        (["--gpus", "0", "--image", "registry/worker-cpu:1"], "registry/worker-cpu:1", False),
        (["--gpus", "1"], None, False),
    ],
)
@pytest.mark.usefixtures("hub")
def test_workers_on_cpus_need_an_image_for_them(tmp_path, options, image, warns):
    done = init("policy", "--model", "Qwen/Qwen3-8B", *options)
    fleet = next(yaml.safe_load_all((tmp_path / "policy/fleet.yaml").read_text()))

    assert done.exit_code == 0, done.output
    assert fleet["spec"]["engine"].get("image") == image
    assert ("spec.engine.image" in done.output.replace("\n", " ")) is warns


@pytest.mark.usefixtures("hub")
def test_a_trainer_that_sends_weights_over_nccl_needs_gpus():
    done = init("policy", "--model", "Qwen/Qwen3-8B", "--trainer", "trl", "--gpus", "0")

    assert done.exit_code == 2
    assert "NCCL" in done.output


@pytest.mark.parametrize("trainer", Trainer)
@pytest.mark.usefixtures("hub")
def test_an_external_fleet_grants_the_rl_api_its_own_secret_only(tmp_path, trainer):
    assert init("policy", "--model", "Qwen/Qwen3-8B", "--trainer", trainer).exit_code == 0
    rights = list(yaml.safe_load_all((tmp_path / "policy/trainer.yaml").read_text()))
    granted = [one for one in rights if one["metadata"]["name"] == "policy-control"]
    fleets = yaml.safe_load_all((tmp_path / "policy/fleet.yaml").read_text())
    management = next(fleets)["spec"]["weights"].get("management")

    assert [one["kind"] for one in granted] == (
        ["Role", "RoleBinding"] if management == "External" else []
    )
    page = (ROOT / "docs/reference/rl-api.md").read_text().partition("### Grant")[2]
    shown = yaml.safe_load_all(page.partition("```yaml\n")[2].partition("```")[0])
    for role, binding in [granted] if granted else []:
        assert [role, binding] == [*shown]
        assert role["rules"] == [
            {
                "apiGroups": [""],
                "resources": ["secrets"],
                "resourceNames": ["policy-admin-token"],
                "verbs": ["get"],
            }
        ]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "rlfleet-api", "namespace": "rlfleet-system"}
        ]


PORTS = [{"name": "http", "port": 8443}]


CRD = "GET /apis/apiextensions.k8s.io/v1/customresourcedefinitions/inferencefleets.rlfleet.dev"


class WithRlApis(Cluster):
    """A cluster with RL APIs: namespace and name of each, of another account, over TLS, at port 8443."""

    def __init__(self, *places: str, release: str = "ml", error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        notes = {"meta.helm.sh/release-namespace": release} if release else {}
        self.answers[CRD] = lambda *_: {"metadata": {"annotations": notes}}
        container = {"args": ["--port=8090", "--tls-cert=/tls.crt"]}
        pod = {"serviceAccountName": "caller", "containers": [container]}
        of: dict[str, list[Any]] = {namespace: [] for namespace in ("ml", "rlfleet-system")}
        for place in places:
            namespace, name = place.split("/")
            spec = {"template": {"spec": pod}}
            of.setdefault(namespace, []).append({"metadata": {"name": name}, "spec": spec})
            service = f"GET /api/v1/namespaces/{namespace}/services/{name}"
            self.answers[service] = lambda *_: {"spec": {"ports": PORTS}}
        for namespace, items in of.items():
            self.deployments(namespace, items)

    def deployments(self, namespace: str, items: list[Any]) -> None:
        def listed(params: dict[str, str], _: Any) -> Any:
            assert params == {"labelSelector": "app.kubernetes.io/name=rlfleet-api"}
            if self.error is not None:
                raise self.error
            return {"items": items}

        self.answers[f"GET /apis/apps/v1/namespaces/{namespace}/deployments"] = listed


OWN = ("ml", "caller", "https://team-api.ml.svc:8443")
SYSTEM = ("rlfleet-system", "caller", "https://api.rlfleet-system.svc:8443")
ASSUMED = ("ml", "rlfleet-api", "http://rlfleet-api.ml.svc:8090")
PAGES = ("rlfleet-system", "rlfleet-api", "http://rlfleet-api.rlfleet-system.svc:8090")
NAMED = ("ml", "team-api", "http://team-api.ml.svc:8090")


@pytest.mark.parametrize(
    ("there", "option", "expected", "says"),
    [
        (WithRlApis("ml/team-api"), None, OWN, "as the cluster says"),
        (WithRlApis("rlfleet-system/api", release=""), None, SYSTEM, "as the cluster says"),
        (WithRlApis("ml/team-api", "ml/other"), "ml/team-api", OWN, "as the cluster says"),
        (WithRlApis("ml/team-api", "ml/other"), None, ASSUMED, "namespace ml has other, team-api"),
        (WithRlApis("tenant/planted"), None, ASSUMED, "namespace ml has none"),
        (WithRlApis(), "ml/team-api", NAMED, "as --rl-api says"),
        (WithRlApis(error=Forbidden("403")), None, ASSUMED, "--rl-api"),
        (WithRlApis(release="", error=Forbidden("403")), None, PAGES, "--rl-api"),
        (WithRlApis(error=Forbidden("403")), "ml/team-api", NAMED, "as --rl-api says"),
        (NotConfigured("no kubeconfig"), "ml/team-api", NAMED, "as --rl-api says"),
    ],
)
@pytest.mark.usefixtures("hub")
def test_the_grant_and_the_address_are_those_of_the_releases_rl_api(
    monkeypatch, tmp_path, there, option, expected, says
):
    if isinstance(there, WithRlApis):
        monkeypatch.setattr(cluster, "connect", lambda *_, **__: there)

    words = ("--rl-api", option) if option else ()
    done = init("policy", "--model", "Qwen/Qwen3-8B", "--trainer", "trl", *words)

    assert done.exit_code == 0, done.output
    rights = yaml.safe_load_all((tmp_path / "policy/trainer.yaml").read_text())
    (subject,) = next(
        one["subjects"]
        for one in rights
        if (one["kind"], one["metadata"]["name"]) == ("RoleBinding", "policy-control")
    )
    namespace, account, url = expected
    assert (subject["namespace"], subject["name"]) == (namespace, account)
    assert url in (tmp_path / "policy/trainer/trl_config.py").read_text()
    assert says in " ".join(done.output.split())


@pytest.mark.parametrize("values", ["extended", "placed", "renamed", "rl-api"])
def test_the_rl_api_that_the_chart_makes_is_found(values):
    made = recorded(values)
    at = {(one["kind"], one["metadata"]["name"]): one for one in made}
    (deployment,) = (one for (kind, _), one in at.items() if kind == "Deployment" and labels(one))
    where = deployment["metadata"]
    there = WithRlApis(release=where["namespace"])
    there.deployments(where["namespace"], [deployment])
    service = at["Service", where["name"]]
    path = f"GET /api/v1/namespaces/{where['namespace']}/services/{where['name']}"
    there.answers[path] = lambda *_: service

    place = api_place.find(there, None).place

    assert (place.namespace, place.name) == (where["namespace"], where["name"])
    assert ("ServiceAccount", place.account) in at
    assert place.port in [port["port"] for port in service["spec"]["ports"]]
    assert (place.scheme == "https") == ("tls-cert" in str(deployment))


def labels(deployment: Any) -> bool:
    """Whether `init` looks for this Deployment."""
    found: dict[str, str] = deployment["metadata"]["labels"]
    return found.get("app.kubernetes.io/name") == "rlfleet-api"


@pytest.mark.parametrize("trainer", Trainer)
@pytest.mark.usefixtures("hub")
def test_what_is_written_for_each_trainer_passes_validate(monkeypatch, tmp_path, trainer):
    assert init("--model", "Qwen/Qwen3-8B", "--trainer", trainer).exit_code == 0

    empty = Cluster()
    empty.found = []
    code, out, _ = run(monkeypatch, empty, "validate", "policy", "-o", "json")

    checks = json.loads(out)["items"]
    assert (code, {one["result"] for one in checks}) == (0, {"ok"}), checks
    for document in yaml.safe_load_all((tmp_path / "policy/fleet.yaml").read_text()):
        jsonschema.validate(document["spec"], strict_schema(document["kind"]))
    (settings,) = (tmp_path / "policy/trainer").iterdir()
    text = settings.read_text()
    assert "$" not in text
    parse: Any = {".py": ast.parse, ".toml": tomllib.loads, ".yaml": yaml.safe_load}[
        settings.suffix
    ]
    assert parse(text)


@pytest.mark.parametrize("trainer", ["prime-rl", "trl"])
@pytest.mark.usefixtures("hub")
def test_workers_report_log_probabilities_as_the_importance_sampling_of_a_trainer_reads_them(
    tmp_path, trainer
):
    assert init("policy", "--model", "Qwen/Qwen3-8B", "--trainer", trainer).exit_code == 0

    example = yaml.safe_load((ROOT / f"examples/{trainer}/fleet.yaml").read_text())
    for spec in (fleet_of(tmp_path / "policy"), example["spec"]):
        assert "--logprobs-mode=processed_logprobs" in spec["engine"]["args"]


@pytest.mark.parametrize("options", [["--gpus", "0"], ["--gpus", "4"], ["--checkpoint-gb", "400"]])
@pytest.mark.usefixtures("hub")
def test_other_sizes_pass_the_rules_of_validate(tmp_path, options):
    assert init("--model", "Qwen/Qwen3-8B", *options).exit_code == 0

    given = 400_000_000_000 if "400" in options else LARGE
    assert list(of_fleet(fleet_of(tmp_path / "policy"), given)) == []


@pytest.mark.parametrize(
    ("gpus", "heads", "expected"),
    [(1, 32, (1, 1)), (8, 64, (8, 1)), (8, 12, (4, 2)), (6, 32, (2, 3)), (4, None, (4, 1)),
     (3, 32, (1, 3)), (0, 32, (1, 1))],
)  # fmt: skip
def test_tensor_parallelism_divides_the_heads_and_stages_take_the_rest(gpus, heads, expected):
    found = sizes(LARGE, gpus, heads=heads)

    assert (found.tensor_parallel, found.pipeline_parallel) == expected


@pytest.mark.parametrize(
    ("gb", "gpus"), [(1, 1), (16.4, 1), (65, 2), (141, 4), (470, 8), (1300, 32)]
)
def test_gpus_have_room_for_the_weights(gb, gpus):
    assert gpus_for(round(gb * 1e9), 80) == gpus


@given(st.integers(1, 10**13), st.integers(0, 64), st.none() | st.integers(1, 10**9))
def test_any_model_has_sizes_that_hold_two_versions(size, gpus, heads):
    found = sizes(size, gpus, heads=heads)

    assert found.tensor_parallel * found.pipeline_parallel == max(1, gpus)
    assert found.staging * 2**30 >= 2 * size
    assert found.memory > found.staging


@pytest.mark.usefixtures("hub")
def test_a_model_that_does_not_fit_into_a_node_is_refused(tmp_path):
    done = init("--model", "a/b", "--checkpoint-gb", "1300")

    assert done.exit_code == 2
    assert "32 GPUs" in done.output
    assert not (tmp_path / "policy").exists()


def test_sizes_follow_from_a_local_directory_which_needs_no_download(hub, tmp_path):
    model = tmp_path / "Model-1B"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"text_config": CONFIG}))
    with (model / "model.safetensors").open("wb") as file:
        file.truncate(100_000_000_000)
    hub.error = OSError("not asked")

    done = init("--model", str(model))

    assert done.exit_code == 0, done.output
    spec = fleet_of(tmp_path / "policy")
    assert spec["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert spec["engine"] == {"args": ["--max-model-len=16384"], "tensorParallelSize": 2}
    assert spec["model"] == {"name": "model-1b", "source": {"path": "/weights/Model-1B"}}
    assert not (tmp_path / "policy/download.yaml").exists()
    assert f"Copy {model} to /weights/Model-1B" in done.output


def test_a_model_that_cannot_be_read_has_a_size_that_the_output_explains(hub):
    hub.error = ConnectionError("no route to the Hub")

    done = init("--model", "Qwen/Qwen3-8B")

    assert done.exit_code == 0
    assert "no route to the Hub" in done.output
    assert "16.0 GB, as assumed" in done.output


def test_a_gated_model_has_its_size_though_its_configuration_is_closed(hub, tmp_path):
    hub.is_gated = True

    assert "16.4 GB" in init("--model", "meta/Llama").output
    assert "args" not in fleet_of(tmp_path / "policy")["engine"]


def test_without_huggingface_hub_the_size_is_assumed(hub, monkeypatch):
    assert hub
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)

    done = init("--model", "Qwen/Qwen3-8B")

    assert done.exit_code == 0
    assert "huggingface_hub is not installed" in done.output


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["num_attention_heads", "max_position_embeddings", "text_config"]),
                        inner, max_size=3), max_leaves=8))  # fmt: skip
def test_a_configuration_of_any_shape_can_be_read(tmp_path_factory, config):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(config))

    found = facts_of_directory(folder)

    assert all(one is None or one > 0 for one in (found.heads, found.longest))


@pytest.mark.usefixtures("hub")
def test_a_file_that_exists_is_replaced_only_with_force(tmp_path):
    assert init("--model", "Qwen/Qwen3-8B").exit_code == 0
    mine = tmp_path / "policy/fleet.yaml"
    mine.write_text("mine")
    (tmp_path / "policy/storage.yaml").unlink()

    refused = init("--model", "Qwen/Qwen3-8B")
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert mine.read_text() == "mine"
    assert not (tmp_path / "policy/storage.yaml").exists(), "a refusal writes nothing"

    assert init("--model", "Qwen/Qwen3-8B", "--force").exit_code == 0
    assert "InferenceFleet" in mine.read_text()


@pytest.mark.usefixtures("hub")
def test_an_existing_claim_takes_the_place_of_a_new_one(tmp_path):
    done = init("--model", "Qwen/Qwen3-8B", "--claim", "weights")

    assert not (tmp_path / "policy/storage.yaml").exists()
    assert "storage.yaml" not in done.output
    (volume,) = fleet_of(tmp_path / "policy")["weights"]["volumes"]
    assert volume["persistentVolumeClaim"] == {"claimName": "weights"}


@pytest.mark.usefixtures("hub")
def test_the_commands_that_are_printed_work_for_any_folder():
    done = init("--model", "Qwen/Qwen3-8B", "--folder", "my fleet")

    lines = [shlex.split(line, comments=True) for line in done.output.splitlines()]
    assert ["rlfleet", "validate", "my fleet"] in lines
    assert ["kubectl", "apply", "-f", "my fleet/fleet.yaml"] in lines
    (first,) = (line for line in lines if "my fleet/storage.yaml" in line)
    assert first[:2] == ["kubectl", "apply"]


# --- questions ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hub")
def test_without_a_terminal_it_asks_nothing(tmp_path):
    done = init(typed="Qwen/Qwen3-8B\n")

    assert done.exit_code == 2
    assert "--model" in done.output
    assert not (tmp_path / "policy").exists()


@pytest.mark.usefixtures("hub")
def test_on_a_terminal_it_asks_for_what_no_option_names(monkeypatch, tmp_path):
    monkeypatch.setattr(verb, "_is_terminal", lambda: True)

    # The model, a trainer that does not exist and one that does, the default namespace, GPUs, the class.
    done = init("math", typed="Qwen/Qwen3-8B\nray\nnemo-rl\n\n4\nnfs\n")

    assert done.exit_code == 0, done.output
    spec = fleet_of(tmp_path / "math")
    assert spec["resources"]["limits"]["nvidia.com/gpu"] == 4
    assert (tmp_path / "math/trainer/nemo-rl.yaml").exists()
    assert "storageClassName: nfs" in (tmp_path / "math/storage.yaml").read_text()
    assert "namespace: rl" in (tmp_path / "math/fleet.yaml").read_text()

    named = ("--trainer", "plain", "-n", "rl", "--gpus", "1", "--storage-class", "nfs")
    assert init("math", "--force", *named, typed="Qwen/Qwen3-8B\n").exit_code == 0
    assert init("math", "--force", "--model", "Qwen/Qwen3-8B", "--yes").exit_code == 0


@pytest.mark.parametrize(
    "options",
    [
        ["Policy"], ["a" * 46], ["policy-workers"],
        ["--model", "../x"], ["--model", "a/b; rm -rf /"], ["--model", "gpt2"], ["--model", "/"],
        ["--revision", "$(id)"], ["--namespace", "A"], ["--claim", "a b"], ["--storage-class", "-"],
        ["--trainer", "ray"], ["--gpus", "-1"],
    ],
)  # fmt: skip
@pytest.mark.usefixtures("hub")
def test_a_name_that_no_object_may_have_is_refused(tmp_path, options):
    done = init("--model", "Qwen/Qwen3-8B", *options)

    assert done.exit_code == 2, done.output
    assert [one for one in tmp_path.iterdir() if one.is_dir()] == []


# --- the download ---------------------------------------------------------------------------------

FAKE_HF = """#!/bin/sh
echo "$@" >> "$CALLS"
while [ "$1" != --local-dir ]; do shift; done
mkdir -p "$2/.cache"
echo tensors > "$2/model.safetensors"
[ -z "${BREAKS:-}" ] || exit 1
"""
FAKE_LIBRARY = """
import os
class HfApi:
    def model_info(self, *_, **__):
        names = {"model.safetensors": int(os.environ["SIZE"]), "pytorch_model.bin": 10**18}
        one = lambda name: type("File", (), {"rfilename": name, "size": names[name]})
        return type("Info", (), {"siblings": [one(name) for name in names]})
"""


@pytest.fixture
def download(tmp_path: Path) -> Any:
    """Run the script of the Job with fakes of pip and hf: exit code and output."""
    tools, programs = tmp_path / "tools", tmp_path / "programs"
    for folder in (tools, programs, tmp_path / "weights"):
        folder.mkdir()
    (tools / "huggingface_hub.py").write_text(FAKE_LIBRARY)
    for name, text in (("hf", FAKE_HF), ("pip", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    def script(**variables: str) -> tuple[int, str]:
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "REPOSITORY": "a/b",
            "REVISION": "main",
            "TARGET": str(tmp_path / "weights/b"),
            "TOOLS": str(tools),
            "CALLS": str(tmp_path / "calls"),
            "SIZE": "8",
        }
        done = subprocess.run(
            ["sh", "-c", DOWNLOAD.read_text()],
            env=environment | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.returncode, done.stdout + done.stderr

    return script


def test_a_model_appears_whole_and_readable_and_is_downloaded_once(download, tmp_path):
    code, out = download()

    assert code == 0, out
    weights = tmp_path / "weights"
    seen = {str(f.relative_to(weights)) for f in weights.rglob("*") if f.name[0] != "."}
    assert seen == {"b", "b/model.safetensors"}
    assert (weights / "b/model.safetensors").stat().st_mode & 0o444 == 0o444
    assert "--exclude *.bin" in (tmp_path / "calls").read_text()

    code, out = download()
    assert (code, (tmp_path / "calls").read_text().count("download")) == (0, 1)
    assert "is there already" in out

    code, out = download(REVISION="v2")
    assert code == 1, "another model of this name is not what was asked for"
    assert "a/b@main, not a/b@v2" in out


def test_a_download_that_breaks_is_continued_and_not_seen_before(download, tmp_path):
    assert download(BREAKS="1")[0] != 0
    assert not (tmp_path / "weights/b").exists()
    assert (tmp_path / "weights/.b.part/model.safetensors").exists()

    assert download()[0] == 0
    assert (tmp_path / "weights/b/model.safetensors").exists()


def test_a_volume_without_room_for_the_model_is_reported_before_the_download(download, tmp_path):
    code, out = download(SIZE=str(10**17))

    assert code != 0
    assert "enlarge the claim" in out
    assert not (tmp_path / "calls").exists()
