#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# jump.sh: nanoseconds of CPU time that a probe adds to each hit of a process on this machine whose condition is false, by a trap
# (uprobe) and by a jump (`--jump only`); for the jump those of a true one too, which takes both. In turn, RUNS times (5); the
# least, the median and the greatest.
here=$(cd "$(dirname "$0")" && pwd)
: "${KPRISM:=target/release/kprism}" "${RUNS:=5}"
n=${N:-200000}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cc -O2 -g -o "$work/hit" "$here/hit.c"

# added NAME JUMP ARGS: with the probe, less without.
added() {
	base=$("$work/hit" work "$n" $3)
	"$KPRISM" record probe -q 'work if 2*counter1 + 3*counter2 < 0' --jump "$2" -o "$work/run" --buffer-size 64M \
		-- "$work/hit" work "$n" $3 >"$work/out" 2>"$work/said" || [ $? = 1 ] || cat "$work/said" >&2
	echo "$1|$(($(cat "$work/out") - base))" >>"$work/all"
}
for _ in $(seq "$RUNS"); do
	added 'false, a trap' never '1 1'
	added 'false, a jump' only '1 1'
	added 'true, a trap' never '-1 0'
	added 'true, a jump and a trap' only '-1 0'
done
for name in 'false, a trap' 'false, a jump' 'true, a trap' 'true, a jump and a trap'; do
	grep "^$name|" "$work/all" | cut -d'|' -f2 | sort -n | awk -v name="$name" '
		{ v[NR] = $1 } END { printf "%-26s %5d ns (%d to %d)\n", name, v[int((NR + 1) / 2)], v[1], v[NR] }'
done
