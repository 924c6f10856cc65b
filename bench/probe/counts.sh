# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: instructions that counting in the kernel adds to each hit of ksys_read(fd, buf, count), by fentry; kprism,
# or bpftrace where that is installed. See docs/probe.md for how it is run.
n=${N:-3000}
hit="/bench/hit read"
args="-1 1"
base=$($hit 10000 $args)
row() { echo "$1|$2|$(($3 - base))"; }

if command -v bpftrace >/dev/null; then
	trace() {
		bpftrace -e "kfunc:ksys_read { $2 }" -c "$hit $n $args" >/tmp/trace 2>/tmp/errors || cat /tmp/errors >&2
		row bpftrace "$1" $(grep -E '^[0-9]+$' /tmp/trace | head -n 1)
	}
	trace count '@ = count();'
	trace 'by a number' '@[(int32)args->fd] = count();'
	trace 'by $comm' '@[comm] = count();'
	trace 'powers of two' '@ = hist(args->count);'
	trace steps '@ = lhist(args->count, 0, 100, 10);'
	trace 'powers of two by $comm' '@[comm] = hist(args->count);'
	exit
fi
probe() {
	what=$1
	shift
	/bench/kprism record probe -q -a -o /tmp/run ksys_read "$@" -- sh -c "$hit $n $args >/tmp/hit" >/tmp/said 2>&1 || cat /tmp/said >&2
	row kprism "$what" $(cat /tmp/hit)
	rm -rf /tmp/run /tmp/run.old
}
probe count --by 0
probe 'by a number' --by fd
probe 'by $comm' --by '$comm'
probe 'powers of two' --hist count
probe steps --linear count,0,100,10
probe 'powers of two by $comm' --hist count --by '$comm'
