#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Prints the licences of the crates that are linked into kprism's programs.

    python3 scripts/notices.py        their names, versions and licences, then each licence text once

Reads `cargo metadata` and the crates' own files. Build-time and test-only crates are left out.
"""

import json
import pathlib
import subprocess
import sys

ROOTS = {"kprism", "kprism-agent", "kprism-observer", "kprism-user"}
TEXTS = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE")


def linked(metadata):
    """Packages that the roots link, by id: ordinary dependencies, without those of procedural macros."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    todo = [i for i, package in packages.items() if package["name"] in ROOTS and package["source"] is None]
    seen = set()
    while todo:
        name = todo.pop()
        if name in seen or any("proc-macro" in target["kind"] for target in packages[name]["targets"]):
            continue
        seen.add(name)
        for dependency in nodes[name]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return [packages[name] for name in seen if packages[name]["source"] is not None]


def main():
    command = ["cargo", "metadata", "--locked", "--format-version=1", "--filter-platform=x86_64-unknown-linux-gnu"]
    crates = linked(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    crates.sort(key=lambda crate: (crate["name"], crate["version"]))
    print("kprism's programs contain the Rust standard library (MIT OR Apache-2.0), and these crates. The programs that")
    print("are linked statically contain the GNU C library (LGPL-2.1-or-later) too: kprism's source builds them anew with another.\n")
    texts, bare = {}, []
    for crate in crates:
        print(f"{crate['name']} {crate['version']}: {crate['license'] or 'see its text below'}")
        folder = pathlib.Path(crate["manifest_path"]).parent
        files = sorted(file for file in folder.iterdir() if file.is_file() and file.name.upper().startswith(TEXTS))
        for file in files:
            text = file.read_text(encoding="utf-8", errors="replace").strip()
            texts.setdefault(text, []).append(f"{crate['name']} {crate['version']}")
        if not files:
            bare.append(f"{crate['name']} {crate['version']}")
    if bare:
        print(f"\nWithout a licence text of their own in the published crate: {', '.join(bare)}.")
    for text, users in sorted(texts.items(), key=lambda item: item[1]):
        print(f"\n{'-' * 100}\n{', '.join(dict.fromkeys(users))}\n\n{text}")
    return 0


sys.exit(main())
