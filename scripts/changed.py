#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Which tests a change concerns: `changed.py [REVISION]` prints them; tests.py --since runs them.

Input: what git says was changed since REVISION (committed or not, and new files), and the workspace as cargo knows it. Output: the packages
that were changed, those that depend on them, those whose tests start programs of theirs, and the tests that read a changed file which is in no
package (a page, a script). Tests that walk over everything (WALKS) are always chosen. A change to the workspace's own manifest, lock file
or settings chooses everything.
"""

import json
import os
import subprocess
import sys
import typing

TOP = os.path.abspath(os.path.join(os.path.dirname(__file__), ".."))
#: Tests that go over all options, crates, formats or pages: any change may concern them.
WALKS = {
    "kprism::cli", "kprism::damage", "kprism::options", "kprism::options_file", "kprism::papers", "kprism::root",
    "kprism-test::circles", "kprism-test::layers", "kprism-test::outcomes", "kprism-test::ways",
}
#: Packages whose tests start programs of others that they do not depend on: the agent, plugins of QEMU, the command line.
STARTS = {
    "kprism": {"kprism-agent", "kprism-observer", "kprism-user", "kprism-python", "kprism-sql"},
    "kprism-lab": {"kprism-agent", "kprism-observer"},
}
#: A change to one of these may change every package.
ALL = {"Cargo.toml", "Cargo.lock", ".cargo/config.toml", "rust-toolchain.toml"}


class Chosen(typing.NamedTuple):
    """What is to be run; `everything` if no choice could be made."""

    since: str
    everything: str
    packages: set
    programs: set

    def has(self, program):
        return bool(self.everything) or program.package in self.packages or program.name in self.programs | WALKS


def git(*arguments):
    return subprocess.run(["git", *arguments], cwd=TOP, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True).stdout


def base(since):
    """The commit at which this branch left `since`, so that what others did there is not taken for our change."""
    return git("merge-base", since, "HEAD").strip()


def files(since):
    """Paths of what differs from the commit, in the work tree too, and of new files. Both names of what was renamed."""
    return sorted({*git("diff", "--name-only", "--no-renames", since).splitlines(),
                   *git("ls-files", "--others", "--exclude-standard").splitlines()})


def package_name(folder):
    """The name in a manifest: without asking cargo, as its messages name packages by a text that differs between versions."""
    with open(os.path.join(folder, "Cargo.toml")) as manifest:
        return next(line.split('"')[1] for line in manifest if line.startswith("name"))


class Package(typing.NamedTuple):
    """A package of the workspace: its folder below the top, and what it depends on, in its programs and in its tests."""

    folder: str
    uses: set
    tests_use: set


def workspace(metadata, top):
    """The packages by name, of `cargo metadata`."""
    found = {}
    for package in metadata["packages"]:
        own = [dependency for dependency in package["dependencies"] if dependency.get("path")]
        folder = os.path.relpath(os.path.dirname(package["manifest_path"]), top)
        found[package["name"]] = Package(folder, {d["name"] for d in own if d["kind"] != "dev"},
                                         {d["name"] for d in own if d["kind"] == "dev"})
    return found


def owner(path, packages):
    """The package that a file is in; None: it is in none."""
    inside = [name for name, package in packages.items() if path.startswith(package.folder + "/")]
    return max(inside, key=lambda name: len(packages[name].folder), default=None)


def dependent(names, packages):
    """These packages and all that depend on them; those whose tests alone do so do not hand it on."""
    reached, grown = set(names), True
    while grown:
        more = {name for name, package in packages.items() if package.uses & reached} - reached
        reached |= more
        grown = bool(more)
    tests = {name for name, package in packages.items() if package.tests_use & reached}
    return reached | tests | {name for name, started in STARTS.items() if started & reached and name in packages}


def readers(paths, packages, top):
    """Programs whose tests name one of these files, or a folder that it is in (as the end of a text: `"fuzz/corpus"`)."""
    words = set(paths)
    for path in paths:
        while path := os.path.dirname(path):
            words.add(f'{path}"')
    chosen = set()
    for name, package in packages.items():
        for folder, _, inside in os.walk(os.path.join(top, package.folder, "tests")):
            for file in (file for file in inside if file.endswith(".rs")):
                with open(os.path.join(folder, file), errors="replace") as source:
                    text = source.read()
                if any(word in text for word in words):
                    # `tests/cli.rs` and `tests/cli/…` are one program; a folder without a file is shared by several.
                    stem = os.path.relpath(os.path.join(folder, file), os.path.join(top, package.folder, "tests"))
                    stem = os.path.splitext(stem.split("/")[0])[0]
                    own = os.path.join(top, package.folder, "tests", stem)
                    single = os.path.isfile(own + ".rs") or os.path.isfile(os.path.join(own, "main.rs"))
                    chosen.add(f"{name}::{stem}" if single else f"{name}::*")
    return chosen


def choose(since, paths, packages, top=TOP):
    """What changes to these paths concern."""
    for path in paths:
        if path in ALL:
            return Chosen(since, path, set(), set())
    owners = {path: owner(path, packages) for path in paths}
    outside = [path for path, package in owners.items() if package is None]
    programs = readers(outside, packages, top)
    names = dependent({package for package in owners.values() if package}, packages)
    names |= {program.removesuffix("::*") for program in programs if program.endswith("::*")}
    return Chosen(since, "", names, {program for program in programs if not program.endswith("::*")})


def chosen(cargo, since):
    """The choice for this checkout; says what it is."""
    since = base(since)
    paths = files(since)
    metadata = subprocess.run([*cargo, "metadata", "--no-deps", "--format-version", "1"], cwd=TOP, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, check=True)
    found = choose(since, paths, workspace(json.loads(metadata.stdout), TOP))
    print(f"{len(paths)} files changed since {since}")
    if found.everything:
        print(f"all tests, as {found.everything} changed")
    else:
        print(f"packages: {' '.join(sorted(found.packages)) or 'none'}")
        print(f"and programs: {' '.join(sorted(found.programs | WALKS))}", flush=True)
    return found


if __name__ == "__main__":
    chosen(os.environ.get("CARGO", "cargo").split(), sys.argv[1] if len(sys.argv) > 1 else "main")
