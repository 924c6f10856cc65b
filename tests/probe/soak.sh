# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest, for soak.py: rounds of probes being switched on and off, until the guest is ended. What it prints is
# judged outside.
cd /g
t=/sys/kernel/tracing
mount -t debugfs none /sys/kernel/debug 2>/dev/null
# The name by which the judges know it, and that of the noise.
cp load /tmp/load
cp load /tmp/noise

# What is there: programs, maps, links, kprobes, traced functions, uprobes; then memory in KiB.
left() {
	echo "left $(./left) $(grep -vc '^$' /sys/kernel/debug/kprobes/list) $(grep -c . $t/enabled_functions)" \
		"$(grep -c . $t/uprobe_events) $(awk '/^(Slab|Percpu|VmallocUsed|KernelStack|PageTables):/ { s += $2 } END { print s }' /proc/meminfo)"
}
# Programs and maps are freed some time after their last user.
settled() {
	for i in 1 2 3 4 5 6 7 8 9 10; do
		now=$(left)
		[ "${now% *}" = "${1% *}" ] && break
		sleep 0.3
	done
	echo "$now"
}

# The judge: an instance of ftrace for each probe, which has a histogram of its hits by load while it is asked to.
each() {
	n=0
	while IFS='|' read -r event definition filter; do
		"$1"
		n=$((n + 1))
	done <judges
}
hired() {
	mkdir $t/instances/s$n
	[ -z "$definition" ] || echo "$definition" >>$t/kprobe_events || echo "cannot: $definition"
}
judge() { echo "hist:keys=common_cpu if COMM == \"load\"$filter" >$t/instances/s$n/events/$event/trigger || echo "cannot: $event $filter"; }
judged() {
	echo "judged $n $(sed -n 's/^ *Hits: //p' $t/instances/s$n/events/$event/hist)"
	echo "!hist:keys=common_cpu if COMM == \"load\"$filter" >$t/instances/s$n/events/$event/trigger
}
account() {
	echo "records $1 $(./kprism script probe -i r.$1 | wc -l)"
	echo "counts $1 $(tr -d '\n' <r.$1/streams/probe/probes.json)"
}

./kprism compile -q 'vfs_read if $comm == "load"' 'vfs_write%return if $retval > 0 && $comm == "load"' \
	'filp_close if $comm == "load"' 'do_sys_openat2%return if $comm == "load"' --collect '$pid' -o btf >said 2>&1 || cat said
./kprism compile -q work 'work if n % 3 == 0' --collect 'n,$comm' --exec /tmp/load -o user >said 2>&1 || cat said
each hired
first=$(left)
echo "$first"
round=0
while :; do
	round=$((round + 1))
	# All hits of one load, beside the judge, while another one makes noise.
	/tmp/noise 2 1 >/dev/null &
	each judge
	./kprism record probe -q --program judged -o r.judged --buffer-size 16M -- ./kprism record probe -q --program btf -o r.btf -- \
		./kprism record probe -q --program user -o r.user -- /tmp/load 1 2 >work 2>said || cat said
	each judged
	echo "work $(cat work)"
	for kind in judged btf user; do account $kind; done
	rm -rf r.*
	wait
	settled "$first"

	# Several recorders that come and go while both CPUs are busy; in every second round two of them are killed.
	/tmp/load 600 3 >/dev/null &
	load=$!
	n=0
	for kind in 0 1 2 3 btf user; do
		n=$((n + 1))
		ms=$((500 + (round * 7 + n * 13) % 9 * 100))
		./kprism record probe -q --program $kind --all --duration ${ms}ms --buffer-size 4M -o r.$kind >said.$kind 2>&1 &
		echo $! >pid.$kind
	done
	if [ $((round % 2)) = 0 ]; then
		sleep $((round % 5)).7
		for kind in $((round / 2 % 4)) $(((round / 2 + 1) % 4)); do
			kill -9 $(cat pid.$kind) 2>/dev/null && echo "killed $kind"
		done
	fi
	for kind in 0 1 2 3 btf user; do
		wait $(cat pid.$kind)
		code=$?
		[ $code = 0 ] && account $kind
		[ $code = 0 ] || [ $code = 137 ] || echo "exit $kind $code $(cat said.$kind)"
	done
	kill $load
	wait $load
	rm -rf r.*
	settled "$first"
done
