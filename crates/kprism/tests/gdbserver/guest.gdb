# The paper's sessions (figures 12 and 14), each in its three forms.
set pagination off
set confirm off
# An emulated machine is slow where it is shared.
set remotetimeout 60
target remote /tmp/socket
source /tmp/symbols.gdb
echo == memory\n
print kgtp_counter
x/2i kgtp_write

define session
  tstart
  shell echo 1000 > /proc/kgtp
  tstop
  tstatus
end
define frames
  tfind start
  while $trace_frame != -1
    tdump
    tfind
  end
end

echo == dynamic false\n
trace kgtp_test_function
condition 1 2*counter1+3*counter2<0
actions
collect 2*counter1+3*counter2
end
session
info tracepoints

echo == dynamic expression\n
condition 1
session
tfind 999
tdump

echo == dynamic both\n
condition 1 2*counter1+3*counter2>0 && counter1%100==0
actions 1
collect 2*counter1+3*counter2, kgtp_counter
end
session
frames
delete 1

echo == static markers\n
info static-tracepoint-markers
echo == static false\n
strace -m kgtp_module_event
condition 2 2*counter1+3*counter2<0
actions
collect 2*counter1+3*counter2
collect $_sdata
end
session
info tracepoints

echo == static expression\n
condition 2
session
tfind 999
tdump

echo == static both\n
condition 2 2*counter1+3*counter2>0 && counter1%100==0
session
frames
delete 2

echo == kernel\n
trace *$vfs_write
actions
collect $regs
end
condition 3 $rdx==7
tstart
shell dd if=/dev/zero of=/dev/null bs=7 count=20 status=none
tstop
tstatus
tfind
print $rdx
print $rip == $vfs_write
tfind none
x/i $vfs_write
echo == refused\n
trace *0xffffffff00000000
tstart
