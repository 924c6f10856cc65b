# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Sourced in the guest: the paper's program, its clock, and the tracer's settings. ROUNDS is how often the program walks /sys.
set -e
t=/sys/kernel/tracing
rounds=${ROUNDS:-10}

# The paper had debugfs elsewhere: what an instance of the tracer adds to /sys is not to be walked.
program() { sh -c 'for i in $(seq 1 '"$1"'); do echo $i; find /sys -xdev >/dev/null; done' >/dev/null; }
now() { date +%s%N; }
# took COMMAND...: its nanoseconds.
took() { start=$(now); "$@"; echo $(($(now) - start)); }

off() { echo 0 >$t/tracing_on; echo nop >$t/current_tracer; echo 0 >$t/tracing_thresh; echo >$t/trace; }
graph() { off; echo 1408 >$t/buffer_size_kb; echo $1 >$t/tracing_thresh; echo function_graph >$t/current_tracer; }
stat() { sed -n "s/^$1: *//p" $t/per_cpu/cpu0/stats; }
