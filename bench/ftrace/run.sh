#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# How fast a trace.dat is read, by kprism and by `trace-cmd report`, in turns on one machine.
#
#   bench/ftrace/run.sh [FILE.dat…]    the samples in KPRISM_TEST_DATA if no file is named
#
# Prints for each file the best wall time of RUNS (5) runs of
#   trace-cmd report        all events as text, to /dev/null
#   kprism import           all events to calls, tables written
# and what cargo bench measures of the reader alone.
set -eu

cd "$(dirname "$0")/../.."
: "${CARGO:=cargo}" "${RUNS:=5}"
command -v trace-cmd >/dev/null || { echo "bench: needs trace-cmd (scripts/setup.sh test)" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $# -eq 0 ]; then
	samples=${KPRISM_TEST_DATA:?names no folder of samples, and no file was named}/ftrace/ftrace-samples.tar.xz
	tar -xf "$samples" -C "$work"
	set -- "$work"/dat/*.dat
fi
if [ -z "${KPRISM:-}" ]; then
	$CARGO build --release -q -p kprism
	KPRISM=${CARGO_TARGET_DIR:-target}/release/kprism
fi

# best COMMAND...: the least wall time in ms.
best() {
	for _ in $(seq "$RUNS"); do
		start=$(date +%s%N)
		"$@" >/dev/null 2>&1
		echo $(($(date +%s%N) - start))
	done | sort -n | awk 'NR == 1 { printf "%.1f", $1 / 1e6 }'
}

for file; do
	theirs=$(best trace-cmd report -i "$file")
	ours=$(best "$KPRISM" -q import "$file" -o "$work/run")
	echo "$(basename "$file"): trace-cmd report $theirs ms, kprism import $ours ms"
done
$CARGO bench -q -p kprism-ftrace --bench parse -- "$@"
