# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The paper's tables 1 and 2 from what paper-guest.sh printed.

function seconds(s) { return s >= 3600 ? sprintf("%.1f h", s / 3600) : s >= 60 ? sprintf("%.1f min", s / 60) : sprintf("%.2f s", s) }
# covered NS BYTES: the seconds that 1408 KiB last at that rate.
function covered(ns, bytes) { return ns / 1e9 * 1408 * 1024 / bytes }
function row(name, us, events, span, paper) { printf "%-36s %9s %11d %12s   %s\n", name, us, events, span, paper }
function overhead(name, ns, paper) {
	printf "%-36s %9.3f s %7.1f ns %9s   %s\n", name, ns / 1e9, ns / calls, name == "no tracer built in" ? "-" : sprintf("%.1f ns", (ns - without) / calls), paper
}

$1 == "nop" { nop = $2 }
$1 == "disabled" { disabled = $2 }
$1 == "graph" {
	order[++n] = $2
	took[$2] = $3; kept[$2] = $4; over[$2] = $5
	span[$2] = $5 > 0 ? $8 - $7 : covered($3, $6)
	if ($2 == 0)
		calls = ($4 + $5) / 2
}
$1 == "kprism" { ours[$2] = $4; ours_ns[$2] = $3; ours_span[$2] = covered($3, $6) }
$1 == "some-graph" { some[++m] = $2; some_kept[$2] = $4 + $5; some_span[$2] = $5 > 0 ? $8 - $7 : covered($3, $6) }
$1 == "some-kprism" { bpf[$2] = $4; bpf_span[$2] = covered($3, $6 + $4 * 8) }
$1 == "some-aggregate" { aggregate = $3 }

END {
	theirs[0] = "0.39 s, 27,316 events"
	theirs[1000] = "31.26 s, 35,565 events (discard_event: 1.29 s)"
	theirs[100000] = "27 min, 1,669 events in 79 s (discard_event: 1.34 s)"
	print "Table 1: what a buffer of 1408 KiB covers of: for i in $(seq 1 N); do echo $i; find /sys -xdev >/dev/null; done"
	printf "%-36s %9s %11s %12s   %s\n", "all functions", "filter us", "events kept", "covers", "paper (ARM, 192 MHz)"
	for (i = 1; i <= n; i++)
		row("function_graph", order[i], kept[order[i]] + over[order[i]], seconds(span[order[i]]), theirs[order[i]])
	for (i = 1; i <= n; i++)
		if (order[i] in ours)
			row("kprism record durations", order[i], ours[order[i]], seconds(ours_span[order[i]]), "")
	printf "%-36s\n", "functions vfs_* and kernfs_*"
	for (i = 1; i <= m; i++)
		row("function_graph", some[i], some_kept[some[i]], seconds(some_span[some[i]]), "")
	for (i = 1; i <= m; i++)
		row("kprism record durations, BPF", some[i], bpf[some[i]], seconds(bpf_span[some[i]]), "")
	row("kprism record durations, BPF, --aggregate", "-", 0, "no end", "")

	# What is compiled in is one nop of five bytes at each function.
	without = nop - calls
	printf "\nTable 2: what function graph tracing costs, %d calls\n", calls
	printf "%-36s %11s %10s %9s   %s\n", "", "elapsed", "a call", "overhead", "paper: elapsed, a call, overhead"
	overhead("no tracer built in", without, "9.25 s 1.72 us -")
	overhead("nop", nop, "10.30 s 2.05 us 0.33 us")
	overhead("graph disabled", disabled, "19.85 s 5.22 us 3.50 us")
	overhead("graph active", took[0], "72.15 s 20.61 us 18.89 us")
	overhead("graph, filter 1000 us", took[1000], "")
	overhead("kprism record durations --longer-than 1ms", ours_ns[1000], "")
	overhead("  --aggregate, vfs_* and kernfs_*", aggregate, "")
}
