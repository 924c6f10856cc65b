# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: tables 1 and 2 of "Measuring Function Duration with Ftrace", by the kernel's tracer alone and by kprism.
set -e
t=/sys/kernel/tracing
rounds=${1:-10}
now() { date +%s%N; }
work() { for i in $(seq $rounds); do find /sys >/dev/null; done; }
timed() { begin=$(now); work; took=$(($(now) - begin)); }
off() { echo 0 >$t/tracing_on; echo nop >$t/current_tracer; echo 0 >$t/tracing_thresh; echo >$t/trace; }
# Events of all CPUs' buffers: those still there, and those written.
count() { cat $t/per_cpu/cpu*/stats | awk -F': ' '$1 == "entries" { kept += $2 } $1 == "overrun" { lost += $2 } END { print kept, kept + lost }'; }

work # the kernel's own caches
echo 1408 >$t/buffer_size_kb
echo "table 1: what 1408 KB hold of $rounds times find /sys"
printf '%9s | %9s %10s %12s | %9s %8s %9s %12s\n' 'threshold' 'ftrace: s' 'events' 's covered' 'kprism: s' 'lost' 'KiB kept' 's in 1408 KB'
for us in 0 1 10 100 1000; do
	echo $us >$t/tracing_thresh
	echo function_graph >$t/current_tracer
	echo >$t/trace
	echo 1 >$t/tracing_on
	timed
	echo 0 >$t/tracing_on
	set -- $(count)
	theirs=$(awk -v ns=$took -v kept=$1 -v all=$2 'BEGIN {
		# What was not overwritten is the last part of the time.
		printf "%9.2f %10d %12.2f", ns / 1e9, all, ns / 1e9 * (all ? kept / all : 1) }')
	[ $us = 0 ] && active=$took calls=$(($2 / 2))
	off
	longer="{\"secs\":0,\"nanos\":${us}000}"
	[ $us = 0 ] && longer=null
	# The recorder alone: what is measured of a whole trace would not fit this guest.
	/bench/kprism-recorder record /tmp/run "{\"longer_than\":$longer,\"events\":false,\"buffer_kib\":1408}" \
		sh -c "for i in \$(seq $rounds); do find /sys >/dev/null; done"
	ours=$(sed -n 's/^  "\(ns\|bytes\)": \([0-9]*\),/\1 \2/p; s/^ *"overrun": \([0-9]*\),/lost \1/p' /tmp/run/streams/ftrace/recording.json | awk '
		$1 == "ns" { ns = $2 } $1 == "bytes" { bytes = $2 } $1 == "lost" { lost += $2 }
		END { printf "%9.2f %8d %9.0f %12.2f", ns / 1e9, lost, bytes / 1024, ns / 1e9 * 1408 * 1024 / (bytes ? bytes : 1) }')
	printf '%6d us | %s | %s\n' $us "$theirs" "$ours"
	rm -rf /tmp/run
done

echo
echo "table 2: overhead of function_graph, $rounds times find /sys"
timed
bare=$took
echo function_graph >$t/current_tracer
echo 0 >$t/tracing_on
timed
disabled=$took
off
awk -v bare=$bare -v disabled=$disabled -v active=$active -v calls=$calls '
	function row(name, ns) {
		printf "%-16s %9.3f s %10d calls %9.3f us a call", name, ns / 1e9, calls, ns / calls / 1e3
		if (ns != bare) printf " %9.3f us more", (ns - bare) / calls / 1e3
		print ""
	}
	BEGIN { row("nop", bare); row("graph disabled", disabled); row("graph active", active) }'
