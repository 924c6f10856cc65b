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

# gdbserver's fast tracepoint: a jump, in the first instruction of `work` that is long enough for one, to code that the
# agent library made in the process. gdbserver 13.1 computes wrongly there (2*a + 3*b < 1 is false for 0 and 0, and != 1 true
# for -1 and 1): it is given a condition that it finds false and one that it finds true. A frame is 2300 bytes: few hits fill
# its buffer, and a full buffer ends the trace.
agent=$(ls /usr/lib/libinproctrace.so /usr/lib/*/libinproctrace.so 2>/dev/null | head -n 1)
if [ -n "$agent" ] && command -v gdb >/dev/null && command -v gdbserver >/dev/null; then
	cc -O2 -g -no-pie -o "$work/hit" "$here/hit.c"
	long=$(objdump -d --disassemble=work --insn-width=16 "$work/hit" | awk '/^ +[0-9a-f]+:/ {
		for (n = 0; $(n + 2) ~ /^[0-9a-f][0-9a-f]$/; n++);
		if (n >= 5) { sub(":", "", $1); print $1; exit } }')
	"$work/hit" work "$n" $false >"$work/base-jump"
else
	echo "gdbserver's fast tracepoints are left out: gdb, gdbserver or libinproctrace.so is not here" >&2
fi
# fast CASE FRAMES ARGS IF ACTION: as many frames as FRAMES have to be there at the end.
fast() {
	cat >"$work/fast" <<-END
		set confirm off
		set pagination off
		set auto-load no
		target remote | env LD_PRELOAD=$agent gdbserver --once - $work/hit work 5000 $3
		break main
		continue
		ftrace *0x$long $4
		actions
		$5
		end
		set trace-buffer-size 134217728
		catch syscall exit_group
		tstart
		continue
		tstatus
		kill
	END
	gdb -q -nx -batch -x "$work/fast" "$work/hit" >"$work/out" 2>&1 </dev/null || true
	if grep -q "^Collected $2 trace frames" "$work/out"; then
		row "$u" "gdbserver's fast tracepoint" "$1" jump "$(grep -E '^[0-9]+$' "$work/out" | tail -n 1)"
	else
		echo "gdbserver, $1: not $2 frames: $(grep '^Collected' "$work/out")" >&2
	fi
}

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
	if [ -n "${long:-}" ]; then
		s='2*counter1 + 3*counter2'
		fast empty 0 "0 1" 'if 0' "collect $s"
		fast false 0 "0 1" "if $s < 1" "collect $s"
		fast record 25000 "0 1" '' "collect $s"
		fast both 25000 "0 1" "if $s != 1" "collect $s"
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
