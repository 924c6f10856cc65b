#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# built-in.sh WITHOUT WITH [STATIC]: table 2 of "Measuring Function Duration with Ftrace" with its first row measured: the
# paper's program on a kernel without the function tracers, on the same one with them, and on one that calls the tracer at each
# function instead of having a nop there (no dynamic ftrace, as in the paper; x86-64 has no function_graph then). An instruction takes a nanosecond. The kernels are
# folders of built trees with tracefs. KPRISM is the program, OUT a folder to work in, ROUNDS how often the program walks
# /sys (10).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
kprism=${KPRISM:-target/release/kprism}
out=${OUT:-target/func}
mkdir -p "$out/share"
rm -f "$out"/built-in-*.txt
cp "$here/paper-lib.sh" "$here/built-in-guest.sh" "$out/share/"
for kernel in 1-without 2-with ${3:+3-static}; do
	"$kprism" lab run -q --unobserved --tree "$1" -o "$out/run" --share "$out/share:/bench" -- \
		env ROUNDS="${ROUNDS:-10}" sh /bench/built-in-guest.sh | tr -d '\r' >"$out/built-in-$kernel.txt"
	shift
done
awk '
	# Calls are those that the tracer with nops counted.
	function row(name, ns, paper) {
		printf "%-41s %7.3f s %9.2f ns %10s %7s   %s\n", name, ns / 1e9, ns / calls,
			ns == without ? "-" : sprintf("%.2f ns", (ns - without) / calls),
			ns == without ? "-" : sprintf("%+.0f %%", 100 * (ns / without - 1)), paper
	}
	FNR == 1 { kernel++ }
	$1 == "nop" && kernel == 1 { without = $2; next }
	$1 == "nop" { nop[kernel] = $2 }
	$1 == "disabled" { disabled = $2 }
	$1 == "graph" { graph[$2] = $3 }
	$1 == "graph" && $2 == 0 { calls = ($4 + $5) / 2 }
	END {
		if (!without || !calls || (kernel > 2 && !nop[3])) {
			print "built-in.sh: a kernel gave no numbers" >"/dev/stderr"
			exit 1
		}
		printf "Table 2 on kernels without function tracers and with them, %d calls\n", calls
		printf "%-41s %9s %12s %10s %7s   %s\n", "", "elapsed", "a call", "overhead", "", "paper: elapsed, a call, overhead"
		row("no tracer built in", without, "9.25 s 1.72 us -")
		row("nop", nop[2], "")
		row("graph disabled", disabled, "19.85 s 5.22 us 3.50 us")
		row("graph active", graph[0], "72.15 s 20.61 us 18.89 us")
		row("graph, filter 1000 us", graph[1000], "")
		if (kernel > 2)
			row("nop, without dynamic ftrace", nop[3], "10.30 s 2.05 us 0.33 us")
		row("no tracer built in, computed: nop - 1 ns", nop[2] - calls, "")
	}' "$out"/built-in-*.txt
