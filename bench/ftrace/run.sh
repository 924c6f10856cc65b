#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# How fast a trace.dat is read, by kprism and by `trace-cmd report`, in turns on one machine.
#
#   bench/ftrace/run.sh [FILE.dat…]    without a file: every call of `find /sys -xdev` in a guest, recorded by kprism
#                                      and made a trace.dat by trace-cmd, and the samples in KPRISM_TEST_DATA
#
# Prints for each file the least CPU time of RUNS (5) runs of
#   trace-cmd report        all events as text, to /dev/null
#   kprism import           all events to calls, tables written
# and what cargo bench measures of the reader alone, and of the reader and the calls.
set -eu

cd "$(dirname "$0")/../.."
: "${CARGO:=cargo}" "${RUNS:=5}"
command -v trace-cmd >/dev/null || { echo "bench: needs trace-cmd (scripts/setup.sh test)" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "${KPRISM:-}" ]; then
	$CARGO build --release -q -p kprism -p kprism-agent -p kprism-tracefs
	KPRISM=${CARGO_TARGET_DIR:-target}/release/kprism
fi
if [ $# -eq 0 ]; then
	"$KPRISM" -q record durations --guest -o "$work/find" --buffer-size 64M -- find /sys -xdev >/dev/null
	from=$work/find/streams/ftrace
	# trace-cmd looks for these where tracefs has them.
	cp "$from/header_page" "$from/header_event" "$from/events/"
	trace-cmd restore -c -t "$from" -k "$work/find/symbols/kallsyms" -o "$work/head.dat" >/dev/null 2>&1
	trace-cmd restore -i "$work/head.dat" -o "$work/find.dat" "$from"/cpu*.raw >/dev/null 2>&1
	set -- "$work/find.dat"
	samples=${KPRISM_TEST_DATA:-}/ftrace/ftrace-samples.tar.xz
	if [ -f "$samples" ]; then
		tar -xf "$samples" -C "$work"
		set -- "$@" "$work"/dat/*.dat
	fi
fi

# best COMMAND...: the least CPU time in ms.
best() {
	for _ in $(seq "$RUNS"); do
		sh -c '"$@" >/dev/null 2>&1; times' sh "$@" | awk 'NR == 2 {
			split($1, u, "[ms]"); split($2, s, "[ms]"); printf "%.1f\n", 1000 * (60 * (u[1] + s[1]) + u[2] + s[2]) }'
	done | sort -g | head -n 1
}

for file; do
	theirs=$(best trace-cmd report -i "$file")
	ours=$(best "$KPRISM" -q import "$file" -o "$work/run")
	echo "$(basename "$file"), $(($(stat -c %s "$file") / 1048576)) MiB: trace-cmd report $theirs ms, kprism import $ours ms"
done
$CARGO bench -q -p kprism-ftrace --bench parse -- "$@"
$CARGO bench -q -p kprism-durations --bench calls -- "$@"
