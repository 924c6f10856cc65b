#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What gcov's counters cost: kernel instructions of each system call, of the same kernel with and without them, counted
# by the flow in the guest (a nanosecond is an instruction; the median, so that a tick in one call does not matter). And
# what coverage by the flow costs instead: nothing in the guest, CPU seconds and bytes outside.
#
#   overhead.sh PLAIN COUNTED   images (bzImage) of the two kernels; KPRISM is the command line, OUT a folder
set -eu

: "${KPRISM:=target/release/kprism}" "${OUT:=target/cover}"
plain=$1 counted=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$OUT/share"
cc -O2 -w -static -o "$OUT/share/calls" "$here/calls.c"

# lab NAME IMAGE OPTION [COMMAND...]: a run, and the CPU seconds of guest and recorder.
lab() {
	name=$1 image=$2 option=$3
	shift 3
	[ $# -gt 0 ] || set -- /b/calls
	/usr/bin/time -f '%U %S' -o "$OUT/$name.time" \
		"$KPRISM" lab run -q --kernel "$image" --share "$OUT/share:/b" "$option" -o "$OUT/$name" -- "$@"
}
lab plain "$plain" --no-decode
lab counted "$counted" --no-decode
lab alone "$plain" --unobserved
lab alone-counted "$counted" --unobserved
for run in plain counted; do
	"$KPRISM" report syscalls -q --json --limit 0 -i "$OUT/$run" >"$OUT/$run.json"
done

# A reading of the counters in the guest: what it adds to them, and its instructions.
"$KPRISM" lab gcov-kernel --in-place --empty -o "$OUT/idle" 2>&1 | grep 'reading the counters changes'
lab reading "$counted" --no-decode sh -c '/init gcov >/dev/null'
"$KPRISM" report tasks -q --json --limit 0 -i "$OUT/reading" >"$OUT/reading.json"

python3 - "$OUT" <<'END'
import json, math, os, sys
out = sys.argv[1]
rows = {run: {r["syscall"]: r for r in json.load(open(f"{out}/{run}.json"))["rows"]} for run in ("plain", "counted")}
shown = ("getppid pread64 pwrite64 newfstatat newfstat openat close pselect6 poll rt_sigaction kill rt_sigreturn read write sendto"
         " recvfrom mmap munmap clone vfork execve exit_group wait4").split()
ratios = []
print(f"{'system call':<14}{'calls':>6}{'plain':>10}{'gcov':>10}{'ratio':>8}")
for name in shown:
    a, b = rows["plain"].get(name), rows["counted"].get(name)
    if not a or not b:
        continue
    # A call that waits has others' instructions within its time: of those, its own.
    waits = name in ("wait4", "vfork", "clone", "execve", "exit_group")
    one = (lambda r: r["kernel_instructions"] / r["count"]) if waits else (lambda r: r["p50_ns"])
    ratios.append(one(b) / one(a))
    print(f"{name:<14}{a['count']:>6}{one(a):>10,.0f}{one(b):>10,.0f}{ratios[-1]:>8.3f}")
print(f"{'geometric mean':<40}{math.exp(sum(map(math.log, ratios)) / len(ratios)):>8.3f}")
seconds = lambda run: sum(map(float, open(f"{out}/{run}.time").read().split()))
streams = f"{out}/plain/streams"
size = sum(os.path.getsize(os.path.join(streams, name)) for name in os.listdir(streams) if name.endswith((".pt", ".map", ".dict")))
count = json.load(open(f"{out}/plain/manifest.json"))["instructions_recorded"] or 0
print(f"CPU seconds outside: plain {seconds('alone'):.2f}, with gcov {seconds('alone-counted'):.2f}, plain with the flow {seconds('plain'):.2f}")
reading = sum(r["user_instructions"] + r["kernel_instructions"] for r in json.load(open(f"{out}/reading.json"))["rows"])
print(f"a reading of the counters in the guest: {reading:,} instructions, with its shell")
print(f"the flow: {count:,} instructions in {size:,} bytes")
END
