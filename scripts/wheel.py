#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Writes the wheel: the Python package, the library, the programs. Called by wheel.sh.

    wheel.py BUILT INSTALLED OUT [GUEST]    prints the wheel's path

The programs lie in the package as they do on a system, so that they find each other: `kprism/bin/kprism`, `kprism/lib/kprism/…`,
`kprism/share/kprism/guest.tar`. Files are in order of their names, with one time (SOURCE_DATE_EPOCH).
"""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib
import zipfile

TOP = pathlib.Path(__file__).resolve().parent.parent


def glibc(files):
    """The newest version of glibc that these need: (2, 34)."""
    needed = {(2, 17)}
    for file in files:
        said = subprocess.run(["readelf", "--version-info", file], check=True, capture_output=True, text=True).stdout
        needed |= {tuple(map(int, version.split("."))) for version in re.findall(r"GLIBC_(\d+\.\d+)", said)}
    return max(needed)


def metadata(project, version):
    """The core metadata, version 2.4."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {version}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        f"Requires-Python: {project['requires-python']}",
        "Description-Content-Type: text/markdown",
    ]
    for extra, packages in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {package} ; extra == '{extra}'" for package in packages]
    return "\n".join(lines) + "\n\n" + (TOP / "docs/python.md").read_text()


def main():
    built, installed, out = map(pathlib.Path, sys.argv[1:4])
    project = tomllib.loads((TOP / "python/pyproject.toml").read_text())["project"]
    version = tomllib.loads((TOP / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    files = {}
    for path in (TOP / "python/kprism").iterdir():
        if path.suffix in (".py", ".pyi") or path.name == "py.typed":
            files[f"kprism/{path.name}"] = (path.read_bytes(), 0o644)
    files["kprism/_kprism.abi3.so"] = ((built / "libkprism_python.so").read_bytes(), 0o755)
    for path in installed.rglob("*"):
        name = path.relative_to(installed)
        # Man pages and completions have no place that a wheel could put them to.
        if path.is_file() and name.parts[0] in ("bin", "lib"):
            files[f"kprism/{name}"] = (path.read_bytes(), path.stat().st_mode & 0o777)
    for guest in sys.argv[4:]:
        files["kprism/share/kprism/guest.tar"] = (pathlib.Path(guest).read_bytes(), 0o644)
    shared = [built / name for name in ("libkprism_python.so", "libkprism_observer.so", "libkprism_user.so")]
    tag = "cp39-abi3-manylinux_%d_%d_x86_64" % glibc(shared)
    info = f"kprism-{version}.dist-info"
    scripts = "".join(f"{name} = {place}\n" for name, place in project["scripts"].items())
    wheel = f"Wheel-Version: 1.0\nGenerator: kprism\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files[f"{info}/METADATA"] = (metadata(project, version).encode(), 0o644)
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    files[f"{info}/entry_points.txt"] = (f"[console_scripts]\n{scripts}".encode(), 0o644)
    for path in (installed / "share/doc/kprism").iterdir():
        if path.name.startswith(("LICENSE", "THIRD")):
            files[f"{info}/licenses/{path.name}"] = (path.read_bytes(), 0o644)
    record = []
    for name, (content, _) in sorted(files.items()):
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}\n")
    record.append(f"{info}/RECORD,,\n")
    files[f"{info}/RECORD"] = ("".join(record).encode(), 0o644)

    # The oldest time that a zip can hold is that of 1980.
    when = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), 315532800))[:6]
    path = out / f"kprism-{version}-{tag}.whl"
    part = path.with_suffix(".part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        # RECORD comes last, as the standard wants it.
        for name in sorted(files, key=lambda name: (name.startswith(info), name.endswith("/RECORD"), name)):
            content, mode = files[name]
            entry = zipfile.ZipInfo(name, when)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            archive.writestr(entry, content)
    part.replace(path)
    print(path)


main()
