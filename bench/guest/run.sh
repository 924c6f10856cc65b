#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# How long whole commands take that do nothing but `true` in a guest: what a user waits for beside the command's own time.
#
#   bench/guest/run.sh KPRISM [OTHER_KPRISM]    the second one, if there is one, is measured in turns with the first
#
# Prints the median of RUNS (7) runs of each command, after one that makes the snapshots: wall and CPU seconds, with the
# children's (QEMU), and the greatest memory of one process.
set -eu

: "${RUNS:=7}"
[ $# -gt 0 ] || { echo "usage: $0 KPRISM [OTHER_KPRISM]" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# once KPRISM LIST WORD...: one run, its figures appended to LIST.
once() {
	program=$1
	list=$2
	shift 2
	rm -rf "$work/run"
	/usr/bin/time -o "$work/time" -f '%e %U %S %M' "$program" -q "$@" >/dev/null 2>"$work/said" || {
		cat "$work/said" >&2
		exit 2
	}
	tail -n 1 "$work/time" >>"$list"
}

# median COLUMNS FILE: the middle of the sums of these columns.
median() {
	awk -v columns="$1" 'BEGIN { n = split(columns, of, "+") } { s = 0; for (i = 1; i <= n; i++) s += $of[i]; print s }' "$2" |
		sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

# row NAME WORD...
row() {
	name=$1
	shift
	number=0
	for program in $programs; do
		number=$((number + 1))
		: >"$work/list$number"
		once "$program" "$work/first" "$@"
	done
	for _ in $(seq "$RUNS"); do
		number=0
		for program in $programs; do
			number=$((number + 1))
			once "$program" "$work/list$number" "$@"
		done
	done
	number=0
	for program in $programs; do
		number=$((number + 1))
		printf '%-34s %6.2f s wall %6.2f s CPU %5d MiB  %s\n' "$name" "$(median 1 "$work/list$number")" \
			"$(median 2+3 "$work/list$number")" "$(($(median 4 "$work/list$number") / 1024))" "$program"
	done
}

programs=$*
row 'lab run' lab run -o "$work/run" -- true
row 'lab run --unobserved' lab run --unobserved -o "$work/run" -- true
row 'record durations --guest' record durations --guest -o "$work/run" -- true
row 'record durations --guest -T vfs_*' record durations --guest -T 'vfs_*' -o "$work/run" -- true
row 'record probe --guest vfs_read' record probe --guest vfs_read -o "$work/run" -- true
row 'record tlb' record tlb -o "$work/run" -- true
