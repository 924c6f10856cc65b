# SPDX-License-Identifier: MIT OR Apache-2.0
"""What recording a guest costs: the observer, whole commands, a boot, and the first report of a long run."""

import json
import os
import re
import shutil
import subprocess

from . import measure
from .measure import figure, ratio
from .tables import table

DEMO = ["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done"]
WORKLOADS = {
    "ten times `ls /bin \\| sed s/a/z/g`": DEMO,
    "`dd bs=1 count=100000` (200,000 system calls)": ["dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count=100000"],
    "`sha256sum` of 8 MB": ["sh", "-c", "head -c 8000000 /dev/zero | sha256sum"],
}
TOOK = re.compile(r"took the command after ([0-9.]+) s, ended after ([0-9.]+) s")


def observer(place):
    """The same command with the observer and without: the time from the moment the guest takes it to the end of QEMU."""

    def once(folder, command, option):
        done = measure.run([place.kprism, "-v", "lab", "run", "-o", folder, option, "--", *command])
        begun, ended = map(float, TOOK.search(done.said).groups())
        return ended - begun, done.cpu

    rows = []
    for name, command in WORKLOADS.items():
        on, off = place.work / "on", place.work / "off"
        times = measure.turns(place.runs, {
            "without": lambda command=command: once(off, command, "--unobserved"),
            "with": lambda command=command: once(on, command, "--no-decode"),
        })
        (bare, bare_cpu), (seen, seen_cpu) = (list(zip(*times[kind])) for kind in ["without", "with"])
        peak = json.loads((on / "streams/counts.json").read_text())["peak_bytes"]
        rows.append([
            name, figure(bare).text(2), figure(seen).text(2), ratio(seen, bare).text(2), ratio(seen_cpu, bare_cpu).text(2),
            f"{peak / 2**20:.0f}",
        ])
    head = ["workload", "without, s", "with, s", "ratio", "ratio of CPU time, whole command", "observer's memory, MiB"]
    return table(head, rows)


def nothing(place):
    """Whole commands that do nothing but `true` in a guest."""
    kinds = [
        ["lab", "run"],
        ["lab", "run", "--unobserved"],
        ["record", "durations", "--guest"],
        ["record", "durations", "--guest", "-T", "vfs_*"],
        ["record", "probe", "--guest", "vfs_read"],
        ["record", "tlb"],
    ]
    out = place.work / "nothing"
    works = {
        " ".join(kind): lambda kind=kind: measure.run([place.kprism, "-q", *kind, "-o", out, "--", "true"]) for kind in kinds
    }
    rows = []
    for name, runs in measure.turns(place.runs, works).items():
        columns = [(one.wall, one.cpu, one.memory) for one in runs]
        wall, cpu, memory = map(figure, zip(*columns))
        rows.append([f"`{name}`", wall.text(2), cpu.text(2), f"{memory.most:.0f}"])
    return table(["command", "wall s", "CPU s", "most memory of one process, MiB"], rows)


def systemd_image():
    """The disk image with systemd, that of scripts/systemd-image.sh."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    image = os.path.join(cache, "kprism/tools/systemd-image/disk.raw")
    if not os.path.exists(image):
        raise measure.Skipped("no image with systemd: sh scripts/systemd-image.sh makes it")
    return image


def boot(place):
    """A boot of a disk image with systemd, recorded and not."""
    image = systemd_image()
    kinds = {
        "boot, not recorded": ["--boot", "--unobserved"],
        "boot, recorded": ["--boot", "--no-decode"],
        "from the snapshot, not recorded": ["--unobserved"],
        "from the snapshot, recorded and decoded": [],
    }
    command = [place.kprism, "-q", "lab", "run", "--root", image, "-o", place.work / "boot"]
    works = {
        kind: lambda options=options: measure.run([*command, *options, "--", "true"]) for kind, options in kinds.items()
    }
    runs = measure.turns(min(place.runs, 3), works)
    rows = [
        [kind, figure(one.cpu for one in all).text(1), figure(one.wall for one in all).text(1)] for kind, all in runs.items()
    ]
    bare, recorded = runs["boot, not recorded"], runs["boot, recorded"]
    rows.append([
        "boot, recorded against not", ratio([one.cpu for one in recorded], [one.cpu for one in bare]).text(2),
        ratio([one.wall for one in recorded], [one.wall for one in bare]).text(2),
    ])
    return table(["command to its end", "CPU s", "wall s"], rows)


def long(place):
    """The first report of a long run, which decodes all of it, and the second, which reads tables."""
    image, out = systemd_image(), place.work / "long"
    # The guest's clock goes by instructions: a second of a busy processor is a billion, less the rounds of string instructions.
    load = """end=$(($(cut -d. -f1 /proc/uptime) + 5))
while [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ]; do ls -lR /usr/share /etc /var | sort | sed s/a/b/g >/dev/null; done"""
    command = ["lab", "run", "-q", "--root", image, "--boot", "--no-decode", "-o", out, "--", "sh", "-c", load]
    recorded = measure.run([place.kprism, *command])
    report = [place.kprism, "report", "tasks", "-q", "-i", out, "--limit", "1"]
    kinds = {"first": [], "second": []}
    for _ in range(min(place.runs, 3)):
        shutil.rmtree(out / "tables", ignore_errors=True)
        for all in kinds.values():
            all.append(measure.run(report))
    size = int(subprocess.run(["du", "-sm", out / "streams"], capture_output=True, text=True).stdout.split()[0])
    insns = sum(cpu["instructions"] for cpu in json.loads((out / "streams/counts.json").read_text())["vcpus"])
    rows = [["recording", f"{recorded.wall:.1f}", f"{recorded.cpu:.1f}", f"{recorded.memory:.0f}"]]
    for kind, all in kinds.items():
        wall, cpu, memory = (figure(values) for values in zip(*[(one.wall, one.cpu, one.memory) for one in all]))
        rows.append([f"{kind} report", wall.text(1), cpu.text(1), f"{memory.most:.0f}"])
    head = [f"{insns / 1e9:.1f} billion instructions, {size} MiB of packets", "wall s", "CPU s", "memory at the peak, MiB"]
    return table(head, rows)
