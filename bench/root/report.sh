#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# What the first report of a long recording costs, which decodes all of it: a systemd boot and a load of SECONDS of the guest's clock. Wall
# and CPU time and memory of `kprism report`. The image is that of scripts/systemd-image.sh. With 7 seconds it is some ten billion instructions.
# usage: report.sh [KPRISM] [OUT] [SECONDS]
set -eu
kprism=${1:-kprism} out=${2:-target/long-run} seconds=${3:-7}
image=${XDG_CACHE_HOME:-$HOME/.cache}/kprism/tools/systemd-image/disk.raw
[ -f "$image" ] || { echo "report.sh: no $image: sh scripts/systemd-image.sh makes it" >&2; exit 1; }
# The guest's clock goes by instructions: a second of a busy processor is a billion, less the rounds of string instructions.
load='end=$(($(cut -d. -f1 /proc/uptime) + '$seconds'))
while [ "$(cut -d. -f1 /proc/uptime)" -lt "$end" ]; do ls -lR /usr/share /etc /var | sort | sed s/a/b/g >/dev/null; done'
/usr/bin/time -f 'recorded in %e s, %U + %S CPU s' "$kprism" lab run -q --root "$image" --boot --no-decode -o "$out" -- sh -c "$load"
/usr/bin/time -f 'first report: %e s wall, %U + %S CPU s, %M KiB at the peak' "$kprism" report tasks -i "$out" --limit 5
/usr/bin/time -f 'second report: %e s wall, %U + %S CPU s, %M KiB at the peak' "$kprism" report tasks -q -i "$out" --limit 1 >/dev/null
du -sh "$out"/streams "$out"/tables
uptime
