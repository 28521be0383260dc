"""`python -m release --version 0.1.0`: make the files of a release in dist/."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from envs import REPOSITORY
from images.build import TARGETS, BuildError
from release import parts, statement
from release.programs import ReleaseError
from release.source import check_out, write_addresses
from release_addresses import UnknownPlaceError


def main() -> None:
    """Read the command line, and make the files."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--repository", default="", help="its address on the forge, for links")
    parser.add_argument("--registry", default="", help="of the images and of the chart")
    parser.add_argument("--images", type=_names, default=TARGETS, metavar="TARGET,TARGET")
    parser.add_argument("--base", default="", help="of the images, for all of their platforms")
    parser.add_argument("--mirror", default="", help="address of a Debian mirror")
    parser.add_argument("--target", type=Path, default=REPOSITORY / "dist")
    parser.add_argument("--dirty", action="store_true", help="with changes that no commit has")
    given = parser.parse_args()
    words = {
        "repository": given.repository,
        "registry": given.registry,
        "images": ",".join(given.images),
        "base": given.base,
        "mirror": given.mirror,
    }
    try:
        make(given, words)
    except (ReleaseError, BuildError, UnknownPlaceError) as error:
        sys.exit(f"release: {error}")
    print(given.target)


def make(given: argparse.Namespace, words: dict[str, str]) -> None:
    """Make the files.

    Errors: ReleaseError, BuildError, UnknownPlaceError.
    """
    target: Path = given.target
    with tempfile.TemporaryDirectory(prefix="rlfleet-release-") as folder:
        source = check_out(Path(folder, "source"), given.version, dirty=given.dirty)
        write_addresses(source, given.repository, given.registry)
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        parts.distributions(source, target)
        parts.chart(source, target)
        parts.install_manifest(source, target)
        parts.site(source, target)
        parts.notes(source, target)
        parts.bills_of_materials(source, target)
        parts.image_archives(
            source,
            target,
            given.images,
            mirror=given.mirror,
            base=given.base,
            registry=given.registry,
        )
        statement.write(source, target, {name: word for name, word in words.items() if word})


def _names(text: str) -> tuple[str, ...]:
    """Names with commas or spaces between them. Of none there is the word `none`."""
    return tuple(name for name in text.replace(",", " ").split() if name != "none")


if __name__ == "__main__":
    main()
