# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In the guest: two loops that sleep, one of which is asked for, by each way there is. Argument: the program. Says the
# names of the tasks with calls, and the account's line on others.
kprism=$1
cp /bin/sleep /tmp/wanted
cp /bin/sleep /tmp/other
sh -c 'while :; do /tmp/wanted 0.02; done' &
wanted=$!
sh -c 'while :; do /tmp/other 0.02; done' &
other=$!
grep -q " /sys/fs/cgroup " /proc/mounts || mount -t cgroup2 none /sys/fs/cgroup
mkdir /sys/fs/cgroup/test
echo $wanted >/sys/fs/cgroup/test/cgroup.procs

for scope in "-p $wanted" "-t $wanted" "--cgroup test"; do
	"$kprism" record durations -q -o /tmp/run --longer-than 1ms -T '*_sys_clock_nanosleep' $scope --duration 0.4s
	echo "scope ${scope%% *}"
	"$kprism" report durations -i /tmp/run --by-task --csv | sed 1d | cut -d, -f2 | sort | uniq -c | sed 's/^ */comm /'
	"$kprism" info -i /tmp/run | grep -o '[0-9,]* calls\{0,1\} of tasks that were not asked for'
	rm -r /tmp/run
done
kill -9 $wanted $other
# A container's numbers are not the kernel's.
unshare --pid --fork --mount-proc "$kprism" record durations -o /tmp/run -T vfs_read -- true 2>&1 | sed 's/^/container /'
