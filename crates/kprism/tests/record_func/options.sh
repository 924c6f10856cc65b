# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest with two CPUs: options of function_graph, one recording each. Arguments: the program, the names of the recordings.
# After each line `option NAME` come the recording's facts: calls by name, the clock, and the longest sleep.
kprism=$1
shift
wanted=" $* "
work='for i in 1 2 3; do sleep 0.02; done; cat /proc/version'

record() {
	case $wanted in *" $1 "*) ;; *) return ;; esac
	echo "option $1"
	shift
	"$kprism" record durations -q -o /tmp/run "$@" -- sh -c "$work" >/dev/null || echo "failed $?"
	"$kprism" report durations -i /tmp/run --csv --limit 0 | sed '1s/^/columns /; 2,$s/^/call /'
	tr -d '\n' </tmp/run/manifest.json | grep -o '"clock": *{[^}]*}' | sed 's/^/clock /'
	ls /tmp/run/streams/ftrace/stats 2>/dev/null | sed 's/^/stats /'
	rm -r /tmp/run
}

some="-T vfs_* -T *sysvec* -T hrtimer_interrupt"
set -f
record some $some
record graph-funcs -G vfs_read
record nograph-funcs $some -g vfs_read
record no-irqs $some --no-irqs
record sleep -T '*_sys_clock_nanosleep'
record no-sleep-time -T '*_sys_clock_nanosleep' --no-sleep-time
record clock -T vfs_read --clock boot
record cpu -T vfs_read -C 1
record depth --depth 1 -T vfs_read -T seq_read_iter
