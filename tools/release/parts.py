"""The parts of a release. Each function writes its files into the folder of the release."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

import envs
from images.build import PACKAGES, build, name_of, save
from release.programs import ReleaseError, helm, oras, run
from release.source import Source

NAMESPACE = "rlfleet-system"
CHART = "charts/rlfleet"
_CONFIGURATION = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def distributions(source: Source, target: Path) -> None:
    """Both distributions, as sdist and wheel, in `python/`."""
    for project in (source.folder, source.folder / "client"):
        run([sys.executable, "-m", "hatchling", "build", "-d", target / "python"], cwd=project)


def chart(source: Source, target: Path) -> None:
    """The chart in `chart/`: as an archive, and as the OCI artefact that `oras cp --from-oci-layout` pushes."""
    made = target / "chart"
    run([helm(), "package", CHART, "--destination", made], cwd=source.folder)
    metadata = yaml.safe_load((source.folder / CHART / "Chart.yaml").read_text())
    configuration = source.folder / "chart.json"
    configuration.write_text(json.dumps(metadata))
    created = datetime.fromtimestamp(source.seconds, UTC).isoformat().replace("+00:00", "Z")
    run(
        [
            *(oras(), "push", "--oci-layout", f"oci:{source.version}"),
            *("--config", f"{configuration}:{_CONFIGURATION}", "--disable-path-validation"),
            *("--annotation", f"org.opencontainers.image.created={created}"),
            f"rlfleet-{source.version}.tgz:{_CONTENT}",
        ],
        cwd=made,
    )


def install_manifest(source: Source, target: Path) -> None:
    """`install.yaml`: the namespace, the CRDs and the operator, for `kubectl apply --server-side`."""
    made = run([helm(), "template", "rlfleet", CHART, "--namespace", NAMESPACE], cwd=source.folder)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    (target / "install.yaml").write_text(f"---\n{yaml.safe_dump(namespace)}{made}")


def image_archives(
    source: Source, target: Path, images: Sequence[str], *, mirror: str, base: str, registry: str
) -> None:
    """The images as OCI archives in `images/`, built from the files of the commit, with the chart's names.

    `base`: as for `build`. `registry`: of the chart; empty for its default.
    """
    if not images:
        return
    build(images, mirror=mirror, base=base, context=source.folder)
    (target / "images").mkdir()
    for image in images:
        archive = target / "images" / f"rlfleet-{image}-{source.version}.tar"
        save(image, archive, registry or "docker.io")
        print(name_of(image), file=sys.stderr)


def bills_of_materials(source: Source, target: Path) -> None:
    """The packages of each image in the form of CycloneDX. They are pinned, so each image holds these."""
    program = envs.interpreter_of("sbom").with_name("cyclonedx-py")
    (target / "sbom").mkdir()
    for image, packages in PACKAGES.items():
        listed = source.folder / "requirements" / f"{packages}.txt"
        made = target / "sbom" / f"{image}.cdx.json"
        command: list[str | Path] = [
            program,
            "requirements",
            listed,
            "--output-reproducible",
            "--of",
            "JSON",
        ]
        run([*command, "-o", made], cwd=source.folder)


def site(source: Source, target: Path) -> None:
    """The site of docs/ as an archive."""
    made = source.folder / "build" / "release-site"
    python = envs.interpreter_of("docs")
    configuration = "tools/site/mkdocs.yml"
    build_site: list[str | Path] = [
        python,
        "-m",
        "mkdocs",
        "build",
        "--quiet",
        "--strict",
        "-f",
        configuration,
    ]
    run([*build_site, "-d", made], cwd=source.folder)
    shutil.make_archive(str(target / f"rlfleet-site-{source.version}"), "gztar", made)


def notes(source: Source, target: Path) -> None:
    """The notes of the release, cut from the changelog."""
    text = source.notes
    if not text:
        raise ReleaseError(f"the section of {source.version} in CHANGELOG.md is empty: fill it")
    (target / "notes.md").write_text(text + "\n")
