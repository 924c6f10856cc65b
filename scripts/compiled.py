#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps what cargo compiled for a later checkout at the same path: `compiled.py take`, then build, then `compiled.py keep`.

Continuous integration makes a new clone each time, and cargo, which goes by times, would compile all of it again: half an hour of two
CPUs. So `keep` puts the target folder into the user's cache, with the SHA-256 and the time of each source file. `take` lays it out in a new
checkout, and gives each file *whose bytes are the same* its earlier time: cargo finds it unchanged. A file with other bytes keeps the
time of the checkout, which is later, and so does a folder in which other names stand (build scripts watch folders). What is kept depends
on the checkout's path, which programs of tests contain, and on the compiler.

What compilers made (`deps`) is shared by hard links, as they replace their output and never write into it. All else is copied: cargo, build
scripts and the suite's own scripts write into files that are there.
Nothing is taken if a target folder is there. The cache holds the last MOST checkouts.
"""

import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parents[1]
#: Checkouts whose compilation is kept.
MOST = 2
#: Parts of the target folder that cargo makes anew or that are no compilation.
LEFT_OUT = {"incremental", "tmp", "gcov-small"}
#: Folder of what compilers made.
REPLACED = "deps"
SOURCES = "sources.json"


def cache():
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "kprism" / "compiled"


def place(top):
    """The folder of this checkout and compiler."""
    compiler = subprocess.run(["rustc", "-vV"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True).stdout
    return cache() / hashlib.sha256(f"{top}\n{compiler}".encode()).hexdigest()[:24]


def listed(top):
    """The checkout's files as git knows them, and the folders that they are in."""
    out = subprocess.run(["git", "ls-files", "-z"], cwd=top, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, text=True).stdout
    files = [name for name in out.split("\0") if name and os.path.isfile(top / name) and not os.path.islink(top / name)]
    folders = {str(parent) for name in files for parent in pathlib.PurePath(name).parents}
    return files, sorted(folders)


def identity(path):
    """What a file holds, or which names a folder has."""
    if path.is_dir():
        names = sorted(name for name in os.listdir(path) if name not in (".git", "target", "__pycache__"))
        return "names " + hashlib.sha256("\0".join(names).encode()).hexdigest()
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lay(source, target):
    """Copies a tree with its times: by hard links where files are replaced and not written into."""
    def copy(file, to):
        # A compiler writes the list of what it read in place.
        if REPLACED in pathlib.PurePath(file).parts and not file.endswith(".d") and not os.path.islink(file):
            try:
                return os.link(file, to)
            except OSError:
                pass  # The cache is on another file system.
        return shutil.copy2(file, to, follow_symlinks=False)

    shutil.copytree(source, target, symlinks=True, copy_function=copy, ignore=lambda _, names: LEFT_OUT & set(names))


def keep(top):
    built = top / "target"
    if not built.is_dir():
        return "nothing was compiled"
    files, folders = listed(top)
    sources = {name: [identity(top / name), os.stat(top / name).st_mtime_ns] for name in [*files, *folders]}
    kept = place(top)
    fresh = kept.with_name(f"{kept.name}.{os.getpid()}")
    fresh.mkdir(parents=True)
    try:
        lay(built, fresh / "target")
        (fresh / SOURCES).write_text(json.dumps(sources))
        shutil.rmtree(kept, ignore_errors=True)
        fresh.rename(kept)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    others = sorted((one for one in cache().iterdir() if one != kept), key=lambda one: one.stat().st_mtime, reverse=True)
    for other in others[MOST - 1:]:
        shutil.rmtree(other, ignore_errors=True)
    return f"kept the compilation in {kept}"


def take(top):
    kept = place(top)
    if (top / "target").exists():
        return "a target folder is there already"
    if not (kept / SOURCES).is_file():
        return "no compilation of this checkout's path is kept: all is compiled"
    sources = json.loads((kept / SOURCES).read_text())
    lay(kept / "target", top / "target")
    files, folders = listed(top)
    same = 0
    # Folders last: a file's time does not touch its folder's, but a copy might.
    for name in [*files, *folders]:
        known = sources.get(name)
        if known and identity(top / name) == known[0]:
            os.utime(top / name, ns=(known[1], known[1]))
            same += name not in folders
    return f"took the compilation of {kept}: {same} of {len(files)} files are as they were"


def main():
    ways = {"take": take, "keep": keep}
    if sys.argv[1:] not in [[way] for way in ways]:
        sys.exit("usage: compiled.py take | keep")
    try:
        print(f"compiled: {ways[sys.argv[1]](TOP)}")
    except (OSError, subprocess.CalledProcessError, ValueError, LookupError, TypeError, AttributeError) as error:
        # It only saves time: without it, cargo compiles.
        print(f"compiled: {error}")


if __name__ == "__main__":
    main()
