#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
# Table 1 of Sharma and Dagenais, "Hardware-assisted instruction profiling and latency detection", measured: what a
# trace of each micro-benchmark costs. Sizes come from the guest lab, on any machine. The overhead in time is the
# processor's own, so it is measured here, by perf, where the processor has Intel PT.
#
# Packets are perf's default: MTC every 2^3 crystal ticks, PSB every 16 KiB, no CYC; user code only.
#
#   KPRISM=PROGRAM  kprism (default: target/release/kprism)
#   OUT=DIR         where programs and results go (default: target/flow-cost)
#   V8=no           leave out Node, which takes most of the time
set -eu

here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/flow-cost}
# The event whose overhead is measured.
event=${EVENT:-intel_pt//u}
programs="tailfact parseint fib randmatstat canny-no-optimize pisum canny-optimize sort randmatmul omega epsilon"
scripts="empty parseint fib randmatstat pisum sort randmatmul"

mkdir -p "$out"
sh "$here/build.sh" "$out/programs"

# cost NAME ARGUMENTS...: a line of the table, without its last column.
cost() {
	name=$1
	shift
	"$kprism" flow-cost -q --user --sweep mtc --mtc 3 --csv "$out/$name.csv" \
		--share "$out/programs" "$@" >"$out/$name.txt"
	awk -F, -v name="$name" -v OFS='\t' '
		NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
		NR == 2 {
			other = $at["trace_bytes"] - $at["tnt_bytes"] - $at["tip_bytes"] - $at["mtc_bytes"] - $at["psb_bytes"]
			print name, $at["instructions"], $at["trace_bytes"], $at["tnt_bytes"], $at["tip_bytes"],
				$at["mtc_bytes"], $at["psb_bytes"], other
		}' "$out/$name.csv"
}

# seconds COMMAND...: processor time of the command, run $rounds times under what the variable `under` says: the least
# of five measurements.
seconds() {
	for _ in 1 2 3 4 5; do
		$under sh -c 'i=0; while [ $i -lt '$rounds' ]; do "$@" >/dev/null; i=$((i + 1)); done; times' sh "$@" | tail -n 1
	done | awk '{
		split($1, u, /[ms]/)
		split($2, s, /[ms]/)
		time = u[1] * 60 + u[2] + s[1] * 60 + s[2]
		if (NR == 1 || time < least) least = time
	} END { printf "%.6f", least }'
}

# overhead COMMAND...: the last column.
overhead() {
	if ! [ -d "/sys/bus/event_source/devices/${event%%/*}" ]; then
		echo "needs Intel PT"
	elif ! command -v perf >/dev/null || ! command -v "$1" >/dev/null; then
		echo "needs perf and $1"
	else
		under=
		alone=$(seconds "$@")
		under="perf record -q -o $out/perf.data -e $event --"
		traced=$(seconds "$@") || traced=failed
		rm -f "$out/perf.data"
		echo "$alone $traced" | awk '$1 > 0 && $2 > 0 { printf "%.2f%%\n", 100 * ($2 - $1) / $1; next }
			{ print "too short" }'
	fi
}

rounds=50
for program in $programs; do
	line=$(cost "$program" -- "/share/$program")
	printf '%s\t%s\n' "$line" "$(overhead "$out/programs/$program")"
done >"$out/table.c"
: >"$out/table.v8"
if [ "${V8:-yes}" = yes ]; then
	rounds=4
	for script in $scripts; do
		line=$(cost "v8-$script" --package nodejs -- node "/share/$script.js")
		printf '%s\t%s\n' "$line" "$(overhead node "$out/programs/$script.js")"
	done >"$out/table.v8"
fi

awk -F'\t' '
	function row(name) {
		printf "%-18s %12d %10d %7.3f %9.1f  %5.1f%% %5.1f%% %5.1f%% %5.1f%% %5.1f%%  %s\n", name, n, bytes,
			bytes / n, 1000 * bytes / n, 100 * tnt / bytes, 100 * tip / bytes, 100 * mtc / bytes,
			100 * psb / bytes, 100 * other / bytes, $9
	}
	NR == 1 {
		printf "%-18s %12s %10s %7s %9s  %6s %6s %6s %6s %6s  %s\n", "benchmark", "instructions", "bytes",
			"B/insn", "MB/s", "TNT", "TIP", "MTC", "PSB+", "other", "overhead"
	}
	{ n = $2; bytes = $3; tnt = $4; tip = $5; mtc = $6; psb = $7; other = $8 }
	$1 == "v8-empty" { n0 = n; b0 = bytes; t0 = tnt; i0 = tip; m0 = mtc; p0 = psb; o0 = other; row($1); next }
	/^v8-/ { n -= n0; bytes -= b0; tnt -= t0; tip -= i0; mtc -= m0; psb -= p0; other -= o0 }
	{ row($1) }' "$out/table.c" "$out/table.v8"
echo "MB/s: at one instruction per nanosecond. v8: less what Node does by itself, which is v8-empty."
