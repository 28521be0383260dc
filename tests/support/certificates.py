"""Certificates of tests."""

from __future__ import annotations

from pathlib import Path

from tests.support.programs import written_by


def issue(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    folder.mkdir(exist_ok=True)
    certificate, key = folder / "tls.crt", folder / "tls.key"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", f"subjectAltName=DNS:{name}"]
    written_by([*command, "-keyout", key, "-out", certificate])
    return certificate, key


def expire(certificate: Path, key: Path) -> None:
    """Replace a certificate by one of the same name and key that ended yesterday."""
    written_by(
        ["openssl", "x509", "-in", certificate, "-signkey", key, "-days", "-1", "-out", certificate]
    )
