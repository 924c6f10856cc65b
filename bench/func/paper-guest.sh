# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: the paper's program under every tracer of its tables 1 and 2 and under kprism's. One line of numbers
# for each; run.sh makes the tables. A nanosecond is an instruction here.
. /bench/paper-lib.sh

# A first round meets cold caches of the file system.
program 1
echo "nop $(took program $rounds)"

graph 0
echo "disabled $(took program $rounds)"

for us in 0 1 10 100 1000 100000; do
	graph $us
	echo 1 >$t/tracing_on
	ns=$(took program $rounds)
	echo 0 >$t/tracing_on
	echo "graph $us $ns $(stat entries) $(stat overrun) $(stat bytes) $(stat 'oldest event ts') $(stat 'now ts')"
	if [ $us = 1000 ]; then
		echo 1 >$t/options/funcgraph-abstime
		echo 1 >$t/options/funcgraph-proc
		head -n 25 $t/trace | sed 's/^/figure4 /'
	fi
done
off

# number RUN NAME: a number of a run's account.
number() { sed -n "s/.*\"$2\": \([0-9]*\).*/\1/p" $1/manifest.json | head -n 1; }
command="for i in \$(seq 1 $rounds); do echo \$i; find /sys -xdev >/dev/null; done"
record() { /bench/kprism record durations -q -a --no-events -o /tmp/run --buffer-size 64M "$@" -- sh -c "$command" >/dev/null; }

# All functions: with a threshold, since records of every call would fill the guest's memory.
for us in 1 10 100 1000 100000; do
	record --longer-than ${us}us
	bytes=$(cat /tmp/run/streams/ftrace/cpu*.raw | wc -c)
	ns=$(sed -n 's/^  "ns": \([0-9]*\),/\1/p' /tmp/run/streams/ftrace/recording.json)
	echo "kprism $us $ns $(number /tmp/run events) $(number /tmp/run lost_events) $bytes"
	rm -r /tmp/run
done

# Some functions, every call of which function_graph and BPF can record.
some='kernfs_* vfs_*'
for us in 0 1 10 100 1000; do
	graph 0
	echo "$some" >$t/set_ftrace_filter
	graph $us
	echo 1 >$t/tracing_on
	ns=$(took program $rounds)
	echo 0 >$t/tracing_on
	echo "some-graph $us $ns $(stat entries) $(stat overrun) $(stat bytes) $(stat 'oldest event ts') $(stat 'now ts')"
	off
	echo >$t/set_ftrace_filter
	longer=
	[ $us = 0 ] || longer="--longer-than ${us}us"
	record $longer --backend bpf-fentry -T 'kernfs_*' -T 'vfs_*'
	bytes=$(cat /tmp/run/streams/bpf/calls.bin | wc -c)
	echo "some-kprism $us $(number /tmp/run recorded_ns) $(number /tmp/run calls) $(number /tmp/run lost) $bytes"
	rm -r /tmp/run
done
record --aggregate --backend bpf-fentry -T 'kernfs_*' -T 'vfs_*'
echo "some-aggregate 0 $(number /tmp/run recorded_ns) $(number /tmp/run calls) $(number /tmp/run lost) 0"

# Figures 4 and 5, of the paper's other program: long calls one by one, and ftd's table of every call.
work='for i in $(seq 1 3); do ls /bin | sed s/a/z/g; done'
/bench/kprism record durations -q --no-events -o /tmp/run --longer-than 1ms -- sh -c "$work" >/dev/null
/bench/kprism script -i /tmp/run | head -n 25 | sed 's/^/script4 /'
rm -r /tmp/run
/bench/kprism record durations -q -o /tmp/run --buffer-size 64M -- sh -c "$work" >/dev/null
/bench/kprism report durations -i /tmp/run --ftd | head -n 12 | sed 's/^/figure5 /'
