# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: cyclictest at the highest priority, beside a load of ordinary tasks or with nothing else to do.
#
#   jitter-guest.sh idle|load TIMES   prints each wake-up's latency, ns, in a line; TIMES with zeros before it, as the length of the
#                                     command line moves the program's stack
set -e
load=$1 times=$2

jobs=
if [ "$load" = load ]; then
	hackbench --groups 1 --fds 4 --loops 100000000 >/dev/null 2>&1 &
	jobs="$jobs $!"
	# Files in /proc go while find looks, which is an error of its.
	(while :; do find /proc /sys >/dev/null 2>&1 || :; done) &
	jobs="$jobs $!"
	(while :; do dd if=/dev/zero of=/tmp/load bs=64k count=32 2>/dev/null && rm /tmp/load; done) &
	jobs="$jobs $!"
fi
# -v: each value, as `THREAD: NUMBER: NS`.
cyclictest --mlockall --priority 98 --interval 1000 --loops "$times" --nsecs --verbose >/tmp/cyclictest 2>/tmp/errors || {
	cat /tmp/cyclictest /tmp/errors >&2
	exit 1
}
for job in $jobs; do kill "$job"; done
sed -n 's/^ *0: *[0-9]*: *\([0-9]*\)$/\1/p' /tmp/cyclictest
