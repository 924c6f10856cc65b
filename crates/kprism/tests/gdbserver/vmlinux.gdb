# A tracepoint's place in the kernel's own code, with locals that the tracepoint does not have.
set pagination off
set confirm off
# An emulated machine is slow where it is shared.
set remotetimeout 600
target remote /tmp/socket
echo == markers\n
strace -m sched:sched_process_fork@kernel_clone
monitor markers
# CLONE_VFORK: the parent waits for the child. The child has its parent's name, which begins with an f (GDB 13 cannot
# translate 'f').
condition $tpnum clone_flags & 0x4000 && p->comm[0] == 102
actions
collect p->pid, p->comm, clone_flags, args->exit_signal, $regs
end
info tracepoints
tstart
echo == program\n
shell /test/kprism record probe -q --program /test/probes -o /tmp/run -- /test/forks 10
tstop
echo == status\n
tstatus
echo == frames\n
tfind start
while $trace_frame != -1
  printf "> %d %s %#lx %d %d\n", p->pid, p->comm, clone_flags, args->exit_signal, $rsp != 0
  tfind
end
tfind none
# A place where the kernel takes no probe is no marker: this is an error, and ends the session.
echo == none\n
strace -m sched:sched_switch@__schedule
