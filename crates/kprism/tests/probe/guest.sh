# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs in the guest: probes of the kernel, and prints what they collected.
set -e
kprism=/test/kprism
work='dd if=/dev/zero of=/dev/null bs=7 count=20 status=none'
name=file-\>f_path.dentry-\>d_name.name
$kprism record probe -q "vfs_write if count == 7 && file->f_inode->i_rdev == 0x100003" \
	--collect "count,$name,\$comm,*pos,file->f_inode->i_mode & 0777" -o /tmp/entry -- $work
$kprism record probe -q 'vfs_write%return if $retval == 7' --collect '$retval,count,$duration' -o /tmp/return -- $work
$kprism record probe -q 'do_sys_openat2' --collect 'filename,*(int *)8' -o /tmp/open -- cat /etc/hostname >/dev/null
# A function of any number of arguments has no fentry, and one that the kernel excludes has none either: a kprobe.
cat /sys/kernel/uevent_seqnum > /tmp/seqnum
$kprism record probe 'sysfs_emit%return' --collect '$retval,fmt,$duration' -o /tmp/variadic -- \
	cat /sys/kernel/uevent_seqnum > /dev/null 2> /tmp/variadic.said
$kprism record probe migrate_disable -o /tmp/excluded -- true 2> /tmp/excluded.said || test $? = 1
# Nobody may be there, neither by fentry nor by a kprobe.
$kprism record probe -q memcpy -o /tmp/nowhere -- true 2> /tmp/nowhere.said || echo $? >> /tmp/nowhere.said
# 40 calls that are open at once: a kretprobe has room for fewer. Each fails, as there is no such filesystem.
$kprism record probe -q '__request_module%return' --by '$retval' -o /tmp/crowd -- \
	sh -c 'for i in $(seq 40); do busybox mount -t none$i none /tmp & done; wait' 2> /tmp/crowd.said
# Arguments of system calls have eight bytes each in the record, whatever their type.
$kprism record probe -q 'syscalls:sys_enter_dup2 if newfd == 7 && (int)oldfd >= 0' --collect 'oldfd,newfd' -o /tmp/dup -- \
	sh -c 'exec 7>&1; exec 8>&1; exec 7>&1'
$kprism record probe -q 'syscalls:sys_enter_openat if dfd == -100 && flags == 0' --collect 'dfd,flags' --hist flags -o /tmp/at -- cat /etc/hostname > /dev/null
$kprism record probe -q 'sched:sched_switch if prev_comm == 3' -o /tmp/array -- true 2> /tmp/array.said || echo $? >> /tmp/array.said
# A module's function; the module stays as long as it is probed.
modprobe dummy
$kprism explain 'dummy_get_stats64 if dev->ifindex > 0' > /tmp/explained 2>&1
$kprism record probe dummy_get_stats64 --collect 'dev->name,$comm' -o /tmp/module -- \
	sh -c 'cat /sys/class/net/dummy0/statistics/rx_bytes; rmmod dummy 2>&1; echo $?' > /tmp/module.out 2> /dev/null
rmmod dummy
$kprism record probe -q dummy_get_stats64 -o /tmp/unloaded -- true 2> /tmp/unloaded.said || echo $? >> /tmp/unloaded.said
$kprism record probe -q 'vfs_write if count == 7' --collect '$stack' -o /tmp/stack -- $work
# Counted in the kernel, by fentry and by fexit; a variable, a turn, and a stop.
$kprism record probe -q 'vfs_write if count == 7' --by "\$comm,$name" --hist 'count + *pos' --linear count,0,16,8 \
	-o /tmp/counts -- $work
$kprism record probe -q 'vfs_write%return if count == 7' --by '$retval' --var sum=1 --set '$sum += $retval' \
	-o /tmp/counted -- $work
$kprism record probe -q 'vfs_write if count == 7' --skip 2 --pass 3 --var n --set '$n++' --collect '$n' -o /tmp/turn -- $work
$kprism record probe -q 'vfs_write if count == 7' --start-when 'do_sys_openat2' --stop-when 'vfs_write if count == 9' \
	--collect count --last 4 -o /tmp/last -- sh -c "$work; : < /dev/null; $work; printf 123456789; $work" > /dev/null
# Sums and other aggregates, by fentry and by fexit, from a file; a line.
cat > /tmp/sums.kp << 'END'
vfs_write%return if count == 7  # as written
    by $comm sum $retval, -count min $retval max count avg count latest $retval
vfs_write if count == 7
    printf "%s: %lu of %s\n", $comm, count, file->f_path.dentry->d_name.name
END
$kprism record probe -q -f /tmp/sums.kp -o /tmp/sums -- $work
# A cgroup, by the inode of its folder.
mkdir /tmp/cgroups && busybox mount -t cgroup2 none /tmp/cgroups && mkdir /tmp/cgroups/own
stat -c %i /tmp/cgroups/own > /tmp/inode
$kprism record probe -q 'vfs_write if count == 7' --by '$cgroup' -o /tmp/cgroup -- \
	sh -c "echo \$\$ > /tmp/cgroups/own/cgroup.procs; $work"
for text in inode seqnum array.said variadic.said excluded.said nowhere.said explained module.out unloaded.said; do
	echo "== $text"
	cat /tmp/$text
done
for run in entry return open variadic module stack; do
	echo "== $run manifest"
	cat /tmp/$run/manifest.json
	echo "== $run script"
	$kprism script probe --json -i /tmp/$run
done
for run in counts counted turn last sums cgroup crowd dup at; do
	echo "== $run report"
	$kprism report probe --json -i /tmp/$run
done
# A recorder that is killed leaves nothing.
cp /sys/kernel/tracing/enabled_functions /tmp/before
$kprism record probe -q -a vfs_read -o /tmp/killed &
for i in $(seq 100); do
	grep -q vfs_read /sys/kernel/tracing/enabled_functions && break
	sleep 0.1
done
echo "== during"
cat /sys/kernel/tracing/enabled_functions
kill -9 $!
wait $! 2>/dev/null || true
for i in $(seq 100); do
	cmp -s /tmp/before /sys/kernel/tracing/enabled_functions && break
	sleep 0.1
done
echo "== after"
cat /sys/kernel/tracing/enabled_functions
