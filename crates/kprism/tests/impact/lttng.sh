# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: what LTTng kept of /test/calls, a line `TIMES EVENT` each, and what it lost.
set -e
cd "/lib/modules/$(uname -r)"
touch modules.order modules.builtin modules.builtin.modinfo
depmod -a
{
	lttng-sessiond --daemonize
	lttng create calls --output=/tmp/trace
	lttng enable-channel --kernel all
	lttng add-context --kernel --channel all --type procname
	lttng enable-event --kernel --channel all --syscall --all
	lttng start
	/test/calls
	lttng stop
} >/tmp/said 2>&1 || { cat /tmp/said >&2; exit 1; }
lttng list calls | awk '/Discarded events/ { n += $3 } END { print n + 0, "lost" }'
babeltrace2 /tmp/trace | grep 'procname = "calls"' | grep -o 'syscall_[a-z]*_[a-z0-9_]*' | sort | uniq -c
