// SPDX-License-Identifier: MIT OR Apache-2.0
//! A running process, or a program started for GDB, which waits at its first instruction.
//!
//! To read registers, a thread is stopped for some microseconds. A started program is held again at its end, so that
//! its memory can still be read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use kprism_bpf::link::{Link, When};
use kprism_bpf::prog::Program;
use kprism_jump::maps::{self, Mapping};

use super::usdt::{self, Marker, Noted};
use crate::Error;
use crate::registers::Registers;

/// State of a program that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    /// Not started here; it runs.
    Never,
    /// Held at its first instruction.
    Start,
    /// Running after its start.
    Running,
    /// Held at its end, with this status.
    End,
}

/// The end of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// It is about to end. Its memory is still there.
    Ending,
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
}

/// A process with its memory and cached registers.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    memory: File,
    hold: Hold,
    seen: BTreeMap<u32, Option<Registers>>,
    /// Static tracepoints of the files that were mapped, by device and inode.
    noted: HashMap<(String, u64), Rc<[Noted]>>,
    said: Vec<String>,
}

impl Process {
    /// Opens a running process.
    pub fn running(pid: u32) -> Result<Self, Error> {
        Self::new(pid, Hold::Never)
    }

    /// Starts a program and holds it at its first instruction.
    pub fn start(file: &Path, arguments: &[String]) -> Result<Self, Error> {
        let mut command = Command::new(file);
        command.args(arguments);
        // SAFETY: ptrace(PTRACE_TRACEME) takes no memory, and may be called after fork.
        unsafe {
            command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
                -1 => Err(io::Error::last_os_error()),
                _ => Ok(()),
            });
        }
        let child = command.spawn().map_err(Error::system(file.display().to_string()))?;
        let pid = child.id();
        let mut status = 0;
        let options = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_EXITKILL;
        // SAFETY: the status is ours; the options are a number.
        unsafe {
            libc::waitpid(pid.cast_signed(), &raw mut status, 0);
            libc::ptrace(libc::PTRACE_SETOPTIONS, pid.cast_signed(), 0, options);
        }
        if !libc::WIFSTOPPED(status) {
            return Err(Error::Cannot(format!("{}: it ended before its first instruction", file.display())));
        }
        Self::new(pid, Hold::Start)
    }

    /// Lets a started program run to its own first instruction: the dynamic linker has loaded its libraries, and their
    /// constructors have run.
    pub fn to_entry(&mut self) -> Result<(), Error> {
        const AT_ENTRY: u64 = 9;
        let pid = self.pid.cast_signed();
        let auxv = self.auxv();
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        let entry =
            auxv.chunks_exact(16).find(|pair| word(&pair[..8]) == AT_ENTRY).map(|pair| word(&pair[8..]));
        let cannot =
            |why: &str| Error::Cannot(format!("the program cannot be held at its entry point: {why}"));
        let entry = entry.ok_or_else(|| cannot("the kernel does not tell where that is"))?;
        let code: [u8; 8] = self.read(entry, 8).try_into().map_err(|_| cannot("it cannot be read"))?;
        let breakpoint = [&[0xcc], &code[1..]].concat();
        let write = |bytes: &[u8]| {
            // SAFETY: the address and the word are numbers.
            let done = unsafe { libc::ptrace(libc::PTRACE_POKETEXT, pid, entry, word(bytes)) };
            if done == 0 { Ok(()) } else { Err(cannot(&io::Error::last_os_error().to_string())) }
        };
        write(&breakpoint)?;
        let mut signal = 0;
        loop {
            let mut status = 0;
            self.resume(signal);
            // SAFETY: the status is ours.
            unsafe { libc::waitpid(pid, &raw mut status, 0) };
            if !libc::WIFSTOPPED(status) || status >> 16 == libc::PTRACE_EVENT_EXIT {
                return Err(cannot("it ended before"));
            }
            signal = libc::WSTOPSIG(status);
            // SAFETY: all zeros are valid registers.
            let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
            // SAFETY: it fills the structure it is given.
            unsafe { libc::ptrace(libc::PTRACE_GETREGS, pid, 0, &raw mut registers) };
            // The instruction pointer is behind the breakpoint.
            if signal == libc::SIGTRAP && registers.rip == entry + 1 {
                registers.rip = entry;
                // SAFETY: it reads the structure it is given.
                unsafe { libc::ptrace(libc::PTRACE_SETREGS, pid, 0, &raw const registers) };
                return write(&code);
            }
        }
    }

    fn new(pid: u32, hold: Hold) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/mem");
        let memory = File::open(&path).map_err(Error::system(path))?;
        let (seen, noted) = (BTreeMap::new(), HashMap::new());
        Ok(Self { pid, memory, hold, seen, noted, said: Vec::new() })
    }

    /// Its process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns true if it was started here.
    pub fn ours(&self) -> bool {
        self.hold != Hold::Never
    }

    /// Returns true if it is held.
    pub fn held(&self) -> bool {
        matches!(self.hold, Hold::Start | Hold::End)
    }

    /// Releases it if it is held.
    pub fn go(&mut self) {
        self.seen.clear();
        if self.held() {
            self.hold = Hold::Running;
            self.resume(0);
        }
    }

    fn resume(&self, signal: i32) {
        // SAFETY: numbers only.
        unsafe { libc::ptrace(libc::PTRACE_CONT, self.pid.cast_signed(), 0, signal) };
    }

    /// Kills a program that was started here. Others are left alone.
    pub fn kill(&self) {
        if self.ours() {
            // SAFETY: numbers only; the process is our child and not reaped.
            unsafe { libc::kill(self.pid.cast_signed(), libc::SIGKILL) };
        }
    }

    /// Lets a started program run on without tracing.
    pub fn let_go(&mut self) {
        if self.held() {
            self.go();
        }
    }

    /// Returns how the process ended, if it has. Forwards the signals that it received meanwhile.
    pub fn ended(&mut self) -> Option<Gone> {
        if self.hold == Hold::Never {
            return (!Path::new(&format!("/proc/{}", self.pid)).exists()).then_some(Gone::Exited(0));
        }
        loop {
            let mut status = 0;
            // SAFETY: the status is ours.
            let pid = unsafe { libc::waitpid(self.pid.cast_signed(), &raw mut status, libc::WNOHANG) };
            if pid <= 0 {
                return None;
            }
            if libc::WIFEXITED(status) {
                return Some(Gone::Exited(libc::WEXITSTATUS(status)));
            }
            if libc::WIFSIGNALED(status) {
                return Some(Gone::Killed(libc::WTERMSIG(status)));
            }
            if status >> 16 == libc::PTRACE_EVENT_EXIT {
                self.hold = Hold::End;
                self.seen.clear();
                return Some(Gone::Ending);
            }
            // An exec raises a SIGTRAP, which only tracers see.
            let signal = libc::WSTOPSIG(status);
            self.resume(if signal == libc::SIGTRAP { 0 } else { signal });
        }
    }

    /// Reads memory, as far as it is readable.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut done = 0;
        while done < length {
            match self.memory.read_at(&mut bytes[done..], address.wrapping_add(done as u64)) {
                Ok(n) if n > 0 => done += n,
                _ => break,
            }
        }
        bytes.truncate(done);
        bytes
    }

    /// Its threads, the main thread first.
    pub fn threads(&self) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));
        let all: BTreeSet<u32> = tasks
            .into_iter()
            .flatten()
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .collect();
        let mut all: Vec<u32> = all.into_iter().filter(|tid| *tid != self.pid).collect();
        all.insert(0, self.pid);
        all
    }

    /// A thread's name.
    pub fn thread_name(&self, tid: u32) -> String {
        let text = fs::read_to_string(format!("/proc/{}/task/{tid}/comm", self.pid));
        text.unwrap_or_default().trim_end().to_owned()
    }

    /// Path of the program's file.
    pub fn file(&self) -> Option<PathBuf> {
        fs::read_link(format!("/proc/{}/exe", self.pid)).ok()
    }

    /// Path of the file that is mapped at an address.
    pub fn file_at(&self, address: u64) -> Option<PathBuf> {
        at(&self.maps().ok()?, address).map(|mapping| PathBuf::from(&mapping.path))
    }

    /// The auxiliary vector that the kernel passed to the program.
    pub fn auxv(&self) -> Vec<u8> {
        fs::read(format!("/proc/{}/auxv", self.pid)).unwrap_or_default()
    }

    /// Drops the cached registers.
    pub fn look_again(&mut self) {
        self.seen.clear();
    }

    /// A thread's registers at the time they were first requested since the last [`Process::look_again`].
    pub fn registers(&mut self, tid: u32) -> Option<Registers> {
        if let Some(known) = self.seen.get(&tid) {
            return *known;
        }
        let found = if self.held() && tid == self.pid { registers(tid) } else { self.glance(tid) };
        self.seen.insert(tid, found);
        found
    }

    /// Stops a thread, reads its registers, and lets it run.
    fn glance(&self, tid: u32) -> Option<Registers> {
        if self.ours() {
            // It already has a tracer: this process.
            return None;
        }
        let tid_of = tid.cast_signed();
        // SAFETY: numbers only, but for the status, which is ours.
        unsafe {
            if libc::ptrace(libc::PTRACE_SEIZE, tid_of, 0, 0) != 0 {
                return None;
            }
            let mut status = 0;
            let mut found = None;
            if libc::ptrace(libc::PTRACE_INTERRUPT, tid_of, 0, 0) == 0
                && libc::waitpid(tid_of, &raw mut status, libc::__WALL) == tid_of
                && libc::WIFSTOPPED(status)
            {
                found = registers(tid);
            }
            // A signal that arrived in between is passed on.
            let signal =
                if status >> 16 == 0 && libc::WIFSTOPPED(status) { libc::WSTOPSIG(status) } else { 0 };
            libc::ptrace(libc::PTRACE_DETACH, tid_of, 0, signal);
            found
        }
    }

    /// The static tracepoints of its program and libraries, looked up again, as libraries come and go.
    pub fn markers(&mut self) -> Result<Vec<Marker>, Error> {
        let maps = self.maps()?;
        let code = maps.iter().filter(|mapping| mapping.executable);
        let mut all: Vec<Marker> = code.flat_map(|mapping| self.markers_in(mapping)).collect();
        all.sort_by(|a, b| (&a.noted.name, a.address).cmp(&(&b.noted.name, b.address)));
        Ok(all)
    }

    /// The static tracepoint at this address, if there is one.
    pub fn marker_at(&mut self, address: u64) -> Option<Marker> {
        let maps = self.maps().ok()?;
        self.markers_in(at(&maps, address)?).into_iter().find(|marker| marker.address == address)
    }

    /// Static tracepoints in a mapped part of a file, whose notes are read once.
    fn markers_in(&mut self, mapping: &Mapping) -> Vec<Marker> {
        let key = (mapping.device.clone(), mapping.inode);
        let file = self.noted.get(&key).cloned();
        let noted = file.unwrap_or_else(|| {
            let path = path_of(mapping, self.pid);
            // A device may do anything when it is opened.
            let found = if path.is_file() { usdt::of_file(&path) } else { Ok(Vec::new()) };
            let found = found.unwrap_or_else(|why| {
                self.said.push(format!("static tracepoints of {}: {why}", mapping.path));
                Vec::new()
            });
            Rc::from(found)
        });
        self.noted.insert(key, noted.clone());
        let name = Path::new(&mapping.path).file_name().map(|name| name.to_string_lossy().into_owned());
        let there = |noted: &Noted| {
            let within = noted.offset.checked_sub(mapping.offset)?;
            let address = mapping.range.start.checked_add(within).filter(|at| *at < mapping.range.end)?;
            Some(Marker { address, noted: noted.clone(), file: name.clone().unwrap_or_default() })
        };
        noted.iter().filter_map(there).collect()
    }

    /// News about files since the last call.
    pub fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// Its mappings of files.
    fn maps(&self) -> Result<Vec<Mapping>, Error> {
        let mut maps = maps::of(self.pid).map_err(Error::system(format!("/proc/{}/maps", self.pid)))?;
        maps.retain(|mapping| mapping.path.starts_with('/'));
        Ok(maps)
    }

    /// Attaches a program at an address, by the mapped file and the offset in it. At a static tracepoint, the program
    /// is shown that somebody listens.
    pub fn attach(&mut self, program: &Program, address: u64) -> Result<Link, Error> {
        let maps = self.maps()?;
        let nowhere = || Error::Cannot(format!("{address:#x}: no file's code is mapped there"));
        let mapping = at(&maps, address).ok_or_else(nowhere)?;
        let file = path_of(mapping, self.pid);
        let offset = address - mapping.range.start + mapping.offset;
        if let Some(begins) = kprism_probe::place::machine::around_offset(&file, offset) {
            let what =
                format!("{address:#x} is in the middle of an instruction, which begins at {begins:#x} of");
            let why = "a breakpoint would make another of it";
            return Err(Error::Cannot(format!("{what} {}: {why}", file.display())));
        }
        let pid = self.pid.cast_signed();
        let marker = self.markers_in(mapping).into_iter().find(|marker| marker.address == address);
        match marker.map_or(0, |marker| marker.noted.listeners) {
            0 => Ok(Link::uprobe(program, &file, offset, When::Entry, pid, 0)?),
            listeners => Ok(Link::usdt(program, &file, offset, listeners, pid)?),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.ours() {
            self.kill();
        }
    }
}

/// Registers of a stopped thread.
fn registers(tid: u32) -> Option<Registers> {
    // SAFETY: all zeros are valid registers.
    let mut r: libc::user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: it fills the structure it is given, or fails.
    let result = unsafe { libc::ptrace(libc::PTRACE_GETREGS, tid.cast_signed(), 0, &raw mut r) };
    (result == 0).then_some(Registers([
        r.r15, r.r14, r.r13, r.r12, r.rbp, r.rbx, r.r11, r.r10, r.r9, r.r8, r.rax, r.rcx, r.rdx, r.rsi,
        r.rdi, r.orig_rax, r.rip, r.cs, r.eflags, r.rsp, r.ss,
    ]))
}

/// The mapping of a file that contains an address.
fn at(maps: &[Mapping], address: u64) -> Option<&Mapping> {
    maps.iter().find(|mapping| mapping.range.contains(&address))
}

/// A path of a mapped file. It is opened through the process where its name is another file's or nobody's: the process's
/// root may differ, and the file may be deleted.
fn path_of(mapping: &Mapping, pid: u32) -> PathBuf {
    let named = PathBuf::from(&mapping.path);
    if fs::metadata(&named).is_ok_and(|file| file.is_file() && file.ino() == mapping.inode) {
        return named;
    }
    PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.range.start, mapping.range.end))
}
