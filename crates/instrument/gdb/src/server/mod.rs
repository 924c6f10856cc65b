// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses GDB's packets and writes the replies.

pub(crate) mod frames;
mod status;
mod trace;

use std::collections::{BTreeSet, VecDeque};
use std::path::PathBuf;

use kprism_rsp::buffer::Buffer;
use kprism_rsp::command::{self, Command, Thread};
use kprism_rsp::define::Definitions;
use kprism_rsp::{hex, wire};

use crate::engine::Engine;
use crate::files::Files;
use crate::registers;
use crate::target::{Gone, Target};

use status::{Notes, Stop};

/// Maximum of memory in one packet, bytes.
const MOST_MEMORY: u64 = wire::LONGEST as u64 / 2 - 16;

/// The reply to a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// This text.
    Text(Vec<u8>),
    /// No reply yet: GDB waits for the program to stop.
    Later,
    /// This text, and no acknowledgements from then on.
    Quiet(Vec<u8>),
    /// This text, then the connection ends.
    Last(Vec<u8>),
    /// The connection ends.
    End,
}

/// A server's state, which outlives connections.
#[derive(Debug)]
pub struct Server {
    target: Target,
    definitions: Definitions,
    engine: Option<Engine>,
    running: bool,
    buffer: Buffer,
    size: usize,
    ring_bytes: u32,
    circular: bool,
    keep: bool,
    stop: Stop,
    notes: Notes,
    started: u64,
    stopped: u64,
    /// The trace frame that GDB has selected.
    frame: Option<u32>,
    thread: u32,
    listing: VecDeque<String>,
    /// Console output for GDB, sent before the reply.
    console: Vec<String>,
    /// Messages that the user has been given, for `monitor markers`.
    told: Vec<String>,
    files: Files,
    connected: bool,
    waiting: bool,
    /// Breakpoints that GDB believes are set.
    breakpoints: BTreeSet<u64>,
    gone: Option<Gone>,
}

fn ok() -> Answer {
    text("OK")
}

fn text(text: impl Into<String>) -> Answer {
    Answer::Text(text.into().into_bytes())
}

fn error() -> Answer {
    text("E01")
}

impl Server {
    /// A server for a target. `size` is the trace buffer's size unless GDB sets another, `ring_bytes` the size of the
    /// kernel's ring.
    pub fn new(target: Target, size: usize, ring_bytes: u32) -> Self {
        let thread = target.pid();
        Self {
            target,
            definitions: Definitions::default(),
            engine: None,
            running: false,
            buffer: Buffer::new(size, false),
            size,
            ring_bytes,
            circular: false,
            keep: false,
            stop: Stop::NotRun,
            notes: Notes::default(),
            started: 0,
            stopped: 0,
            frame: None,
            thread,
            listing: VecDeque::new(),
            console: Vec::new(),
            told: Vec::new(),
            files: Files::default(),
            connected: false,
            waiting: false,
            breakpoints: BTreeSet::new(),
            gone: None,
        }
    }

    /// Returns true while tracing runs.
    pub fn is_tracing(&self) -> bool {
        self.running
    }

    /// Returns true if GDB waits for the program to stop.
    pub fn is_waiting(&self) -> bool {
        self.waiting
    }

    /// The end of the program, if it has ended.
    pub fn gone(&self) -> Option<Gone> {
        self.gone.filter(|gone| *gone != Gone::Ending)
    }

    /// Takes the console output for GDB.
    pub fn console(&mut self) -> Vec<String> {
        std::mem::take(&mut self.console)
    }

    /// Messages for the user, about debug information that was looked for.
    pub fn said(&mut self) -> Vec<String> {
        let said = self.target.said();
        self.told.extend(said.iter().cloned());
        said
    }

    /// A client connected.
    pub fn connected(&mut self) {
        self.connected = true;
        self.frame = None;
        self.waiting = false;
        self.breakpoints.clear();
        self.thread = self.target.pid();
        self.target.look_again();
    }

    /// The connection is closed: tracing ends, unless GDB asked to continue.
    pub fn disconnected(&mut self) {
        self.connected = false;
        self.waiting = false;
        if self.gone == Some(Gone::Ending) {
            self.let_go();
        }
        if self.running && !self.keep {
            self.finish(Stop::Disconnected);
        }
    }

    /// Handles new records and the program's end. Returns the text for which GDB waited, if any.
    pub fn tick(&mut self) -> Option<Vec<u8>> {
        if self.running {
            self.drain();
        }
        if self.gone.is_none() || self.gone == Some(Gone::Ending) {
            let gone = self.target.as_process().and_then(crate::target::Process::ended);
            if let Some(gone) = gone {
                self.gone = Some(gone);
                // No client can look at it.
                if gone == Gone::Ending && !self.connected {
                    self.let_go();
                }
                if self.waiting {
                    self.waiting = false;
                    if gone == Gone::Ending {
                        self.console
                            .push("kprism: the program is at its end; its memory is still there\n".into());
                    }
                    return Some(self.halted());
                }
            }
        }
        None
    }

    /// Ctrl-C: the registers are read again.
    pub fn interrupt(&mut self) -> Option<Vec<u8>> {
        if !std::mem::take(&mut self.waiting) {
            return None;
        }
        self.target.look_again();
        Some(self.stopped_by(2))
    }

    fn stopped_by(&self, signal: u8) -> Vec<u8> {
        let (pid, tid) = (self.target.pid(), self.thread);
        format!("T{signal:02x}thread:p{pid:x}.{tid:x};").into_bytes()
    }

    fn halted(&self) -> Vec<u8> {
        let pid = self.target.pid();
        match self.gone {
            None => self.stopped_by(5),
            Some(Gone::Ending) => self.stopped_by(0),
            Some(Gone::Exited(code)) => format!("W{:02x};process:{pid:x}", code & 255).into_bytes(),
            Some(Gone::Killed(signal)) => format!("X{signal:02x};process:{pid:x}").into_bytes(),
        }
    }

    /// Handles a packet and returns the reply.
    pub fn answer(&mut self, packet: &[u8]) -> Answer {
        let Ok(command) = command::parse(packet) else { return error() };
        match command {
            Command::Supported => text(self.supported()),
            Command::NoAck => Answer::Quiet(b"OK".to_vec()),
            Command::Halted => Answer::Text(self.halted()),
            Command::Registers => text(self.registers()),
            Command::Memory { address, length } => {
                let bytes = self.memory(address, length.min(MOST_MEMORY) as usize);
                if bytes.is_empty() && length > 0 { error() } else { text(hex::bytes(&bytes)) }
            }
            // The target is never changed.
            Command::WriteRegisters | Command::WriteMemory => error(),
            Command::Breakpoint { address: None, .. } => error(),
            // On an error GDB would only print "Cannot access memory". So the breakpoint is accepted, and the
            // explanation follows when GDB continues.
            Command::Breakpoint { set: true, address: Some(address) } => {
                if !self.is_gdbs_own(address) {
                    self.breakpoints.insert(address);
                }
                ok()
            }
            Command::Breakpoint { set: false, address: Some(address) } => {
                self.breakpoints.remove(&address);
                ok()
            }
            Command::Continue => {
                if self.gone().is_some() {
                    return Answer::Text(self.halted());
                }
                if let Some(address) = self.breakpoints.first() {
                    self.console.push(format!(
                        "kprism: nothing is stopped here, so a breakpoint ({address:#x}) would be passed unseen, and nothing \
                         goes on with one: `delete` it, and `trace` the place\n"
                    ));
                    return Answer::Text(self.stopped_by(0));
                }
                self.waiting = true;
                self.let_go();
                Answer::Later
            }
            Command::Step => {
                // Signal 0 ends GDB's `next`, which would otherwise step until the line changes.
                self.console.push("kprism: nothing is stepped: this is where it is now\n".into());
                self.target.look_again();
                Answer::Text(self.stopped_by(0))
            }
            Command::CanContinue => text("vCont;c;C;s;S"),
            Command::Kill => {
                if let Some(process) = self.target.as_process() {
                    process.kill();
                }
                if packet.starts_with(b"v") { ok() } else { Answer::End }
            }
            Command::Detach => {
                self.let_go();
                Answer::Last(b"OK".to_vec())
            }
            Command::Select(thread) => {
                if let Some(tid) = self.known(thread) {
                    self.thread = tid;
                    return ok();
                }
                error()
            }
            Command::Alive(thread) => {
                if self.known(thread).is_some() {
                    ok()
                } else {
                    error()
                }
            }
            Command::Threads { first: true } => {
                let pid = self.target.pid();
                let all = self.target.threads().into_iter().take(1000);
                let names: Vec<String> = all.map(|tid| format!("p{pid:x}.{tid:x}")).collect();
                text(format!("m{}", names.join(",")))
            }
            Command::Threads { first: false } => text("l"),
            Command::ThreadName(thread) => {
                let tid = self.known(thread).unwrap_or(self.thread);
                text(hex::bytes(self.target.thread_name(tid).as_bytes()))
            }
            Command::Current => text(format!("QCp{:x}.{:x}", self.target.pid(), self.thread)),
            Command::Attached => {
                let ours = self.target.as_process().is_some_and(|p| p.ours());
                text(if ours { "0" } else { "1" })
            }
            Command::Offsets => match self.target.as_kernel() {
                Some(kernel) => {
                    let slide = kernel.slide();
                    text(format!("Text={slide:x};Data={slide:x};Bss={slide:x}"))
                }
                None => text(""),
            },
            Command::Transfer { object, annex, offset, length } => {
                self.transfer(&object, &annex, offset, length)
            }
            Command::File(request) => {
                let root = match self.target.as_process() {
                    Some(process) => PathBuf::from(format!("/proc/{}/root", process.pid())),
                    None => PathBuf::from("/"),
                };
                Answer::Text(self.files.answer(&request, &root))
            }
            Command::Monitor(line) => self.monitor(line.trim()),
            Command::Unknown => text(""),
            other => self.trace(other, packet),
        }
    }

    fn supported(&mut self) -> String {
        let process =
            if self.target.as_process().is_some() { "qXfer:auxv:read+;qXfer:exec-file:read+;" } else { "" };
        format!(
            "PacketSize={:x};QStartNoAckMode+;multiprocess+;vContSupported+;qXfer:features:read+;{process}\
             qXfer:traceframe-info:read+;qXfer:statictrace:read+;ConditionalTracepoints+;TraceStateVariables+;\
             TracepointSource+;FastTracepoints+;StaticTracepoints+;InstallInTrace+;DisconnectedTracing+;\
             EnableDisableTracepoints+;QTBuffer:size+;tracenz+",
            wire::LONGEST
        )
    }

    /// Returns true for a breakpoint that GDB sets itself to learn of loaded libraries: those are in the dynamic
    /// linker.
    fn is_gdbs_own(&mut self, address: u64) -> bool {
        let file = self.target.as_process().and_then(|process| process.file_at(address));
        file.and_then(|file| Some(file.file_name()?.to_str()?.starts_with("ld"))).unwrap_or(false)
    }

    fn let_go(&mut self) {
        if let Some(process) = self.target.as_process() {
            process.let_go();
        }
        self.target.look_again();
    }

    /// The thread that a packet refers to, if it exists.
    fn known(&self, thread: Thread) -> Option<u32> {
        let threads = self.target.threads();
        match thread.tid {
            -1 | 0 => Some(self.thread).filter(|tid| threads.contains(tid)).or(threads.first().copied()),
            tid => threads.into_iter().find(|t| i64::from(*t) == tid),
        }
    }

    fn registers(&mut self) -> String {
        match self.frame.and_then(|n| self.buffer.get(n)) {
            Some(frame) => frames::registers(frame),
            None => self.target.registers(self.thread),
        }
    }

    fn memory(&self, address: u64, length: usize) -> Vec<u8> {
        match self.frame.and_then(|n| self.buffer.get(n)) {
            Some(frame) => frames::memory(frame, address, length),
            None => self.target.read(address, length),
        }
    }

    fn transfer(&mut self, object: &str, annex: &str, offset: u64, length: u64) -> Answer {
        let frame = self.frame.and_then(|n| self.buffer.get(n));
        let whole = match object {
            "features" if annex == "target.xml" => registers::target_xml().into_bytes(),
            "traceframe-info" => match frame {
                Some(frame) => frames::information(frame).into_bytes(),
                None => return error(),
            },
            "statictrace" => match frame.and_then(|f| f.statics.as_ref()) {
                Some(bytes) => bytes.to_vec(),
                None => return error(),
            },
            "auxv" => match self.target.as_process() {
                Some(process) => process.auxv(),
                None => return text(""),
            },
            "exec-file" => match self.target.as_process().and_then(|p| p.file()) {
                Some(path) => path.to_string_lossy().into_owned().into_bytes(),
                None => return text(""),
            },
            _ => return text(""),
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(whole.len());
        let to = from.saturating_add(length.min(MOST_MEMORY) as usize).min(whole.len());
        let more = if to < whole.len() { b'm' } else { b'l' };
        Answer::Text([&[more], &whole[from..to]].concat())
    }

    /// Handles `monitor …`.
    fn monitor(&mut self, line: &str) -> Answer {
        let said = match line {
            "go" => {
                self.let_go();
                "the program runs\n".to_owned()
            }
            "status" => self.counted(),
            "markers" => match self.target.as_kernel().map(|kernel| kernel.markers().map(|_| ())) {
                None => "static tracepoints are the kernel's: kprism gdbserver --kernel\n".to_owned(),
                Some(Err(why)) => format!("{why}\n"),
                Some(Ok(())) => {
                    self.said();
                    self.told.iter().map(|line| format!("{line}\n")).collect()
                }
            },
            "" | "help" => "monitor go      let the program that waits run\n\
                            monitor status  what each tracepoint counted, lost, could not read\n\
                            monitor markers how many places of static tracepoints are markers, and why not all\n"
                .to_owned(),
            other => format!("kprism knows no `{other}`: monitor help\n"),
        };
        text(hex::bytes(said.as_bytes()))
    }
}
