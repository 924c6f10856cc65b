# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs in the guest: records the same work in several ways into folders below $out, then prints them all. Two writers at
# once on two CPUs sleep inside calls, and move.
set -e
kprism=/test/kprism
out=/tmp/out
mkdir $out

work='for i in 1 2 3; do echo > /proc/nesting & echo > /proc/nesting & wait; done'
$kprism record durations -q --backend bpf-kprobe --no-events --aggregate -T 'nest_*' -o $out/session -- sh -c "$work" >/dev/null
$kprism record durations -q --backend bpf-kprobe --no-events -T 'nest_*' -o $out/calls -- sh -c "$work"
$kprism record durations -q --backend bpf-kprobe --no-events -T 'nest_*' --longer-than 10ms -o $out/long -- sh -c "$work"
copy='dd if=/dev/zero of=/dev/null bs=1 count=500 status=none'
$kprism record durations -q --backend bpf-fentry --no-events --aggregate -T vfs_write -T ksys_write -o $out/fentry -- $copy >/dev/null
$kprism record durations -q --backend bpf-fentry --no-events -T vfs_write -T ksys_write -o $out/fentry-calls -- $copy

# Only calls for which a condition holds.
# This memory cannot be read: the condition does not hold, and each failure is counted.
$kprism record durations -q --backend bpf-kprobe --no-events -T nest_down --if '*(int *)16 == 0' -o $out/unreadable -- sh -c "$work"
few='dd if=/dev/zero of=/dev/null bs=3 count=500 status=none'
$kprism record durations -q --backend bpf-fentry --no-events -T vfs_write -T vfs_read --if 'count == 3' -o $out/three -- $few
$kprism record durations -q --backend bpf-kprobe --no-events -T vfs_write -T vfs_read --if 'count == 3' -o $out/three-kprobe -- $few
$kprism record durations -q --backend bpf-fentry --no-events -T vfs_write -T ksys_write --if '$retval == 3 && count == 3' -o $out/result -- $few
$kprism record durations -q --backend bpf-fentry --no-events -T vfs_write -T vfs_read --if '$duration > 5us' -o $out/slow -- $few
$kprism record durations -q --backend bpf-fentry --no-events -T vfs_write -T vfs_read -o $out/all -- $few
$kprism record probe -q 'vfs_read if count == 3' 'vfs_write if count == 3' --by '$comm' -o $out/probed -- $few >/dev/null

# A recorder that is killed leaves nothing.
cp /sys/kernel/tracing/enabled_functions $out/before
for hook in fentry kprobe; do
	$kprism record durations -q -a --backend bpf-$hook --aggregate -T vfs_read -T vfs_write -o $out/killed >/dev/null &
	for i in $(seq 100); do
		grep -q vfs_write /sys/kernel/tracing/enabled_functions && break
		sleep 0.1
	done
	cat /sys/kernel/tracing/enabled_functions >>$out/during
	kill -9 $!
	wait $! 2>/dev/null || true
done
for i in $(seq 100); do
	cmp -s $out/before /sys/kernel/tracing/enabled_functions && break
	sleep 0.1
done
cp /sys/kernel/tracing/enabled_functions $out/after

cd $out
for run in session calls long fentry fentry-calls unreadable three three-kprobe result slow all; do
	echo "== $run manifest"
	cat $run/manifest.json
	for file in $run/streams/bpf/*; do
		echo "== $run $(basename $file)"
		case $file in
		*.bin) od -An -v -tx1 -w64 $file ;;
		*) cat $file ;;
		esac
	done
	echo "== $run kallsyms"
	grep -E ' (nest_[a-z]+|vfs_read|vfs_write|ksys_write)(	|$)' $run/symbols/kallsyms
done
echo "== probed report"
$kprism report probe --json -i $out/probed
for file in before during after; do
	echo "== $file enabled"
	cat $file
done
