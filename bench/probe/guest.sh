# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: instructions that a probe adds to each hit, in ksys_read(fd, buf, count) of a stock kernel and at
# raw_syscalls:sys_enter. A line `TABLE|TOOL|CASE|INSTRUCTIONS` for each.
t=/sys/kernel/tracing
n=${N:-3000}
hit="/bench/hit read"
# The paper's condition, 2*a + 3*b < 0, is false for -1 and 1, and true for -1 and 0.
false="-1 1"
true="-1 0"
base=$($hit 10000 $false)
row() { echo "$1|$2|$3|$(($4 - base))"; }

if command -v bpftrace >/dev/null; then
	trace() {
		bpftrace -e "$4" -c "$hit $n $5" >/tmp/trace 2>/tmp/errors || { echo "bpftrace: $4" >&2; cat /tmp/errors >&2; return; }
		row "$1" "$2" "$3" $(grep -E '^[0-9]+$' /tmp/trace | tail -n 1)
	}
	# Of everybody, or of those that the last argument names.
	all() {
		keep="{ printf(\"r%d\\n\", 2*$4 + 3*$5); }"
		trace "$1" "$2" empty "$3 ${6:+/$6/} { }" "$false"
		trace "$1" "$2" false "$3 /${6:+$6 && }2*$4 + 3*$5 < 0/ $keep" "$false"
		trace "$1" "$2" record "$3 ${6:+/$6/} $keep" "$false"
		trace "$1" "$2" both "$3 /${6:+$6 && }2*$4 + 3*$5 < 0/ $keep" "$true"
	}
	all dynamic 'bpftrace, kfunc' kfunc:ksys_read '(int32)args->fd' '(int32)args->count'
	all dynamic 'bpftrace, kprobe' kprobe:ksys_read '(int32)arg0' '(int32)arg2'
	# Of everybody it would see its own writes, and write of them.
	all static 'bpftrace, one command' tracepoint:raw_syscalls:sys_enter '(int32)args->args[0]' '(int32)args->args[2]' 'pid == cpid'
	exit
fi

# kprism TABLE TOOL OPTIONS FILE: FILE-false and so on are compiled probes.
kprism() {
	for case in empty false record both; do
		args=$false
		[ $case = both ] && args=$true
		/bench/kprism record probe -q $3 -o /tmp/run --buffer-size 32M --program $4-$case -- sh -c "$hit $n $args >/tmp/hit" >/tmp/said 2>&1 || { [ $? = 1 ] || cat /tmp/said >&2; }
		row "$1" "$2" $case $(cat /tmp/hit)
		grep -o '"lost": [0-9]*' /tmp/run/streams/probe/probes.json | grep -v ': 0$' >&2
		rm -rf /tmp/run /tmp/run.old
	done
}
sum() { echo "2*(int)$1 + 3*(int)$2"; }
compile() { /bench/kprism compile -q "$1 if $2" $3 -o $4 >/dev/null 2>/tmp/said || cat /tmp/said >&2; }
cases() {
	compile "$1" "0 && $2" "" $4-empty
	compile "$1" "$(sum $2 $3) < 0" "" $4-false
	/bench/kprism compile -q "$1" --collect "$(sum $2 $3)" -o $4-record >/dev/null 2>/tmp/said || cat /tmp/said >&2
	/bench/kprism compile -q "$1 if $(sum $2 $3) < 0" --collect "$(sum $2 $3)" -o $4-both >/dev/null 2>/tmp/said || cat /tmp/said >&2
}
cases ksys_read fd count /tmp/btf
kprism dynamic 'kprism, fentry, everybody' -a /tmp/btf
kprism dynamic 'kprism, fentry, one command' '' /tmp/btf
kprism dynamic 'kprism, kprobe, everybody' -a /bench/kprobe
cases raw_syscalls:sys_enter 'regs->di' 'regs->dx' /tmp/raw
kprism static 'kprism, raw tracepoint, everybody' -a /tmp/raw
kprism static 'kprism, raw tracepoint, one command' '' /tmp/raw

# ftrace cannot add: it compares one argument.
ftrace() {
	echo "$4" >$t/events/$3/filter
	echo 1 >$t/events/$3/enable
	echo 1 >$t/tracing_on
	row "$1" "$2" "$5" $($hit $n $false)
	echo 0 >$t/events/$3/enable
	echo 0 >$t/events/$3/filter
	echo >$t/trace
}
echo 'p:bench/ksys_read ksys_read fd=%di:s32 count=%dx:u64' >$t/kprobe_events
ftrace dynamic 'ftrace, kprobe event and filter' bench/ksys_read 'fd > 0' false
ftrace dynamic 'ftrace, kprobe event and filter' bench/ksys_read 0 record
ftrace dynamic 'ftrace, kprobe event and filter' bench/ksys_read 'fd < 0' both
ftrace static 'ftrace, event filter' raw_syscalls/sys_enter 'id > 1000' false
ftrace static 'ftrace, event filter' raw_syscalls/sys_enter 0 record
ftrace static 'ftrace, event filter' raw_syscalls/sys_enter 'id < 1000' both
