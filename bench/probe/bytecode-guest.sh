# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: instructions that a probe at a program's function adds to each hit, whose condition is interpreted bytecode or
# native code. Lines `TABLE|TOOL|CASE|INSTRUCTIONS`.
n=${N:-3000}
hit=/bench/hit
false="-1 1"
true="-1 0"
work=/tmp
place=$(cat /bench/place)
. /bench/fast.sh
# row TABLE TOOL CASE BASE INSTRUCTIONS
row() { [ -z "$5" ] || echo "$1|$2|$3|$(($5 - $4))"; }
base=$($hit work 10000 $false)

program="a function of a program"
# agent TOOL CASE CODE FRAMES ARGS IF
agent() { row "$program" "gdbserver's agent$1" "$2" "$base" "$(fast $hit "$place" "$3" "$4" "$5" "$6" '2*counter1 + 3*counter2')"; }
s='2*counter1 + 3*counter2'
agent '' empty native 0 "$false" 'if 0'
agent '' record none 25000 "$false" ''
agent ', bytecode' false bytecode 0 "$false" "if $s < 0"
agent ', bytecode' both bytecode 25000 "$true" "if $s < 0"
# The agent's compiler has no multiplication: the same sum without, and with one that changes nothing.
s='counter1+counter1 + counter2+counter2+counter2'
agent ', additions, bytecode' false bytecode 0 "$false" "if 1*($s) < 0"
agent ', additions, bytecode' both bytecode 25000 "$true" "if 1*($s) < 0"
agent ', additions, native code' false native 0 "$false" "if $s < 0"
agent ', additions, native code' both native 25000 "$true" "if $s < 0"

# kprism TABLE TOOL CASE KIND BASE ARGS PROBE OPTIONS…
kprism() {
	table=$1 tool=$2 case=$3 kind=$4 off=$5 args=$6
	shift 6
	# shellcheck disable=SC2086 # two numbers
	/bench/kprism record probe -q "$@" -o /tmp/run --buffer-size 32M -- $hit "$kind" "$n" $args >/tmp/took 2>/tmp/said ||
		[ $? = 1 ] || cat /tmp/said >&2
	row "$table" "$tool" "$case" "$off" "$(cat /tmp/took)"
	grep -o '"lost": [0-9]*' /tmp/run/streams/probe/probes.json | grep -v ': 0$' >&2
	rm -rf /tmp/run /tmp/run.old
}
# cases TABLE TOOL KIND BASE PLACE A B OPTIONS…
cases() {
	table=$1 tool=$2 kind=$3 off=$4 at=$5 sum="2*(int)$6 + 3*(int)$7"
	shift 7
	kprism "$table" "$tool" empty "$kind" "$off" "$false" "$at if 0" "$@"
	kprism "$table" "$tool" false "$kind" "$off" "$false" "$at if $sum < 0" "$@"
	kprism "$table" "$tool" record "$kind" "$off" "$false" "$at" --collect "$sum" "$@"
	kprism "$table" "$tool" both "$kind" "$off" "$true" "$at if $sum < 0" --collect "$sum" "$@"
}
read=$($hit read 10000 $false)
for jit in 1 0; do
	echo $jit >/proc/sys/net/core/bpf_jit_enable
	[ "$(cat /proc/sys/net/core/bpf_jit_enable)" = $jit ] || { echo "this kernel's eBPF is always native code" >&2; continue; }
	code='native code'
	[ $jit = 1 ] || code=bytecode
	cases "$program" "kprism, uprobe, $code" work "$base" work counter1 counter2 --exec $hit
	cases ksys_read "kprism, fentry, $code" read "$read" ksys_read fd count -a
done
# With the jump the condition is native code in the program; what is true takes the uprobe too.
echo 1 >/proc/sys/net/core/bpf_jit_enable
sum='2*counter1 + 3*counter2'
kprism "$program" 'kprism, jump, native code' false work "$base" "$false" "work if $sum < 0" --exec $hit --jump only
kprism "$program" 'kprism, jump, native code' both work "$base" "$true" "work if $sum < 0" --collect "$sum" --exec $hit --jump only
