#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What gcov's counters add to the latency of a real-time kernel: wake-ups by a timer (cyclictest, Debian's rt-tests) and the
# intervals with interrupts off, preemption off and a spinlock held, of the same PREEMPT_RT kernel with and without them, in
# instructions (a nanosecond of the guest is one).
#
#   jitter.sh PLAIN COUNTED   folders of the two built kernels; KPRISM is the command line, OUT a folder to work in, TIMES
#                             the number of wake-ups (3000), RECORDED that of the run whose flow is recorded (300)
set -eu

: "${KPRISM:=target/release/kprism}" "${OUT:=target/cover}" "${TIMES:=3000}" "${RECORDED:=300}"
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$OUT/share"
cp "$here/jitter-guest.sh" "$OUT/share/"

for kernel in plain counted; do
	# lab RUN TIMES LOAD [OPTION...]: prints the latencies.
	tree=$1
	lab() {
		run=$1 times=$2 load=$3
		shift 3
		"$KPRISM" lab run -q --tree "$tree" --package rt-tests --share "$OUT/share:/b" "$@" -o "$OUT/$run" -- \
			sh /b/jitter-guest.sh "$load" "$(printf %06d "$times")" | tr -d '\r'
	}
	for load in idle load; do
		lab jitter-run "$TIMES" $load --unobserved >"$OUT/jitter-$kernel-$load"
	done
	# Recorded or not, a run has the same latencies, as far as it goes.
	lab "jitter-$kernel" "$RECORDED" load >"$OUT/jitter-$kernel-recorded"
	head -n "$RECORDED" "$OUT/jitter-$kernel-load" | cmp - "$OUT/jitter-$kernel-recorded"
	"$KPRISM" report delta -q --json -i "$OUT/jitter-$kernel" >"$OUT/jitter-$kernel.json"
	shift
done

python3 - "$OUT" <<'END'
import json, sys
out = sys.argv[1]
kernels = ("plain", "counted")
print(f"{'latency of a wake-up':<24}{'wake-ups':>9}{'':>10}{'plain':>10}{'gcov':>10}{'ratio':>8}")
for load in ("idle", "load"):
    values = [sorted(map(int, open(f"{out}/jitter-{kernel}-{load}"))) for kernel in kernels]
    if not all(values) or len(values[0]) != len(values[1]):
        sys.exit(f"jitter.sh: cyclictest printed {len(values[0])} and {len(values[1])} values")
    at = lambda share: lambda all: all[min(len(all) - 1, int(len(all) * share))]
    for name, of in (
        ("least", lambda all: all[0]),
        ("mean", lambda all: sum(all) / len(all)),
        ("p50", at(0.5)),
        ("p99", at(0.99)),
        ("p99.9", at(0.999)),
        ("longest", lambda all: all[-1]),
        ("spread", lambda all: all[-1] - all[0]),
    ):
        a, b = map(of, values)
        print(f"{load:<24}{len(values[0]):>9}{name:>10}{a:>10,.0f}{b:>10,.0f}{b / a:>8.3f}")
print()
runs = [json.load(open(f"{out}/jitter-{kernel}.json")) for kernel in kernels]
print(f"{'interval, load':<16}{'plain: count':>13}{'p50':>8}{'p99':>8}{'longest':>9}{'gcov: count':>13}{'p50':>8}{'p99':>8}{'longest':>9}{'ratio of p99':>14}{'longest':>9}")
for name in ("irqs", "preempt", "spinlock"):
    rows = [next(delta["instructions"] for delta in run["rows"] if delta["name"] == name) for run in runs]
    print(f"{name:<16}" + "".join(f"{row['count']:>13,}{row['p50']:>8,}{row['p99']:>8,}{row['max']:>9,}" for row in rows), end="")
    print(f"{rows[1]['p99'] / rows[0]['p99']:>14.2f}{rows[1]['max'] / rows[0]['max']:>9.2f}")
for kernel, run in zip(kernels, runs):
    for name in ("irqs", "preempt"):
        delta = next(delta for delta in run["rows"] if delta["name"] == name)
        longest = delta["longest"][0]
        print(f"longest {name}, {kernel}: {longest['instructions']:,}, began in {longest['from']}")
END
