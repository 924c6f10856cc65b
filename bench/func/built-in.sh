#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# built-in.sh WITHOUT WITH: table 2 of "Measuring Function Duration with Ftrace" with its first row measured: the paper's
# program on a kernel without the function tracers and on the same one with them, where an instruction takes a nanosecond.
# The two are folders of built kernels, which have tracefs. KPRISM is the program, OUT a folder to work in, ROUNDS how often the
# program walks /sys (30).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/func}
mkdir -p "$out/share"
cp "$here/paper-lib.sh" "$here/built-in-guest.sh" "$out/share/"
for kernel in without with; do
	"$kprism" lab run -q --unobserved --tree "$1" -o "$out/run" --share "$out/share:/bench" -- \
		env ROUNDS="${ROUNDS:-30}" sh /bench/built-in-guest.sh | tr -d '\r' >"$out/$kernel.txt"
	shift
done
awk '
	function row(name, ns, paper) {
		printf "%-42s %9.3f s %7.1f ns %9s   %s\n", name, ns / 1e9, ns / calls,
			ns == without ? "-" : sprintf("%.1f ns", (ns - without) / calls), paper
	}
	FNR == NR { if ($1 == "nop") without = $2; next }
	$1 == "nop" { nop = $2 }
	$1 == "disabled" { disabled = $2 }
	$1 == "graph" { graph[$2] = $3; if ($2 == 0) calls = ($4 + $5) / 2 }
	END {
		if (!without || !calls) { print "built-in.sh: a kernel gave no numbers" > "/dev/stderr"; exit 1 }
		printf "Table 2 on two kernels, without function tracers and with them, %d calls\n", calls
		printf "%-42s %11s %10s %9s   %s\n", "", "elapsed", "a call", "overhead", "paper: elapsed, a call, overhead"
		row("no tracer built in", without, "9.25 s 1.72 us -")
		row("nop", nop, "10.30 s 2.05 us 0.33 us")
		row("graph disabled", disabled, "19.85 s 5.22 us 3.50 us")
		row("graph active", graph[0], "72.15 s 20.61 us 18.89 us")
		row("graph, filter 1000 us", graph[1000], "")
		row("no tracer built in, computed (nop - 1 ns)", nop - calls, "")
	}' "$out/without.txt" "$out/with.txt"
