# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: what each way of measuring one function (getppid's) adds to each call, in instructions.
set -e
t=/sys/kernel/tracing
loop=/bench/loop
base=$($loop 10000)
row() { printf '%-46s %6d\n' "$1" $(($2 - base)); }
off() { echo 0 >$t/tracing_on; echo nop >$t/current_tracer; echo >$t/set_ftrace_filter; echo 0 >$t/tracing_thresh; echo >$t/trace; }
f=$(grep -m1 -E '^__(x64|do)_sys_getppid$' $t/available_filter_functions)

if command -v bpftrace >/dev/null; then
	trace() {
		bpftrace -e "$2" -c "$loop 2000" >/tmp/trace 2>/tmp/errors || cat /tmp/errors
		row "$1" $(grep -m1 -E '^[0-9]+$' /tmp/trace)
	}
	trace 'bpftrace, kprobe and kretprobe, histogram' "kprobe:$f { @s[tid] = nsecs; } kretprobe:$f /@s[tid]/ { @h = hist(nsecs - @s[tid]); delete(@s[tid]); }"
	trace 'bpftrace, fentry and fexit, histogram' "kfunc:$f { @s[tid] = nsecs; } kretfunc:$f /@s[tid]/ { @h = hist(nsecs - @s[tid]); delete(@s[tid]); }"
	trace 'bpftrace, fentry and fexit, no action' "kfunc:$f { } kretfunc:$f { }"
	exit
fi

record() { /bench/kprism record durations -q -o /tmp/run "$@" -T "$f" -- sh -c "$loop 2000 >/tmp/loop" >/dev/null; row "kprism, $name" $(cat /tmp/loop); }
name='fentry/fexit, --aggregate'; record --backend bpf-fentry --aggregate
name='fentry/fexit, --longer-than 1ms'; record --backend bpf-fentry --longer-than 1ms
name='fentry/fexit, every call'; record --backend bpf-fentry --buffer-size 64M
name='kprobe.session, --aggregate'; record --backend bpf-kprobe --aggregate
name='kprobe.session, --longer-than 1ms'; record --backend bpf-kprobe --longer-than 1ms

graph() { off; echo $1 >$t/tracing_thresh; echo "$f" >$t/set_ftrace_filter; echo function_graph >$t/current_tracer; echo 1 >$t/tracing_on; row "$2" $($loop 2000); off; }
graph 0 'function_graph'
graph 1 'function_graph, tracing_thresh 1 us'
graph 1000 'function_graph, tracing_thresh 1000 us'

echo "p:bench_in $f" >$t/kprobe_events
echo "r:bench_out $f" >>$t/kprobe_events
echo 1 >$t/events/kprobes/enable; echo 1 >$t/tracing_on
row 'kprobe and kretprobe events' $($loop 2000)
echo 0 >$t/events/kprobes/enable; echo >$t/kprobe_events; off
