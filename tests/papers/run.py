#!/usr/bin/env python3
# SPDX-License-Identifier: MIT OR Apache-2.0
"""Runs the commands of docs/papers.md, row by row, as they stand there, and compares the figures that the page states.

    run.py [--long] [--sample] [--seed N] [PART]...     PART: of a row's name, as "paper 3" or "figure 8"

Input: the page, and the program named by KPRISM (target/release/kprism), which comes first in PATH. Each row has a scratch folder of its own that
looks like the checkout, with the demo's run in it, as after `./x demo`. A row holds if each of its commands succeeds and prints
something, and each number with a comma in its last column (`reproduced: 303,633 misses`) is in what they print, to the percent.

Benchmarks, and what builds kernels or fetches gigabytes, run only with --long; --sample takes rows in the order of a seed, by
default the day's, until its time is over. Both say what they leave out. Exits with 1 if a row does not hold.
"""

import argparse
import datetime
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import typing

TOP = pathlib.Path(__file__).resolve().parents[2]
DEMO = "for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done"
#: Commands that take from many minutes to hours, or fetch gigabytes.
LONG = ("make ", "sh bench/", "kprism lab gcov-kernel")
#: Commands that take minutes: not in the sample.
SLOW = ("kprism flow-cost", "kprism impact", "lttng", "ptat")
#: Commands that go on until they are interrupted, and what they say when they are up.
SERVES = {"kprism gdbserver": "target remote"}
#: A row of the sample begins only within this time; with the longest row, the sample takes about a minute.
SAMPLE_S = 30
#: Counts of a guest are the same each time, but another package of its kernel or C library moves addresses, and with them some misses.
TOLERANCE = 0.01
#: No command may take longer; with --long, benchmarks may.
LONGEST_S = {False: 900, True: 4 * 3600}


class Row(typing.NamedTuple):
    """A row of the page: its name with the paper's number, its commands, and the figures of its last column."""

    name: str
    commands: list
    figures: list

    def has(self, kinds):
        return any(kind in command if kinds is SLOW else command.startswith(kind) for command in self.commands for kind in kinds)


def rows(page):
    """Rows with commands, in the page's order."""
    found, paper = [], 0
    for line in page.splitlines():
        if match := re.match(r"## Paper (\d+)", line):
            paper = int(match[1])
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and not line.startswith("| item") and paper:
            item, _, command, _, state = cells
            commands = re.findall(r"`([^`]*)`", command)
            if commands:
                found.append(Row(f"paper {paper}, {item}", commands, re.findall(r"\b\d{1,3}(?:,\d{3})+\b", state)))
    return found


def scratch(folder, demo):
    """Makes the folder look like the checkout after `./x demo`."""
    for entry in TOP.iterdir():
        if entry.name not in (".git", "target", "kprism.data", "report.html", "kprism.impact"):
            (folder / entry.name).symlink_to(entry)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", TOP / "target")).resolve()
    (folder / "target").symlink_to(target)
    subprocess.run(["cp", "-r", "--reflink=auto", demo, folder / "kprism.data"], check=True)


def serve(command, up, folder, environment, output):
    """Starts a server, waits until it says that it is up, and interrupts it. Gives why that was not so, or None."""
    child = subprocess.Popen(["sh", "-c", f"exec {command}"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                             stderr=subprocess.STDOUT)
    limit = time.monotonic() + 60
    try:
        while time.monotonic() < limit and child.poll() is None:
            if up in pathlib.Path(output.name).read_text(errors="replace"):
                return None
            time.sleep(0.05)
        return f"it ended with {child.returncode}" if child.returncode is not None else f"after 60 s it has not said '{up}'"
    finally:
        child.send_signal(signal.SIGINT)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()


def what_lacks(command):
    """Why a command cannot run on this machine; None: it can."""
    if command.startswith("kprism gdbserver --kernel"):
        if os.geteuid() != 0:
            return "needs root"
        if not pathlib.Path("/sys/kernel/btf/vmlinux").is_file():
            return "needs the running kernel's types (BTF)"
        if not pathlib.Path("/sys/kernel/tracing/events").is_dir():
            return "needs tracefs, as root has it outside of containers"
    return None


def states(line, figure):
    """Whether a line has this number, within TOLERANCE, with commas or without, and not as a part of another."""
    wanted = int(figure.replace(",", ""))
    numbers = re.findall(r"(?<![\d,.])\d+(?:,\d{3})*(?![\d,.]*\d)", line)
    return any(abs(int(number.replace(",", "")) - wanted) <= TOLERANCE * wanted for number in numbers)


def run(row, folder, environment, long):
    """Runs a row's commands. Gives what is wrong, or None."""
    printed = folder / "printed"
    for command in row.commands:
        before = printed.stat().st_size if printed.exists() else 0
        with open(printed, "ab") as output:
            up = next((up for start, up in SERVES.items() if command.startswith(start)), None)
            if up:
                why = serve(command, up, folder, environment, output)
            else:
                try:
                    code = subprocess.run(["sh", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                          stderr=subprocess.STDOUT, timeout=LONGEST_S[long]).returncode
                    why = f"it ended with {code}" if code else None
                except subprocess.TimeoutExpired:
                    why = f"it was not over after {LONGEST_S[long]} s"
        # What only builds is silent.
        if not why and printed.stat().st_size == before and not command.startswith("sh scripts/"):
            why = "it printed nothing"
        if why:
            with open(printed, "rb") as output:
                output.seek(max(before, printed.stat().st_size - 2000))
                return f"{command}\n    {why}: {output.read().decode(errors='replace').strip()}"
    missing = set(row.figures)
    if missing:
        with open(printed, errors="replace") as output:
            for line in output:
                missing -= {figure for figure in missing if states(line, figure)}
    return f"{', '.join(sorted(missing))}: on the page, and not in what its commands print" if missing else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    kprism = pathlib.Path(os.environ.get("KPRISM", TOP / "target/release/kprism")).resolve()
    environment = os.environ | {"KPRISM": str(kprism), "PATH": f"{kprism.parent}:{os.environ['PATH']}"}
    chosen = rows((TOP / "docs/papers.md").read_text())
    if given.parts:
        chosen = [row for row in chosen if any(part in row.name for part in given.parts)]
        if not chosen:
            sys.exit(f"no row of docs/papers.md is called so: {' '.join(given.parts)}")
    left_out = {}
    if not given.long:
        left_out["benchmarks, and what builds kernels (make test-papers LONG=1)"] = [row for row in chosen if row.has(LONG)]
        chosen = [row for row in chosen if not row.has(LONG)]
    if given.sample:
        seed = int(datetime.date.today().strftime("%Y%m%d")) if given.seed is None else given.seed
        print(f"seed {seed}", flush=True)
        left_out["minutes each, so not in a sample"] = [row for row in chosen if row.has(SLOW)]
        chosen = [row for row in chosen if not row.has(SLOW)]
        random.Random(seed).shuffle(chosen)
    began, ran, failed = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="kprism-papers-") as place:
        demo = pathlib.Path(place) / "demo"
        subprocess.run([kprism, "lab", "run", "-q", "-o", demo, "--", "sh", "-c", DEMO], stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, check=True)
        for number, row in enumerate(chosen):
            if given.sample and time.monotonic() - began > SAMPLE_S:
                left_out["not reached in the sample's time"] = chosen[number:]
                break
            lacks = next(filter(None, map(what_lacks, row.commands)), None)
            if lacks:
                left_out.setdefault(lacks, []).append(row)
                continue
            folder = pathlib.Path(place) / f"row{number}"
            folder.mkdir()
            scratch(folder, demo)
            start = time.monotonic()
            fault = run(row, folder, environment, given.long)
            ran += 1
            failed += fault is not None
            print(f"{'ok' if fault is None else 'FAILED':6} {time.monotonic() - start:5.0f} s  {row.name}", flush=True)
            if fault:
                print(f"    {fault}", flush=True)
            subprocess.run(["rm", "-rf", folder], check=True)
    for why, which in left_out.items():
        if which:
            print(f"left out, {len(which)} rows: {why}: {'; '.join(row.name for row in which)}")
    print(f"{ran} rows with commands tried, {failed} failed")
    # Nothing tried is no success, but where the machine lacks what all of them need.
    return 1 if failed or (not ran and not left_out) else 0


if __name__ == "__main__":
    sys.exit(main())
