#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What recording costs a boot of a disk image with systemd: CPU time and time of `kprism lab run --boot`, recorded and not, pairs in one
# loop; and the time of a command from the snapshot. The image is that of scripts/systemd-image.sh.
# usage: boot.sh [KPRISM] [PAIRS]
set -eu
kprism=${1:-kprism} pairs=${2:-3}
image=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/tools/systemd-image/disk.raw
[ -f "$image" ] || { echo "boot.sh: no $image: sh scripts/systemd-image.sh makes it" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$kprism" lab prepare -q --root "$image"
python3 - "$kprism" "$image" "$work" "$pairs" <<'PYTHON'
import json, resource, statistics, subprocess, sys, time
kprism, image, work, pairs = sys.argv[1:]

def run(*options):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [kprism, "lab", "run", "-q", "--root", image, "-o", f"{work}/run", *options, "--", "true"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu, time.monotonic() - start

kinds = {
    "boot, not recorded": ["--boot", "--unobserved"],
    "boot, recorded": ["--boot", "--no-decode"],
    "from the snapshot, not recorded": ["--unobserved"],
    "from the snapshot, recorded and decoded": [],
}
times = {kind: [] for kind in kinds}
for _ in range(int(pairs)):
    for kind, options in kinds.items():
        times[kind].append(run(*options))
print("| command to its end | CPU s | wall s |\n|---|---:|---:|")
medians = {}
for kind, all in times.items():
    medians[kind] = [statistics.median(column) for column in zip(*all)]
    print(f"| {kind} | {medians[kind][0]:.1f} | {medians[kind][1]:.1f} |")
bare, recorded = medians["boot, not recorded"], medians["boot, recorded"]
print(f"\nrecorded against not: CPU {recorded[0] / bare[0]:.2f}, wall {recorded[1] / bare[1]:.2f}; medians of {pairs}")
PYTHON
