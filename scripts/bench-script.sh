#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What a line of `kprism script` costs, beside a line of `perf script`, in one run on one machine.
#
# kprism: a run of the demo workload (RUN, recorded if it is not there), all lines of each kind to /dev/null. The
# time is of the whole command: reading the run, symbols, decoding, text.
#
# perf: samples of the whole system while kprism works (event cpu-clock), printed with the same fields as an
# instruction's line but the instruction: comm, tid, cpu, time in ns, ip, symbol+offset, dso. perf needs most of a
# second to begin, so two recordings of different length are printed, and the cost of a line is the difference of
# their times by that of their lines: nothing of perf's start is counted. Nor does perf decode anything here.
# Both write to a file in memory or to /dev/null; best of RUNS.
set -eu

: "${CARGO:=cargo}" "${RUNS:=3}" "${RUN:=}"
target=${CARGO_TARGET_DIR:-$PWD/target}
kprism=$target/release/kprism
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

$CARGO build --release -p kprism -p kprism-observer -p kprism-agent >&2
if [ -z "$RUN" ]; then
	RUN=$work/run
	"$kprism" -q lab run -o "$RUN" -- \
		sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done' >/dev/null
fi

# best COMMAND...: least seconds of RUNS, its output thrown away.
best() {
	for _ in $(seq "$RUNS"); do
		from=$(date +%s.%N)
		"$@" >/dev/null 2>&1
		to=$(date +%s.%N)
		awk -v a="$from" -v b="$to" 'BEGIN { print b - a }'
	done | sort -g | head -n 1
}

echo "kprism script, best of $RUNS       lines     time   ns a line"
for kind in insns branches calls syscalls; do
	lines=$("$kprism" script -i "$RUN" "$kind" | wc -l)
	time=$(best "$kprism" script -i "$RUN" "$kind")
	awk -v k="$kind" -v n="$lines" -v t="$time" 'BEGIN { printf "%-28s %11d %7.3f s %8.0f\n", k, n, t, t * 1e9 / n }'
	[ "$kind" = insns ] && ours=$(awk -v n="$lines" -v t="$time" 'BEGIN { print t * 1e9 / n }')
done

command -v perf >/dev/null || { echo "perf is not installed: nothing to compare with"; exit 0; }
echo
echo "perf script, best of $RUNS         lines     time"
for rounds in 1 4; do
	perf record -q -a -e cpu-clock -F 25000 -o "$work/$rounds.data" -- \
		sh -c "for i in $(seq -s ' ' "$rounds"); do '$kprism' script -i '$RUN' >/dev/null; done" >&2
	set -- perf script -i "$work/$rounds.data" --ns -F comm,tid,cpu,time,ip,sym,symoff,dso
	lines=$("$@" 2>/dev/null | wc -l)
	time=$(best "$@")
	printf '%-28s %11d %7.3f s\n' "samples, recording $rounds" "$lines" "$time"
	echo "$lines $time" >>"$work/perf"
done
awk -v ours="$ours" '
	NR == 1 { n = $1; t = $2 }
	NR == 2 { p = ($2 - t) * 1e9 / ($1 - n)
		printf "a line more: %.0f ns in perf script, %.0f ns in kprism script insns with everything: %.0f times less\n",
			p, ours, p / ours }' "$work/perf"
