# SPDX-License-Identifier: MIT OR Apache-2.0
"""Measures commands in turns, so that a busy moment of the machine hits each of them.

In: commands. Out: of each its runs, with wall time, CPU time and memory; and figures: the middle, the least and the most of
several values.
"""

import dataclasses
import os
import statistics
import subprocess
import sys
import time


class Failed(Exception):
    """A command failed; the text says which, and what it said."""


class Skipped(Exception):
    """A section cannot be measured here; the text says why, with the remedy."""


@dataclasses.dataclass
class Run:
    """One run of a command: seconds, CPU seconds with those of its children, MiB of its largest process, and its stderr."""

    wall: float
    cpu: float
    memory: float
    said: str


def run(command, env=None):
    """Runs a command, its output thrown away."""
    start = time.monotonic()
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=os.environ | (env or {})
    )
    said = child.stderr.read().decode(errors="replace")
    # wait4 counts the descendants too that were waited for, as kprism waits for QEMU.
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - start
    if child.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit {child.returncode}\n{said[-2000:]}")
    return Run(wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, said)


def output(command, env=None):
    """The standard output of a command."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=os.environ | (env or {}))
    if done.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def turns(runs, works):
    """Does each of the works (a name to a function) so many times, in turns. Gives a name to the list of its results.

    One round more goes before, which is not counted: it makes snapshots and fills caches.
    """
    results = {name: [] for name in works}
    for turn in range(runs + 1):
        for name, work in works.items():
            result = work()
            if turn > 0:
                results[name].append(result)
            if sys.stderr.isatty():
                print(f"\r  round {turn} of {runs}: {name:60}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print(f"\r{'':90}\r", end="", file=sys.stderr, flush=True)
    return results


@dataclasses.dataclass
class Figure:
    """The middle of several values, the least and the most."""

    middle: float
    least: float
    most: float

    def text(self, digits):
        """As it stands in a table."""
        return f"{self.middle:.{digits}f} ({self.least:.{digits}f}–{self.most:.{digits}f})"


def figure(values):
    """The figure of values, of which there must be one at least."""
    values = list(values)
    return Figure(statistics.median(values), min(values), max(values))


def ratio(over, under):
    """The figure of ratios, each of two values of the same round."""
    return figure(a / b for a, b in zip(over, under, strict=True))
