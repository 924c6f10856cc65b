// SPDX-License-Identifier: MIT OR Apache-2.0
//! Somebody's own QEMU, run with the observer in it.
//!
//! Input: the command line of a `qemu-system-x86_64`. It is changed as little as possible ([`arguments`]): translation in place
//! of KVM, the observer, a control connection. The guest needs no agent and no particular device. The console and the
//! monitor stay the user's. Output: a running QEMU ([`OwnMachine`]), whose kernel can be described from its memory at
//! any time, and a recording that begins and pauses when asked.

pub mod arguments;
pub(crate) mod memory;

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use kprism_kmem::Kernel;
use kprism_kmem::paging::Paged;
use serde_json::{Value, json};

use crate::error::{Context, Error, Result};
use crate::machine::arguments::Arguments;
use crate::machine::memory::GuestMemory;
use crate::qemu::option;
use crate::qmp::Qmp;

/// Longest time for the observer to answer; it waits for a block of the guest to run.
const PATIENCE: Duration = Duration::from_secs(70);
/// CR0.PG and EFER.LMA (SDM volume 3, 2.5 and 2.2.1).
const PAGING: u64 = 1 << 31;
const LONG_MODE: u64 = 1 << 10;
/// CR4.LA57: five levels of page tables (SDM volume 3, 2.5).
const LA57: u64 = 1 << 12;
/// The bit of CR3 by which page table isolation distinguishes the user's half of a pair of tables from the kernel's.
const USER_TABLE: u64 = 1 << 12;
/// Vector of page faults, and size of a gate in the interrupt table.
const PAGE_FAULT: u64 = 14;
const GATE: u64 = 16;

/// A running QEMU of the user's; asked to quit on drop.
#[derive(Debug)]
pub struct OwnMachine {
    child: Child,
    qmp: Qmp,
    control: BufReader<UnixStream>,
    /// True once the observer did not answer: a later answer would be taken for the next one's.
    is_silent: bool,
    /// File in which memory is passed.
    passage: File,
    /// Address of the interrupt table when it was last asked for.
    idt: Option<u64>,
}

/// State of the machine, as QEMU calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// The guest runs.
    Running,
    /// The guest has shut down, and QEMU waits for us before it ends.
    ShutDown,
    /// The guest's kernel has panicked, and QEMU waits.
    Panicked,
    /// The guest is stopped for another reason, as by its user.
    Stopped,
}

impl OwnMachine {
    /// Starts QEMU with the observer `plugin`.
    ///
    /// # Errors
    /// QEMU cannot be started, or does not accept its arguments: what it says goes to standard error, as always.
    pub fn start(arguments: &Arguments, plugin: &Path) -> Result<Self> {
        let program = Path::new(&arguments.program);
        let pair = || UnixStream::pair().at("connect to", program);
        let ((qmp, their_qmp), (control, their_control)) = (pair()?, pair()?);
        let inherited = [OwnedFd::from(their_qmp), OwnedFd::from(their_control)];
        let passage = memory::passage().at("pass memory of", program)?;
        let descriptors = [inherited[0].as_raw_fd(), inherited[1].as_raw_fd(), passage.as_raw_fd()];
        let mut load: OsString = option("", &std::path::absolute(plugin).at("find", plugin)?);
        load.push(format!(",control={},own={}:{}", descriptors[1], descriptors[0], descriptors[2]));
        let mut command = Command::new(program);
        command.args(&arguments.rest).arg("-plugin").arg(load);
        command.arg("-chardev").arg(format!("socket,id=kprism-control,fd={}", descriptors[0]));
        command.args(["-mon", "chardev=kprism-control,mode=control"]);
        if arguments.waits {
            command.args(["-action", "shutdown=pause"]);
        }
        let parent = std::process::id();
        // SAFETY: the closure makes only async-signal-safe calls, and an empty signal set may be all zero.
        unsafe {
            command.pre_exec(move || {
                // If this process dies, QEMU ends as it does when asked to: it completes writes to its disks.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
                if libc::getppid() as u32 != parent {
                    libc::_exit(1);
                }
                // Those of the terminal are for this process, which reads the symbols once more before it ends QEMU.
                let mut terminal = std::mem::zeroed();
                libc::sigemptyset(&raw mut terminal);
                libc::sigaddset(&raw mut terminal, libc::SIGINT);
                libc::sigaddset(&raw mut terminal, libc::SIGHUP);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const terminal, std::ptr::null_mut());
                for descriptor in descriptors {
                    libc::fcntl(descriptor, libc::F_SETFD, 0);
                }
                Ok(())
            });
        }
        let child = command.spawn().at("run", program)?;
        drop(inherited);
        control.set_read_timeout(Some(PATIENCE)).at("connect to", program)?;
        let mut machine = Self {
            child,
            qmp: Qmp::new(qmp),
            control: BufReader::new(control),
            is_silent: false,
            passage,
            idt: None,
        };
        if let Err(error) = machine.qmp.handshake() {
            let ended = machine.wait(Duration::from_secs(5));
            let reason = match ended {
                Some(status) => format!("it ended at once ({status}); what it said is above"),
                None => error.to_string(),
            };
            return Err(Error::Qemu { reason });
        }
        Ok(machine)
    }

    /// State of the machine.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn status(&mut self) -> Result<Status> {
        let state = self.qmp.call("query-status", json!({}))?;
        Ok(match state.get("status").and_then(Value::as_str).unwrap_or_default() {
            "running" => Status::Running,
            "shutdown" => Status::ShutDown,
            "guest-panicked" => Status::Panicked,
            _ => Status::Stopped,
        })
    }

    /// Linear address of the first processor's interrupt table when the kernel was last looked for.
    pub fn interrupt_table(&self) -> Option<u64> {
        self.idt
    }

    /// How often the guest was restarted, as far as QEMU has told by its last answer.
    pub fn resets(&self) -> u32 {
        self.qmp.resets
    }

    /// Stops the guest, describes its kernel from its memory, and lets it go on. The inner error says why no kernel was found,
    /// which may be because it has not started yet.
    ///
    /// # Errors
    /// QEMU does not answer.
    pub fn kernel(&mut self) -> Result<std::result::Result<Kernel, String>> {
        let ran = self.status()? == Status::Running;
        if ran {
            self.qmp.call("stop", json!({}))?;
        }
        let found = self.find_kernel();
        self.passage.set_len(0).ok();
        if ran {
            self.qmp.call("cont", json!({}))?;
        }
        found
    }

    fn find_kernel(&mut self) -> Result<std::result::Result<Kernel, String>> {
        let arguments = json!({ "command-line": "info registers" });
        let registers = self.qmp.call("human-monitor-command", arguments)?;
        let registers = registers.as_str().unwrap_or_default();
        let register = |name: &str| {
            let rest = registers.split_once(name)?.1.trim_start();
            u64::from_str_radix(rest.split(char::is_whitespace).next()?, 16).ok()
        };
        let (Some(cr3), Some(cr4), Some(idt)) = (register("CR3="), register("CR4="), register("IDT=")) else {
            return Err(Error::Qemu { reason: format!("`info registers` says:\n{registers}") });
        };
        self.idt = Some(idt);
        let file = PathBuf::from(format!("/proc/self/fd/{}", self.passage.as_raw_fd()));
        // Before that, CR3 names no page tables of 64-bit code, and what is taken for their entries could be a device.
        let has = |name: &str, bit: u64| register(name).is_some_and(|value| value & bit != 0);
        if !has("CR0=", PAGING) || !has("EFER=", LONG_MODE) {
            return Ok(Err("its first processor does not run 64-bit code yet".into()));
        }
        let mut why = String::new();
        for table in [cr3 & !USER_TABLE, cr3] {
            let memory = GuestMemory::new(&mut self.qmp, &file);
            let mut memory = Paged::at(memory, table, cr4 & LA57 != 0);
            match Kernel::find(&mut memory) {
                Ok(kernel) => return Ok(fits(&kernel, &mut memory, idt).map(|()| kernel)),
                Err(error) => why = error.to_string(),
            }
        }
        Ok(Err(why))
    }

    /// Begins a recording, with the observer's options.
    ///
    /// # Errors
    /// The observer's reason.
    pub fn begin(&mut self, options: &[String]) -> Result<()> {
        self.ask(&json!({ "begin": options }))
    }

    /// Pauses the recording, or goes on with it.
    ///
    /// # Errors
    /// None has begun.
    pub fn trace(&mut self, on: bool) -> Result<()> {
        self.ask(&json!({ "trace": on }))
    }

    fn ask(&mut self, request: &Value) -> Result<()> {
        let failed = |reason: String| Error::Qemu { reason: format!("the observer: {reason}") };
        if self.is_silent {
            return Err(failed("it did not answer before, and is not asked again".into()));
        }
        writeln!(self.control.get_mut(), "{request}").map_err(|error| failed(error.to_string()))?;
        let mut line = String::new();
        if let Err(error) = self.control.read_line(&mut line) {
            self.is_silent = true;
            return Err(failed(error.to_string()));
        }
        let answer: Value =
            serde_json::from_str(&line).map_err(|_| failed(format!("it answered `{line}`")))?;
        match answer.get("error").and_then(Value::as_str) {
            Some(why) => Err(failed(why.to_owned())),
            None => Ok(()),
        }
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Waits for its end, at most for `limit`.
    pub fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            let ended = self.ended();
            if ended.is_some() || start.elapsed() > limit {
                return ended;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Asks QEMU to end.
    pub fn quit(&mut self) {
        self.qmp.send_quit();
    }
}

impl Drop for OwnMachine {
    fn drop(&mut self) {
        if self.ended().is_none() {
            self.quit();
            if self.wait(Duration::from_secs(60)).is_none() {
                self.child.kill().ok();
                self.child.wait().ok();
            }
        }
    }
}

/// Judges the symbols by the processor: the gate of page faults in its interrupt table leads to a function of the kernel's.
fn fits(kernel: &Kernel, memory: &mut dyn kprism_kmem::Memory, idt: u64) -> std::result::Result<(), String> {
    let mut gate = [0; GATE as usize];
    memory
        .read(idt.wrapping_add(PAGE_FAULT * GATE), &mut gate)
        .map_err(|why| format!("the interrupt table at {idt:#x}: {why}"))?;
    // SDM volume 3, figure 6-8: bytes 0, 1, 6 to 11.
    let bytes = [gate[0], gate[1], gate[6], gate[7], gate[8], gate[9], gate[10], gate[11]];
    let address = u64::from_le_bytes(bytes);
    match kernel.name_at(address) {
        Some(name) if name.contains("page_fault") => Ok(()),
        name => Err(format!(
            "page faults are handled at {address:#x}, which is {} by the symbols found",
            name.unwrap_or("the start of no function")
        )),
    }
}
