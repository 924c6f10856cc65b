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
for run in session calls long fentry fentry-calls; do
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
	grep -E ' (nest_[a-z]+|vfs_write|ksys_write)(	|$)' $run/symbols/kallsyms
done
for file in before during after; do
	echo "== $file enabled"
	cat $file
done
