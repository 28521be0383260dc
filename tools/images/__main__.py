"""`python -m images build | try`: build the images of the Dockerfile, and run them."""

from __future__ import annotations

import argparse
import sys

from images.build import TARGETS, BuildError, build, name_of
from images.trial import try_out


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m images", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build", help="build them with buildah")
    building.add_argument("targets", nargs="*", default=TARGETS, metavar="TARGET")
    building.add_argument("--mirror", default="", help="address of a Debian mirror")
    commands.add_parser(
        "try", help="run built images on a development cluster: a fleet and 2 versions"
    )
    parsed = parser.parse_args()
    try:
        if parsed.command == "try":
            try_out()
        else:
            build(parsed.targets, mirror=parsed.mirror)
            print("\n".join(name_of(target) for target in parsed.targets))
    except BuildError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
