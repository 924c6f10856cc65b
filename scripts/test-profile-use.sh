#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# A kernel compiled with what it did (docs/pgo.md): counts a load, builds the same kernel without counters, without and with
# the profile (each once, about as long as the counting one), runs the load on both, and compares instructions: the
# program's own must be the same within 1 %, the kernel's fewer. ONLY names the folders of the source in which the profile is used.
# A step that is done is not done again: the profile and kernels are kept, and a kernel that is half built is built on. LIMIT is
# the time that this call may spend on compiling, in seconds; at its end it stops with code 124, and the same call goes on.
# Called by `make test-profile-use`, which has built the programs; KPRISM is the command line, OUT a folder for the
# profile: the kernel that was built with it is found again as long as it is there.
set -eu

: "${KPRISM:=target/checked/kprism}" "${ONLY=kernel fs mm lib}" "${OUT:=target/profile-use}"
mkdir -p "$OUT"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

LOAD='ls -l /usr/bin >/dev/null
cat /proc/[0-9]*/stat >/dev/null
i=0; while [ $i -lt 10 ]; do /bin/true; i=$((i+1)); done
dd if=/dev/zero of=/tmp/f bs=4k count=100 2>/dev/null
dd if=/tmp/f of=/dev/null bs=512 2>/dev/null
(echo b; echo a; cat /tmp/f) | sort >/dev/null
rm /tmp/f'

if [ ! -d "$OUT/trained.gcda" ]; then
	"$KPRISM" lab gcov-kernel -q -o "$work/trained" -- sh -c "$LOAD"
	# Whole or not there: the kernels are named after it.
	rm -rf "$OUT/new.gcda"
	"$KPRISM" export --relative -i "$work/trained" -o "$OUT/new.gcda"
	mv "$OUT/new.gcda" "$OUT/trained.gcda"
fi
begun=$(date +%s)
only=
for folder in $ONLY; do only="$only --only $folder"; done
image() {
	limit=
	if [ -n "${LIMIT:-}" ]; then
		left=$((begun + LIMIT - $(date +%s)))
		limit="--build-limit $((left > 1 ? left : 1))"
	fi
	# shellcheck disable=SC2086 # several words
	{ code=0; "$KPRISM" lab gcov-kernel $limit "$@" || code=$?; echo "$code" >"$work/code"; } 2>&1 | tee "$work/said" >&2
	code=$(cat "$work/code")
	[ "$code" = 0 ] || return "$code"
	sed -n 's/.*ready: [^,]*, //p' "$work/said"
}
plain=$(image --uncounted)
# shellcheck disable=SC2086 # several words
guided=$(image --profile-use "$OUT/trained.gcda" $only)

for kernel in plain guided; do
	eval "path=\$$kernel"
	"$KPRISM" lab run -q --kernel "$path" -o "$work/$kernel" -- sh -c "$LOAD"
	"$KPRISM" report tasks -i "$work/$kernel" --json --limit 0 >"$work/$kernel.tasks"
	"$KPRISM" report syscalls -i "$work/$kernel" --json --limit 0 >"$work/$kernel.syscalls"
done
python3 - "$work/plain" "$work/guided" <<'END'
import json, sys

def rows(run, table):
    return json.load(open(f"{run}.{table}"))["rows"]

plain, guided = sys.argv[1:3]
old = {row["syscall"]: row for row in rows(plain, "syscalls")}
new = {row["syscall"]: row for row in rows(guided, "syscalls")}
print("system call         calls    plain   guided   (median, ns of one instruction each)")
for name in sorted(old, key=lambda name: -old[name]["kernel_instructions"])[:12]:
    if name in new:
        a, b = old[name]["p50_ns"], new[name]["p50_ns"]
        print(f"{name:16} {old[name]['count']:8} {a:8} {b:8}  {100 * (b / a - 1):+.1f}%")
sums = [{key: sum(row[key] for row in rows(run, "tasks")) for key in ("user_instructions", "kernel_instructions")}
        for run in (plain, guided)]
for key in sums[0]:
    a, b = sums[0][key], sums[1][key]
    print(f"{key}: {a} plain, {b} guided, {100 * (b / a - 1):+.2f}%")
# What /proc tells differs in length from run to run.
own = [run["user_instructions"] for run in sums]
assert abs(own[1] / own[0] - 1) < 0.01, "not the same program"
assert sums[1]["kernel_instructions"] < sums[0]["kernel_instructions"], "the profile has no effect"
END
