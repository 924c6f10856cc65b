#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# native.sh, for run.sh: nanoseconds that a probe adds to each hit of a process on this machine; every tool in turn, RUNS
# times (5), the median counts. Then: how many hits a second are recorded without loss, by each CPU at once.
here=$(cd "$(dirname "$0")" && pwd)
: "${KPRISM:=target/release/kprism}" "${OUT:=target/probe}" "${RUNS:=5}"
n=${N:-200000}
hit=$OUT/share/hit
t=/sys/kernel/tracing
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
false="-1 1"
true="-1 0"
# row TABLE TOOL CASE KIND NANOSECONDS
row() { [ -z "$5" ] || echo "$1|$2|$3|$(($5 - $(cat "$work/base-$4")))"; }
# A static program is mapped at 0x400000, where its file begins.
offset=$((0x$(nm "$hit" | awk '$3 == "work" { print $1 }') - 0x400000))

# kprism TABLE KIND CASE PROBE ARGS: with its collect in the rest.
kprism() {
	table=$1 kind=$2 case=$3 probe=$4 args=$5
	shift 5
	"$KPRISM" record probe -q "$probe" "$@" -o "$work/run" --buffer-size 64M -- "$hit" "$kind" "$n" $args >"$work/out" 2>"$work/said" || [ $? = 1 ] || cat "$work/said" >&2
	row "$table" kprism "$case" "$kind" "$(cat "$work/out")"
}
bpf() {
	bpftrace -e "$5" -c "$hit $2 $n $4" >"$work/out" 2>"$work/said" || return 0
	row "$1" bpftrace "$3" "$2" "$(grep -E '^[0-9]+$' "$work/out" | tail -n 1)"
}
# ftrace TABLE KIND EVENT FILTER CASE
ftrace() {
	[ -w $t/events/$3/filter ] || return 0
	echo "$4" >$t/events/$3/filter
	echo 1 >$t/events/$3/enable
	row "$1" 'ftrace event and filter' "$5" "$2" "$("$hit" "$2" "$n" $false)"
	echo 0 >$t/events/$3/enable
	echo 0 >$t/events/$3/filter
	echo >$t/trace
}

# gdbserver's fast tracepoint.
. "$here/fast.sh"
long=
if [ -n "$(fast_agent)" ] && command -v gdb >/dev/null && command -v gdbserver >/dev/null; then
	fast_build "$work/hit" "$here/hit.c"
	long=$(fast_place "$work/hit")
	"$work/hit" work "$n" $false >"$work/base-jump"
else
	echo "gdbserver's fast tracepoints are left out: gdb, gdbserver or libinproctrace.so is not here" >&2
fi
# agent TOOL CASE CODE FRAMES ARGS IF
agent() { row "$u" "gdbserver's fast tracepoint$1" "$2" jump "$(fast "$work/hit" "$long" "$3" "$4" "$5" "$6" '2*counter1 + 3*counter2')"; }

once() {
	"$hit" work "$n" $false >"$work/base-work"
	"$hit" read "$n" $false >"$work/base-read"
	u="uprobe, a function of a program"
	sum='2*counter1 + 3*counter2'
	kprism "$u" work empty 'work if 0' "$false" --exec "$hit"
	kprism "$u" work false "work if $sum < 0" "$false" --exec "$hit"
	kprism "$u" work record work "$false" --exec "$hit" --collect "$sum"
	kprism "$u" work both "work if $sum < 0" "$true" --exec "$hit" --collect "$sum"
	r="raw_syscalls:sys_enter"
	sum='2*(int)regs->di + 3*(int)regs->dx'
	kprism "$r" read empty "$r if 0 && regs" "$false"
	kprism "$r" read false "$r if $sum < 0" "$false"
	kprism "$r" read record "$r" "$false" --collect "$sum"
	kprism "$r" read both "$r if $sum < 0" "$true" --collect "$sum"
	if command -v bpftrace >/dev/null; then
		s='2*(int32)arg0 + 3*(int32)arg1'
		bpf "$u" work empty "$false" "uprobe:$hit:work { }"
		bpf "$u" work false "$false" "uprobe:$hit:work /$s < 0/ { printf(\"r%d\\n\", $s); }"
		bpf "$u" work record "$false" "uprobe:$hit:work { printf(\"r%d\\n\", $s); }"
		bpf "$u" work both "$true" "uprobe:$hit:work /$s < 0/ { printf(\"r%d\\n\", $s); }"
		s='2*(int32)args->args[0] + 3*(int32)args->args[2]'
		p="tracepoint:raw_syscalls:sys_enter /pid == cpid/"
		bpf "$r" read empty "$false" "$p { }"
		p="tracepoint:raw_syscalls:sys_enter /pid == cpid &&"
		bpf "$r" read false "$false" "$p $s < 0/ { printf(\"r%d\\n\", $s); }"
		bpf "$r" read record "$false" "$p 1/ { printf(\"r%d\\n\", $s); }"
		bpf "$r" read both "$true" "$p $s < 0/ { printf(\"r%d\\n\", $s); }"
	fi
	if echo "p:bench/work $(realpath "$hit"):$(printf 0x%x "$offset") a=%di:s32 b=%si:s32" >$t/uprobe_events 2>/dev/null; then
		ftrace "$u" work bench/work 'a > 0' false
		ftrace "$u" work bench/work 0 record
		ftrace "$u" work bench/work 'a < 0' both
		echo >$t/uprobe_events
	fi
	if [ -n "$long" ]; then
		s='2*counter1 + 3*counter2'
		agent '' empty native 0 "$false" 'if 0'
		agent '' false bytecode 0 "$false" "if $s < 0"
		agent '' record none 25000 "$false" ''
		agent '' both bytecode 25000 "$true" "if $s < 0"
		# The same sum without a multiplication, which the agent compiles.
		s='counter1+counter1 + counter2+counter2+counter2'
		agent ', native' false native 0 "$false" "if $s < 0"
		agent ', native' both native 25000 "$true" "if $s < 0"
	fi
	ftrace "$r" read raw_syscalls/sys_enter 'id > 1000' false
	ftrace "$r" read raw_syscalls/sys_enter 0 record
	ftrace "$r" read raw_syscalls/sys_enter 'id < 1000' both
}
for _ in $(seq "$RUNS"); do once; done >"$OUT/native.txt"
awk -v unit=ns -f "$here/table.awk" "$OUT/native.txt"

echo
echo "records a second, one busy process for each CPU, the default buffer (raw_syscalls:sys_enter, 2 values)"
cpus=$(nproc)
for probe in raw_syscalls:sys_enter 'raw_syscalls:sys_enter if 2*(int)regs->di + 3*(int)regs->dx < 0'; do
	"$KPRISM" record probe -q "$probe" --collect 'regs->di,regs->dx' -o "$work/run" -- sh -c "
		for i in \$(seq $cpus); do $hit read 1000 $true 3 & done; wait" >"$work/out" 2>"$work/said"
	awk -v cpus="$cpus" -v probe="$probe" '{ all += $1 } END { printf "%s\n  %.2f M reads a second and CPU; ", probe, all / 3 / cpus / 1e6 }' "$work/out"
	sed -n 's/.*"\(hits\|passed\|lost\|missed\)": \([0-9]*\).*/\1 \2/p' "$work/run/streams/probe/probes.json" | tr '\n' ' '
	echo
	rm -rf "$work/run"
done
