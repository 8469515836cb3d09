"""Certificates for brokers and clients of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, timeout=60)


def authority(folder: Path, name: str) -> None:
    files = ["-keyout", f"{name}-key.pem", "-out", f"{name}.pem"]
    openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}", *files)


def certificate(folder: Path, name: str, ca: str, extension: str, key: list[str]) -> None:
    openssl(folder, "req", "-new", "-newkey", "rsa:2048", *key, "-subj", f"/CN={name}", "-keyout", f"{name}-key.pem", "-out", f"{name}.csr")
    (folder / f"{name}.ext").write_text(extension)
    signing = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}-key.pem", "-CAcreateserial", "-extfile", f"{name}.ext"]
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-days", "2", "-out", f"{name}.pem", *signing)


def keystore(folder: Path) -> dict[str, str]:
    """A certificate for a broker from a new authority; the broker settings that use it."""
    authority(folder, "ca")
    certificate(folder, "broker", "ca", "subjectAltName=IP:127.0.0.1", ["-nodes"])
    store = folder / "keystore.pem"
    store.write_text((folder / "broker-key.pem").read_text() + (folder / "broker.pem").read_text())
    return {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
