"""Writes the files of stand-ins for three package registries: `demo` 1.0.0 for pip, npm and Cargo."""

import base64
import hashlib
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

root, origin = Path(sys.argv[1]), sys.argv[2]


def write(path, content):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_bytes(content if isinstance(content, bytes) else content.encode())


def tarball(directory, files):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"{directory}/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()


def pip():
    wheel = "demo-1.0.0-py3-none-any.whl"
    info = "demo-1.0.0.dist-info"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("demo.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"demo.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    write(f"pip/files/{wheel}", packed.getvalue())
    write("pip/simple/demo/index.html", f'<!DOCTYPE html><a href="/pip/files/{wheel}">{wheel}</a>')


def npm():
    package = {"name": "demo", "version": "1.0.0"}
    packed = tarball("package", {"package.json": json.dumps(package)})
    write("npm/files/demo-1.0.0.tgz", packed)
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed).digest()).decode()
    dist = {"tarball": f"{origin}/npm/files/demo-1.0.0.tgz", "integrity": integrity}
    versions = {"1.0.0": {**package, "dist": dist}}
    write("npm/demo", json.dumps({"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": versions}))


def cargo():
    manifest = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n'
    packed = tarball("demo-1.0.0", {"Cargo.toml": manifest, "src/lib.rs": ""})
    write("cargo/files/demo/1.0.0/download", packed)
    write("cargo/config.json", json.dumps({"dl": f"{origin}/cargo/files"}))
    entry = {"name": "demo", "vers": "1.0.0", "deps": [], "features": {}, "yanked": False}
    write("cargo/de/mo/demo", json.dumps({**entry, "cksum": hashlib.sha256(packed).hexdigest()}) + "\n")


pip()
npm()
cargo()
