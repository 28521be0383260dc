"""Programs that Go cannot build, taken from the machine's distribution without installing them.

kube-proxy drives the `nft` program, and runc links libseccomp. Where the machine lacks them,
apt-get downloads them, with its own lists and archives below the cache folder, and dpkg unpacks them
there. The system's packages, lists, caches and locks stay untouched.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
from pathlib import Path

from devcluster.errors import BuildError, CommandError
from devcluster.paths import programs_folder
from devcluster.processes import run

# Hooks run after apt-get would write to the system's own folders (catalogues, caches). The
# sandbox user of apt cannot read a cache folder below root's home.
_APT_CONFIGURATION = """\
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear DPkg::Pre-Install-Pkgs;
Dir::State::lists "{folder}/lists/";
Dir::Cache "{folder}/cache/";
Dir::Cache::archives "archives/";
Debug::NoLocking "true";
APT::Sandbox::User "root";
APT::Keep-Downloaded-Packages "true";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::Languages "none";
"""

# The unpacked libraries come before the machine's own, found from the place of the wrapper.
_WRAPPER = """\
#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")
LD_LIBRARY_PATH="{libraries}" exec "$root/{program}" "$@"
"""


def can_fetch() -> bool:
    """Whether this machine has the clients."""
    return shutil.which("apt-get") is not None and shutil.which("dpkg") is not None


def fetched_folder(package: str) -> Path:
    """Where an unpacked package is; keyed by the distribution, whose libraries it needs."""
    release = Path("/etc/os-release")
    text = release.read_bytes() if release.exists() else b""
    key = hashlib.sha256(package.encode() + b"\0" + text).hexdigest()[:16]
    return programs_folder() / f"{package}-{key}"


def installed(package: str, program: str) -> Path:
    """A program of a package: the machine's own, else the unpacked one, fetched the first time.

    Args:
        package: Its name in the distribution.
        program: Path of the program inside the package.

    Errors:
        BuildError: the package is not available.
    """
    if found := shutil.which(Path(program).name):
        return Path(found)
    target = fetched_folder(package)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            unfinished = target.with_suffix(".unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            fetch(package, unfinished, program=program)
            unfinished.rename(target)
    return target / "bin" / Path(program).name


def fetch(package: str, target: Path, *, program: str = "") -> None:
    """Unpack a package and what it needs beyond the machine's own into the folder `target`.

    With `program` (a path inside the package) also make `bin/<its name>`, which runs it with the
    unpacked libraries.

    Errors:
        BuildError: the package is not available.
    """
    apt = target / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True)
    settings = apt / "apt.conf"
    settings.write_text(_APT_CONFIGURATION.format(folder=apt))
    install = ("install", "--download-only", "--yes", "--no-install-recommends", package)
    try:
        run(["apt-get", "-c", settings, "update"], timeout_seconds=600.0)
        run(["apt-get", "-c", settings, *install], timeout_seconds=600.0)
        for archive in sorted((apt / "cache/archives").glob("*.deb")):
            run(["dpkg", "-x", archive, target])
    except CommandError as error:
        raise BuildError(
            f"the distribution's package {package} cannot be fetched: {error}",
            remedy=f"install it: apt-get install {package}",
        ) from error
    shutil.rmtree(apt)
    if program:
        (target / "bin").mkdir(exist_ok=True)
        wrapper = target / "bin" / Path(program).name
        folders = sorted({found.parent.relative_to(target) for found in target.rglob("*.so*")})
        libraries = ":".join(f"$root/{folder}" for folder in folders)
        wrapper.write_text(_WRAPPER.format(libraries=libraries, program=program))
        wrapper.chmod(0o755)
