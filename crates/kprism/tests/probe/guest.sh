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
for run in entry return open; do
	echo "== $run manifest"
	cat /tmp/$run/manifest.json
	echo "== $run script"
	$kprism script probe --json -i /tmp/$run
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
