# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs in the guest: a session of GDB at a place of a tracepoint in the kernel's own code. kprism's own probe at the same
# place and ftrace record the same calls.
set -e
tracing=/sys/kernel/tracing
mount -t tracefs tracefs $tracing 2>/dev/null || true
/test/kprism gdbserver --kernel --vmlinux /test/vmlinux /tmp/socket 2> /tmp/said &
while ! [ -S /tmp/socket ]; do sleep 0.1; done
echo 'parent_comm == "forks"' > $tracing/events/sched/sched_process_fork/filter
echo 1 > $tracing/events/sched/sched_process_fork/enable
tunables=glibc.malloc.tcache_count=0:glibc.malloc.perturb=255
GLIBC_TUNABLES=$tunables gdb -nx -batch -x /test/vmlinux.gdb /test/vmlinux < /dev/null 2>&1 || true
echo 0 > $tracing/events/sched/sched_process_fork/enable
echo '== said'
cat /tmp/said
echo '== ftrace'
grep 'sched_process_fork:' $tracing/trace
echo '== probe'
/test/kprism script probe -i /tmp/run --json
