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

# The same tracepoint at its place in the function, and one with locals that are no arguments of it.
echo == place both\n
strace -m kgtp:kgtp_module_event@kgtp_test_function
condition $tpnum 2*counter1+3*counter2>0 && counter1%100==0
actions
collect counter1, counter2, kgtp_counter
end
info tracepoints
session
frames
delete $tpnum

echo == place locals\n
strace -m kgtp:kgtp_round@kgtp_write
condition $tpnum i % 250 == 249 && loops > counter2
actions
collect i, loops, counter1, counter2, size, $regs
end
set $place = $tpnum
# Its own event, as the judge.
strace -m kgtp_round
condition $tpnum round % 250 == 249
actions
collect $_sdata
end
set $event = $tpnum
# Places have no record of their own.
strace -m kgtp:kgtp_round@kgtp_write
actions
collect $_sdata
end
monitor markers
session
tfind start
while $trace_frame != -1
  if $tracepoint == $place
    printf "> %d %d %d %d %d %d\n", i, loops, counter1, counter2, (int) size, $rsp != 0
  else
    tdump
  end
  tfind
end
delete $place
delete $event
delete $tpnum

echo == kernel\n
trace *$vfs_write
actions
collect $regs
end
condition $tpnum $rdx==7
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
