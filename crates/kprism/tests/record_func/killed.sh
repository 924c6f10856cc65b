# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: kills recordings with SIGKILL at moments all over their lives, four of five while tracefs is changed, and
# says after each what in tracefs is not as it was, when its guard is done, or, where that was killed too, after a `kprism check`.
# Arguments: the recorder, the program to check with, the numbers of the kills.
recorder=$1 kprism=$2
shift 2
kills=$*
cd /sys/kernel/tracing || exit 2

# All that a recording may touch, and the instances.
state() {
	for file in tracing_on tracing_thresh current_tracer max_graph_depth set_graph_function set_graph_notrace \
		set_ftrace_filter set_ftrace_notrace set_ftrace_pid set_event set_event_pid saved_cmdlines_size \
		trace_clock tracing_cpumask buffer_percent options/*; do
		read -r line <"$file" && echo "$file: $line"
	done
	ls instances
}

# Somebody's own settings, which are to be there afterwards as they were.
echo 300 >saved_cmdlines_size
echo 'vfs_read' >set_graph_function
echo 7 >max_graph_depth
state >/tmp/before

# The guard of a recorder: another process of the same program. One grep for all processes: it is asked again and again.
guards() {
	for file in $(grep -als '^kprism-guard' /proc/[0-9]*/cmdline); do
		file=${file#/proc/}
		echo "${file%/cmdline}"
	done
}

# How long the functions are looked up before anything is changed depends on how the recorder was built.
changed() {
	set -- instances/*kprism*
	[ -e "$1" ]
}

# Waits for the first change by the recorder $pid, or for its end.
until_changed() {
	while ! changed && kill -0 $pid 2>/dev/null; do sleep 0.01; done
}

# Waits for all guards to be done.
until_guarded() {
	while [ -n "$(guards)" ]; do sleep 0.01; done
}

compare() {
	state >/tmp/after
	diff /tmp/before /tmp/after || echo "NOT AS IT WAS"
	[ -s /run/kprism/tracefs.journal ] && echo "JOURNAL NOT EMPTY"
}

for n in $kills; do
	case $((n % 4)) in
	0) settings='{"longer_than":{"secs":0,"nanos":1000000},"functions":["vfs_*"],"symbols":false,"buffer_kib":256}' ;;
	1) settings='{"scope":"All","functions":["vfs_*"],"events":false,"symbols":false,"buffer_kib":256,"sleep_time":false}' ;;
	2) settings='{"functions":["vfs_*"],"graph":["ksys_read"],"depth":3,"events":false,"symbols":false,"buffer_kib":256}' ;;
	3) settings='{"functions":["vfs_*"],"events":false,"symbols":false,"buffer_kib":256,"longer_than":{"secs":1,"nanos":0},"interrupts":false,"more_events":["sched:sched_process_exec"]}' ;;
	esac
	"$recorder" record /tmp/run$n "$settings" sleep 1000 &
	pid=$!
	# Looks random, and is the same every time: of the whole life, or of what begins with the first change.
	moment=$((n * 7919 % 450))
	since=start
	if [ $((n % 5)) != 0 ]; then
		since=change
		until_changed
	fi
	sleep "$(printf 0.%03d $moment)"
	# The journal is empty before the first change.
	[ -s /run/kprism/tracefs.journal ] && left=left || left=nothing
	changed && changed=changed || changed=unchanged
	if [ $((n % 2)) = 0 ]; then
		# Its guard goes with it: `kprism check` puts back what is left.
		who=check
		kill -9 $(guards) $pid
		wait $pid
		"$kprism" check >>/tmp/check
	else
		who=guard
		kill -9 $pid
		wait $pid
		until_guarded
	fi
	echo "$n, $moment ms after its $since: $who, $left, $changed"
	compare
done
grep 'killed recording' /tmp/check
# The kernel removes no instance of which a file is open: somebody else's here, for longer than the guard's first try.
"$recorder" record /tmp/run-held "$settings" sleep 1000 &
pid=$!
until_changed
exec 9<"$(echo instances/*kprism*)/per_cpu/cpu0/trace_pipe_raw"
kill -9 $pid
wait $pid
sleep 5
changed && echo "an open file holds its instance"
exec 9<&-
until_guarded
compare
# And one that ends by itself, and one by Ctrl-C.
"$recorder" record /tmp/run-true "$settings" true && echo "ended by itself"
"$recorder" record /tmp/run-ctrl-c "$settings" sleep 1000 &
pid=$!
sleep 0.6
kill -2 $pid
wait $pid
# A disk that becomes full: the command runs on, and what came until then is there.
room=$(df --output=avail /dev/shm | tail -n 1)
head -c $(((room - 1500) * 1024)) /dev/zero >/dev/shm/fill
"$recorder" record /dev/shm/run '{"symbols":false,"buffer_kib":256}' sh -c 'ls /bin >/dev/null; echo the command ran on'
echo "the recorder's exit code on a full disk: $?"
grep '"stopped"' /dev/shm/run/streams/ftrace/recording.json && cat /dev/shm/run/streams/ftrace/stats/cpu0 | tail -n 1
state >/tmp/after
diff /tmp/before /tmp/after && echo "as it was"
exit 0
