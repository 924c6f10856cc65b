# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Runs in the guest: GDB's sessions with the kernel, and what is left after the server was killed.
set -e
insmod /test/kgtp.ko
sections=/sys/module/kgtp/sections
{
	printf 'add-symbol-file /test/kgtp.debug %s' "$(cat $sections/.text)"
	printf ' -s %s' ".data $(cat $sections/.data)"
	printf '\nset $vfs_write = 0x%s\n' "$(grep ' T vfs_write$' /proc/kallsyms | cut -d' ' -f1)"
} > /tmp/symbols.gdb
/test/kprism gdbserver --kernel --module-file /test/kgtp.ko /tmp/socket 2> /tmp/said &
server=$!
while ! [ -S /tmp/socket ]; do sleep 0.1; done
# What the server says to GDB, and errors, GDB writes to standard error.
# GDB 13 assigns to a string before it is made where it sees a static tracepoint: memory that is zero makes that harmless.
tunables=glibc.malloc.tcache_count=0:glibc.malloc.perturb=255
GLIBC_TUNABLES=$tunables gdb -nx -batch -x /test/guest.gdb < /dev/null 2>&1
echo '== said'
cat /tmp/said
# Nothing is left, also when it is killed.
cat > /tmp/leave.gdb <<'END'
target remote /tmp/socket
trace *$vfs_write
tstart
shell cat /sys/kernel/debug/kprobes/list > /tmp/during
shell kill -9 $(cat /tmp/server)
END
sed -i '/^set/!d' /tmp/symbols.gdb
echo $server > /tmp/server
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null || true
gdb -nx -batch -x /tmp/symbols.gdb -x /tmp/leave.gdb < /dev/null || true
wait $server || true
echo '== during'
cat /tmp/during
echo '== after'
cat /sys/kernel/debug/kprobes/list
