#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures kprism beside its peers, and writes the tables of docs/benchmarks.md. Called by `make bench`.

    python3 bench/run.py [--only NAME,…] [--runs N] [--profile PROFILE] [--print]

Everything is measured in turns, so ratios mean something on a busy machine too; CPU time is less moved by others than wall
time. Below each table stands what it was measured on. A section that cannot be measured here, for want of a peer or of an
image, keeps its table; at the end it is named with the reason.
"""

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from page import decode, guest, measure, tables

SECTIONS = {
    "observer": guest.observer,
    "nothing": guest.nothing,
    "boot": guest.boot,
    "long": guest.long,
    "ftrace": decode.ftrace,
    "decoder": decode.decoder,
    "libxdc": decode.libxdc,
    "script": decode.script,
}
PAGE = pathlib.Path("docs/benchmarks.md")


@dataclasses.dataclass
class Place:
    """Where the programs are, where files can be made, and how often each thing is measured."""

    kprism: pathlib.Path
    examples: pathlib.Path
    oracle: pathlib.Path
    work: pathlib.Path
    runs: int


def build(profile):
    """Builds what is measured. Gives the folder of its programs."""
    cargo = os.environ.get("CARGO", "cargo").split()
    # Without --lib and --bins, --examples would be all that is built.
    command = [*cargo, "build", "--profile", profile, "--workspace", "--lib", "--bins", "--examples"]
    subprocess.run(command, check=True, stdout=sys.stderr)
    subprocess.run(["make", "-sC", "tests/oracle", f"OUT={pathlib.Path.cwd() / 'target'}"], check=True, stdout=sys.stderr)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute()
    return target / profile


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,…", help=f"measure these sections only, of {', '.join(SECTIONS)}")
    parser.add_argument("--runs", type=int, default=7, help="how often each thing is measured [default: 7]")
    parser.add_argument("--profile", default="release", help="Cargo's profile [default: release]")
    parser.add_argument("--print", action="store_true", help="print the tables, and leave the page alone")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else list(SECTIONS)
    unknown = [name for name in wanted if name not in SECTIONS]
    if unknown or options.runs < 1:
        parser.error(f"no section {unknown[0]}" if unknown else "--runs must be at least 1")
    os.chdir(pathlib.Path(__file__).parent.parent)
    folder = build(options.profile)
    page, skipped = PAGE.read_text(), []
    with tempfile.TemporaryDirectory() as work:
        place = Place(
            folder / "kprism", folder / "examples", pathlib.Path("target/ptoracle").absolute(), pathlib.Path(work), options.runs
        )
        for name in wanted:
            begun = time.monotonic()
            try:
                text = f"{SECTIONS[name](place)}\n\n{tables.stamp(options.runs)}"
            except measure.Skipped as why:
                skipped.append(f"{name}: {why}")
                continue
            print(f"{name} ({time.monotonic() - begun:.0f} s)\n\n{text}\n", flush=True)
            if not options.print:
                # After each section, so that a stopped run keeps what it measured.
                page = tables.replace(page, name, text)
                PAGE.write_text(page)
    for line in skipped:
        print(f"not measured: {line}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except measure.Failed as failed:
        sys.exit(f"bench: {failed}")
    except KeyboardInterrupt:
        sys.exit(130)
