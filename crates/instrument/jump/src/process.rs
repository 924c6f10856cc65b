// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stops all threads of a process, reads and writes its memory, and lets one of its threads make a system call.
//!
//! Threads are stopped by `PTRACE_SEIZE` and `PTRACE_INTERRUPT`, which send no signal that the program could see; signals that
//! arrive meanwhile are passed on. A process that has just executed its program for its parent (`PTRACE_TRACEME`) is stopped
//! already. Only the thread that stopped a process may ask for its registers, and what it leaves behind the kernel detaches when it
//! ends: with the registers, the mask and the single step that it then has. So [`crate::guard`] does it for a program that runs.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use libc::{c_int, c_void, pid_t};

use crate::maps::{self, Mapping};

/// Longest time that a thread may take to stop. One that waits in the kernel for a device cannot.
const PATIENCE: Duration = Duration::from_millis(500);
/// Most bytes of a thread's stack that are searched for a signal's return address.
const STACK: u64 = 8 << 20;

/// A process whose threads are all stopped. They go on when this is dropped.
#[derive(Debug)]
pub struct Stopped {
    pid: u32,
    threads: Vec<pid_t>,
    /// Signals that a thread gets when it goes on.
    signals: Vec<(pid_t, c_int)>,
    /// Stopped by this, and not by its own `PTRACE_TRACEME`.
    seized: bool,
    memory: File,
}

fn ptrace(request: libc::c_uint, tid: pid_t, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: `data` is a number, or points to memory of the size that the request takes, which lives through the call: that is
    // for the callers below, and the only thing to prove for each.
    let done = unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) };
    if done == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn registers(tid: pid_t) -> io::Result<libc::user_regs_struct> {
    // SAFETY: all fields are numbers.
    let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, tid, 0, (&raw mut registers).addr())?;
    Ok(registers)
}

fn set_registers(tid: pid_t, registers: &libc::user_regs_struct) -> io::Result<()> {
    ptrace(libc::PTRACE_SETREGS, tid, 0, (&raw const *registers).addr())
}

/// A thread's next stop: its status; `None` if it has ended.
fn stop_of(tid: pid_t) -> Result<Option<c_int>, String> {
    let begun = Instant::now();
    loop {
        let mut status = 0;
        // SAFETY: one number, which lives through the call.
        match unsafe { libc::waitpid(tid, &raw mut status, libc::__WALL | libc::WNOHANG) } {
            0 if begun.elapsed() > PATIENCE => {
                return Err(format!("thread {tid} does not stop: it waits in the kernel"));
            }
            0 => std::thread::sleep(Duration::from_micros(20)),
            -1 if io::Error::last_os_error().raw_os_error() == Some(libc::EINTR) => {}
            -1 => return Ok(None),
            _ if libc::WIFSTOPPED(status) => return Ok(Some(status)),
            _ => return Ok(None),
        }
    }
}

/// Waits until an interrupted thread has stopped for that. Signals before it are passed on. False if the thread has ended.
fn interrupted(tid: pid_t) -> Result<bool, String> {
    loop {
        let Some(status) = stop_of(tid)? else { return Ok(false) };
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => return Ok(true),
            libc::PTRACE_EVENT_STOP => return Err("the process is stopped (SIGSTOP)".to_owned()),
            _ if ptrace(libc::PTRACE_CONT, tid, 0, signal as usize).is_err() => return Ok(false),
            _ => {}
        }
    }
}

impl Stopped {
    /// Stops all threads of a process.
    ///
    /// # Errors
    /// The reason why it cannot be stopped, or should not be.
    pub fn seize(pid: u32) -> Result<Self, String> {
        let mut this =
            Self { pid, threads: Vec::new(), signals: Vec::new(), seized: true, memory: memory(pid)? };
        let mut gone = BTreeSet::new();
        loop {
            let mut found_new = false;
            for tid in threads(pid)? {
                if this.threads.contains(&tid) || gone.contains(&tid) {
                    continue;
                }
                found_new = true;
                let options = libc::PTRACE_O_TRACESYSGOOD as usize;
                match ptrace(libc::PTRACE_SEIZE, tid, 0, options) {
                    Ok(()) => {}
                    // It has ended, or is a zombie.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) || is_zombie(pid, tid) => {
                        gone.insert(tid);
                        continue;
                    }
                    Err(error) => return Err(format!("it cannot be stopped (ptrace): {error}")),
                }
                this.threads.push(tid);
                let stopped = ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).is_ok() && interrupted(tid)?;
                if !stopped {
                    this.threads.pop();
                    gone.insert(tid);
                }
            }
            if !found_new {
                break;
            }
        }
        if this.threads.is_empty() {
            return Err("it has ended".to_owned());
        }
        Ok(this)
    }

    /// Takes over a child that asked to be traced and stopped when it executed its program.
    ///
    /// # Errors
    /// It did not stop so.
    pub fn child(pid: u32) -> Result<Self, String> {
        let tid = pid.cast_signed();
        match stop_of(tid)? {
            Some(status) if libc::WSTOPSIG(status) == libc::SIGTRAP => {}
            _ => return Err("the command did not stop when it began".to_owned()),
        }
        let this = Self { pid, threads: vec![tid], signals: Vec::new(), seized: false, memory: memory(pid)? };
        // It has executed nothing yet. If this process is killed, it never does: it could have another's registers now.
        let options = (libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL) as usize;
        ptrace(libc::PTRACE_SETOPTIONS, tid, 0, options).map_err(|error| error.to_string())?;
        Ok(this)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Ends the process, before it executes another instruction.
    pub fn kill(&self) {
        // SAFETY: kill touches no memory; the process is stopped and has not been waited for, so the number is its own.
        unsafe { libc::kill(self.pid.cast_signed(), libc::SIGKILL) };
    }

    /// Reads memory.
    pub fn read(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.memory.read_exact_at(into, at)
    }

    /// Writes memory, code too.
    pub fn write(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.memory.write_all_at(bytes, at)
    }

    /// Lets threads that are in the range step out of it. False if one stays, or will come back from a signal's handler.
    ///
    /// # Errors
    /// That cannot be told.
    pub fn leave(&mut self, range: &Range<u64>) -> Result<bool, String> {
        let maps = maps::of(self.pid).map_err(|error| error.to_string())?;
        for tid in self.threads.clone() {
            let failed = |error: io::Error| format!("registers: {error}");
            // A thread that has just passed the uprobe at the place stands behind its first instruction, and so most do.
            if range.contains(&registers(tid).map_err(failed)?.rip) && !self.step_out(tid, range)? {
                return Ok(false);
            }
            let rsp = registers(tid).map_err(failed)?.rsp;
            if self.returns_into(range, rsp, &maps)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Executes one instruction of a thread after another, until it is out of the range.
    fn step_out(&mut self, tid: pid_t, range: &Range<u64>) -> Result<bool, String> {
        /// A string instruction takes a step for each of its elements.
        const STEPS: u32 = 64;
        /// Faults of an instruction, and the trap behind it, must not be blocked: the kernel would end the program for them.
        const OF_INSTRUCTIONS: [c_int; 5] =
            [libc::SIGTRAP, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL];
        let failed = |error: io::Error| format!("a step of thread {tid}: {error}");
        let mut mask = 0_u64;
        let faults: u64 = OF_INSTRUCTIONS.iter().map(|signal| 1 << (signal - 1)).sum();
        let most = !faults;
        ptrace(libc::PTRACE_GETSIGMASK, tid, 8, (&raw mut mask).addr()).map_err(failed)?;
        ptrace(libc::PTRACE_SETSIGMASK, tid, 8, (&raw const most).addr()).map_err(failed)?;
        let mut out = false;
        for _ in 0..STEPS {
            ptrace(libc::PTRACE_SINGLESTEP, tid, 0, 0).map_err(failed)?;
            let Some(status) = stop_of(tid)? else { return Ok(false) };
            let signal = libc::WSTOPSIG(status);
            if signal != libc::SIGTRAP {
                self.signals.push((tid, signal));
                break;
            }
            out = !range.contains(&registers(tid).map_err(failed)?.rip);
            if out {
                break;
            }
        }
        ptrace(libc::PTRACE_SETSIGMASK, tid, 8, (&raw const mask).addr()).map_err(failed)?;
        Ok(out)
    }

    /// Whether a word of the stack is an address in the range: of a signal's frame, or a number that looks so.
    fn returns_into(&self, range: &Range<u64>, rsp: u64, maps: &[Mapping]) -> Result<bool, String> {
        let Some(map) = maps.iter().find(|map| map.range.contains(&rsp)) else { return Ok(true) };
        let from = rsp & !7;
        if map.range.end - from > STACK {
            return Err(
                "a thread has more than 8 MiB on its stack, which are not searched for interrupted code"
                    .to_owned(),
            );
        }
        let mut words = vec![0; (map.range.end - from) as usize];
        self.read(from, &mut words).map_err(|error| format!("a thread's stack: {error}"))?;
        let mut words =
            words.chunks_exact(8).filter_map(|word| Some(u64::from_le_bytes(word.try_into().ok()?)));
        Ok(words.any(|word| range.contains(&word)))
    }

    /// The thread that makes system calls: one that is in such a call, if any is. It is in no restartable sequence (rseq), which
    /// another instruction pointer would end without its handler.
    fn calls(&self) -> pid_t {
        let in_call =
            |tid: &&pid_t| registers(**tid).is_ok_and(|registers| registers.orig_rax.cast_signed() >= 0);
        *self.threads.iter().find(in_call).unwrap_or(&self.threads[0])
    }

    /// Lets one thread make a system call, and puts its registers back.
    ///
    /// # Errors
    /// The call failed, or could not be made.
    pub fn system_call(&self, number: libc::c_long, arguments: [u64; 6]) -> Result<u64, String> {
        let tid = self.calls();
        let failed = |error: io::Error| format!("a system call in the process: {error}");
        let at = self.instruction().ok_or("no system call instruction is in its code")?;
        let before = registers(tid).map_err(failed)?;
        let mut call = before;
        call.rip = at;
        call.rax = number.cast_unsigned();
        // Not in a system call: one that was interrupted is not begun again with these registers.
        call.orig_rax = u64::MAX;
        [call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9] = arguments;
        // No handler may run meanwhile: it would see registers that are not the program's.
        let (mut mask, none) = (0_u64, u64::MAX);
        ptrace(libc::PTRACE_GETSIGMASK, tid, 8, (&raw mut mask).addr()).map_err(failed)?;
        ptrace(libc::PTRACE_SETSIGMASK, tid, 8, (&raw const none).addr()).map_err(failed)?;
        let made = set_registers(tid, &call).map_err(failed).and_then(|()| self.step(tid));
        let result = made.and_then(|()| registers(tid).map_err(failed)).map(|now| now.rax);
        // A system call that the stop interrupted is begun again on the way back from an interrupting stop alone.
        if self.seized {
            ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0).map_err(failed)?;
            ptrace(libc::PTRACE_CONT, tid, 0, 0).map_err(failed)?;
            interrupted(tid)?;
        }
        set_registers(tid, &before).map_err(failed)?;
        ptrace(libc::PTRACE_SETSIGMASK, tid, 8, (&raw const mask).addr()).map_err(failed)?;
        let result = result?;
        let error = result.cast_signed();
        if (-4095..0).contains(&error) {
            return Err(format!(
                "a system call in the process: {}",
                io::Error::from_raw_os_error(-error as i32)
            ));
        }
        Ok(result)
    }

    /// Runs the thread from the beginning of a system call to its end.
    fn step(&self, tid: pid_t) -> Result<(), String> {
        for _ in 0..2 {
            ptrace(libc::PTRACE_SYSCALL, tid, 0, 0)
                .map_err(|error| format!("a system call in the process: {error}"))?;
            match stop_of(tid)? {
                Some(status) if libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80 => {}
                Some(status) => return Err(format!("a system call in the process stopped with {status:#x}")),
                None => return Err("it has ended".to_owned()),
            }
        }
        Ok(())
    }

    /// Address of a `syscall` instruction: the kernel's own code in every process has some.
    fn instruction(&self) -> Option<u64> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        let mut maps = maps::of(self.pid).ok()?;
        maps.retain(|map| map.executable && map.path != "[vsyscall]");
        maps.sort_by_key(|map| map.path != "[vdso]");
        maps.iter().find_map(|map| {
            let mut bytes = vec![0; (map.range.end - map.range.start).min(4 << 20) as usize];
            self.read(map.range.start, &mut bytes).ok()?;
            let at = bytes.windows(2).position(|pair| pair == SYSCALL)?;
            Some(map.range.start + at as u64)
        })
    }

    /// Below the stack of the thread that makes system calls: what lies below the red zone is nobody's.
    pub fn below_stack(&self) -> Result<u64, String> {
        let registers = registers(self.calls()).map_err(|error| error.to_string())?;
        Ok((registers.rsp - 512) & !15)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for tid in &self.threads {
            let signal = self.signals.iter().find(|(of, _)| of == tid).map_or(0, |(_, signal)| *signal);
            ptrace(libc::PTRACE_DETACH, *tid, 0, signal as usize).ok();
        }
    }
}

/// Runs in a thread of its own: what it stopped and cannot let go, the kernel lets go when it ends.
///
/// # Errors
/// Those of `work`.
pub fn in_thread<T: Send>(work: impl FnOnce() -> Result<T, String> + Send) -> Result<T, String> {
    let joined = std::thread::scope(|scope| scope.spawn(work).join());
    joined.unwrap_or_else(|_| Err("the thread that stops the process failed".to_owned()))
}

fn memory(pid: u32) -> Result<File, String> {
    let path = format!("/proc/{pid}/mem");
    File::options().read(true).write(true).open(&path).map_err(|error| format!("{path}: {error}"))
}

fn threads(pid: u32) -> Result<Vec<pid_t>, String> {
    let path = format!("/proc/{pid}/task");
    let entries = std::fs::read_dir(&path).map_err(|error| format!("{path}: {error}"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

fn is_zombie(pid: u32, tid: pid_t) -> bool {
    let state = field(&format!("/proc/{pid}/task/{tid}/status"), "State:");
    state.is_none_or(|state| state.starts_with(['Z', 'X']))
}

fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// Why a process cannot have jumps, before it is touched.
pub fn refusal(pid: u32) -> Option<String> {
    let status = format!("/proc/{pid}/status");
    let Some(state) = field(&status, "State:") else { return Some("it has ended".to_owned()) };
    if state.starts_with('T') {
        return Some("it is stopped (SIGSTOP)".to_owned());
    }
    if let Some(tracer) = field(&status, "TracerPid:")
        .filter(|tracer| tracer != "0" && *tracer != std::process::id().to_string())
    {
        return Some(format!("process {tracer} traces it already (ptrace)"));
    }
    if field(&status, "Seccomp:").is_some_and(|mode| mode != "0") {
        return Some("seccomp restricts its system calls, and it would have to make some".to_owned());
    }
    let mut class = [0; 5];
    let read = File::open(format!("/proc/{pid}/exe")).and_then(|file| file.read_exact_at(&mut class, 0));
    match (read, class) {
        (Ok(()), [0x7f, b'E', b'L', b'F', 2]) => None,
        (Ok(()), _) => Some("it is not a 64-bit program".to_owned()),
        (Err(error), _) => Some(format!("its program cannot be read: {error}")),
    }
}
