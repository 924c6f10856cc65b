# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs in the guest: records the same work by each backend and prints the reports.
set -e
kprism=/test/kprism
work='for i in 1 2 3 4 5; do echo > /proc/splitting; done'
record() {
	name=$1
	shift
	$kprism record durations -q -o /tmp/$name -T 'split_*' "$@" -- sh -c "$work"
	echo "== $name"
	$kprism report durations -q -i /tmp/$name --limit 0 --json
}
record ftrace --backend ftrace
record ftrace-long --backend ftrace --longer-than 5ms
record kprobe --backend bpf-kprobe
record aggregate --backend bpf-kprobe --aggregate
