#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Measures in one run, so that ratios mean something on a busy machine too. Called by `make bench`.
#
#   1. the observer: the same guest command with and without it, in turns; wall-clock time from the moment
#      the guest takes the command to its end, best of RUNS
#      and whole commands whose guest does nothing
#   2. the flow decoder against Intel's (libipt's block decoder, its fastest) on the stream just recorded,
#      and on the real captures in KPRISM_TEST_DATA, if that is set
#   3. perf on the same stream, where it is installed: all errors, of which there are none, so that it decodes
#      everything and prints nothing
#   4. durations: what measuring a function adds to each call, against function_graph, kprobe events and bpftrace, and
#      the paper's tables and figures; reading a trace.dat, against `trace-cmd report`
#   5. probes: what each hit costs, against bpftrace and ftrace, and the paper's tables
#   6. TLB misses: what each method costs, against DynamoRIO's simulator and valgrind's lackey
#   7. if KPRISM_LIBXDC names a checkout of github.com/nyx-fuzz/libxdc, also against that on the captures (of which
#      it reads those without RET compression and timing), and on its own ones if KPRISM_LIBXDC_TRACES names a
#      checkout of github.com/nyx-fuzz/libxdc_experiments
set -eu

: "${CARGO:=cargo}" "${RUNS:=5}"
target=${CARGO_TARGET_DIR:-$PWD/target}
kprism=$target/release/kprism
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Without --lib and --bins, --examples would be all that is built.
$CARGO build --release --workspace --lib --bins --examples >&2
make -sC tests/oracle OUT="$PWD/target" >&2

# seconds NAME OPTION... -- CMD...: time of the command in the guest.
seconds() {
	name=$1
	shift
	"$kprism" -v lab run -o "$work/$name" --no-decode "$@" 2>&1 >/dev/null |
		sed -n 's/.*took the command after \([0-9.]*\) s, ended after \([0-9.]*\) s.*/\1 \2/p' |
		awk '{ print $2 - $1 }'
}

slowdown() {
	title=$1
	shift
	best_off= best_on=
	for _ in $(seq "$RUNS"); do
		off=$(seconds off --unobserved -- "$@")
		on=$(seconds on -- "$@")
		best_off=$(printf '%s\n%s\n' "$off" "${best_off:-$off}" | sort -g | head -n 1)
		best_on=$(printf '%s\n%s\n' "$on" "${best_on:-$on}" | sort -g | head -n 1)
	done
	peak=$(sed -n 's/.*"peak_bytes": \([0-9]*\).*/\1/p' "$work/on/streams/counts.json")
	awk -v t="$title" -v a="$best_off" -v b="$best_on" -v p="$peak" 'BEGIN {
		printf "%-34s %7.3f s %7.3f s   %.2fx   %5.1f MiB\n", t, a, b, b / a, p / 1048576 }'
}

"$kprism" -q lab prepare
echo "observer, best of $RUNS             without      with   ratio   its memory"
slowdown "demo workload" sh -c 'for i in 1 2 3 4 5 6 7 8 9 10; do ls /bin | sed s/a/z/g; done'
mv "$work/on" "$work/demo"
slowdown "system calls (dd, 1 byte each)" dd if=/dev/zero of=/dev/null bs=1 count=100000
slowdown "user code (sha256sum of 8 MB)" sh -c 'head -c 8000000 /dev/zero | sha256sum'
echo
RUNS=$RUNS sh bench/guest/run.sh "$kprism"

echo
echo "flow decoder, the demo's stream"
RUNS=$RUNS "$target/release/examples/decode_bench" "$work/demo"
echo "libipt on the same"
"$PWD/target/ptoracle" --block-bench "$RUNS" "$work/demo/streams" 0

# cpu_ms COMMAND...: CPU time of a command in ms.
cpu_ms() {
	sh -c '"$@" >/dev/null 2>&1; times' sh "$@" | awk 'NR == 2 {
		split($1, u, "[ms]"); split($2, s, "[ms]")
		print 1000 * (60 * (u[1] + s[1]) + u[2] + s[2]) }'
}

if command -v perf >/dev/null && "$kprism" -q export -i "$work/demo" -o "$work/demo.perf.data" 2>/dev/null; then
	echo "perf script on the same, less its start"
	for _ in $(seq "$RUNS"); do
		start=$(cpu_ms perf script -i "$work/demo.perf.data" --symfs "$work/demo.perf.data/symfs" --no-itrace)
		all=$(cpu_ms perf script -i "$work/demo.perf.data" --symfs "$work/demo.perf.data/symfs" --itrace=e)
		echo "$all $start"
	done | awk '!n++ || $1 - $2 < best { best = $1 - $2 } END { printf "  errors only      %9.3f ms\n", best }'
fi

echo
echo "instructions that measuring adds to a call of getppid's function"
KPRISM=$kprism OUT=$work/func sh bench/func/run.sh
echo
KPRISM=$kprism OUT=$work/paper sh bench/func/paper.sh
if command -v trace-cmd >/dev/null; then
	echo
	KPRISM=$kprism RUNS=$RUNS sh bench/ftrace/run.sh
fi

echo
KPRISM=$kprism OUT=$work/probe sh bench/probe/run.sh

echo
KPRISM=$kprism OUT=$target/tlb RUNS=2 python3 bench/tlb/run.py

# As folders with NAME.pt and xpages.txt, or packed.
mkdir "$work/captures"
if [ -d "${KPRISM_TEST_DATA:-}" ]; then
	find "$KPRISM_TEST_DATA" -name '*.tar.xz' -exec tar -xf {} -C "$work/captures" ';'
fi

# own NAME PAGES TRACE: a capture of libxdc's, whose code is in PAGES.addr and PAGES.dump.
own() {
	mkdir "$work/captures/$1"
	cp "$KPRISM_LIBXDC_TRACES/test_data/$3" "$work/captures/$1/$1.pt"
	split -b 4096 -a 6 -d "$KPRISM_LIBXDC_TRACES/test_data/$2.dump" "$work/captures/$1/page."
	# Addresses with low bits stand for pages that could not be read.
	od -An -v -t x8 -w8 "$KPRISM_LIBXDC_TRACES/test_data/$2.addr" |
		awk '$1 ~ /000$/ { printf "0 %s 4096 page.%06d\n", $1, NR - 1 }' >"$work/captures/$1/xpages.txt"
}

if [ -d "${KPRISM_LIBXDC_TRACES:-}" ]; then
	own mruby mruby/data mruby/trace
	own qemu qemu/page_cache qemu/trace1
	own unzip Unzip/data Unzip/trace
	own foo foo/data foo/trace
fi

lists=$(find ${KPRISM_TEST_DATA:+"$KPRISM_TEST_DATA"} "$work/captures" -name xpages.txt | sort)
[ -n "$lists" ] || exit 0

# All in turns, so that a busy moment hits each; the best of all rounds counts.
echo
echo "captures, ms of CPU time          libipt   libxdc    count  profile | warm: libxdc    count"
for list in $lists; do
	folder=$(dirname "$list")
	for stream in "$folder"/*.pt; do
		for _ in $(seq "$RUNS"); do
			RUNS=2 "$target/release/examples/decode_bench" "$folder"
			"$PWD/target/ptoracle" --block-bench 1 --raw "$stream" --pages "$list" || true
			if [ -n "${KPRISM_LIBXDC:-}" ]; then
				"$PWD/target/xdcbench" 2 "$stream" "$list" 2>/dev/null || true
			fi
		done | awk -v name="$(basename "$folder")" '
			function least(what, ms) { if (!(what in best) || ms < best[what]) best[what] = ms }
			function show(what) { return what in best ? sprintf("%8.2f", best[what]) : "       -" }
			/count, cold/ { least("count", $3) }
			/count, warm/ { least("warm", $3) }
			/profile, cold/ { least("profile", $3) }
			/^libipt blocks/ { least("libipt", $4 / 1e6); branches = $14 }
			/^libxdc.* success/ { least("libxdc", $3 / 1e6); least("libxdc warm", $5 / 1e6) }
			END {
				printf "%-18s %9d br. %s %s %s %s |       %s %s\n", name, branches, show("libipt"),
					show("libxdc"), show("count"), show("profile"), show("libxdc warm"), show("warm")
			}'
	done
done
