// SPDX-License-Identifier: MIT OR Apache-2.0
//! Loads programs through the verifier, and runs them for tests.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::error::{Error, VerifierLog};
use crate::host;
use crate::map::Map;
use crate::sys::{self, Cmd};
use kprism_ebpf::asm::Code;
use kprism_ebpf::disasm;
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Insn, Reg};

/// A function or tracepoint of the kernel, identified by its BTF ID.
#[derive(Debug, Clone, Copy)]
pub struct BtfTarget<'a> {
    /// BTF ID of the type.
    pub id: u32,
    /// Descriptor of the module's BTF; `None` for the kernel itself.
    pub module: Option<BorrowedFd<'a>>,
}

/// Type of a program.
#[derive(Debug, Clone, Copy)]
pub enum ProgKind<'a> {
    /// kprobe, kretprobe, uprobe or uretprobe through a perf event.
    Kprobe,
    /// Attached to many kernel functions at once.
    KprobeMulti,
    /// As `KprobeMulti`, with entry and return in one program.
    KprobeSession,
    /// Attached to many places of an executable at once.
    UprobeMulti,
    /// A perf tracepoint.
    Tracepoint,
    /// A tracepoint with raw arguments.
    RawTracepoint,
    /// A tracepoint with typed arguments: its `btf_trace_NAME` typedef.
    TpBtf(BtfTarget<'a>),
    /// Entry of a function, with typed arguments.
    Fentry(BtfTarget<'a>),
    /// Return of a function, with typed arguments and return value.
    Fexit(BtfTarget<'a>),
    /// Iterator: runs once for each object of a kind, such as a task.
    Iter(BtfTarget<'a>),
    /// Runs only by `PROG_TEST_RUN`.
    Syscall,
}

impl<'a> ProgKind<'a> {
    /// Returns the program type and the expected attach type.
    fn numbers(self) -> (u32, u32) {
        match self {
            Self::Kprobe => (2, 0),
            Self::KprobeMulti => (2, KPROBE_MULTI),
            Self::KprobeSession => (2, KPROBE_SESSION),
            Self::UprobeMulti => (2, UPROBE_MULTI),
            Self::Tracepoint => (5, 0),
            Self::RawTracepoint => (17, 0),
            Self::TpBtf(_) => (26, 23),
            Self::Fentry(_) => (26, 24),
            Self::Fexit(_) => (26, 25),
            Self::Iter(_) => (26, ITER),
            Self::Syscall => (31, 0),
        }
    }

    fn target(self) -> Option<BtfTarget<'a>> {
        match self {
            Self::TpBtf(target) | Self::Fentry(target) | Self::Fexit(target) | Self::Iter(target) => {
                Some(target)
            }
            _ => None,
        }
    }
}

pub(crate) const ITER: u32 = 28;
pub(crate) const PERF_EVENT: u32 = 41;
pub(crate) const KPROBE_MULTI: u32 = 42;
pub(crate) const UPROBE_MULTI: u32 = 48;
pub(crate) const KPROBE_SESSION: u32 = 56;

/// A loaded program, which the kernel unloads when its last descriptor and link are closed.
#[derive(Debug)]
pub struct Program {
    fd: OwnedFd,
    name: String,
}

/// The kernel's information about a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProgramInfo {
    /// Program ID.
    pub id: u32,
    /// Size of the machine code in bytes.
    pub jited_bytes: u32,
    /// Number of times the kernel skipped the program because it was already running on that CPU.
    pub missed: u64,
    /// Number of instructions that the verifier processed.
    pub verified: u32,
}

/// Result of a test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tested {
    /// Return value of the program.
    pub value: u32,
    /// Run time in ns, averaged over the repetitions.
    pub nanoseconds: u32,
}

/// The same program, for places in processes, on the stack of the task that it runs for.
///
/// From Linux 6.13 on, the stack of larger programs is memory of the CPU (`bpf_enable_priv_stack` in `kernel/bpf/verifier.c`), as they are taken
/// to run to their end before another runs there. At a uprobe that does not hold: it may wait for a page or be preempted, and then another
/// task's hit on the same CPU overwrites its stack, and with it addresses and values. A program with a tail call stays on the
/// task's stack. This one has it at its start, where a branch always jumps over it; the verifier then removes it.
pub fn on_task_stack(code: &Code) -> Code {
    let zero = insn::alu_imm(Alu::Mov, Reg::R0, 0);
    let over = Insn { off: 3, ..insn::branch_imm(Cond::Eq, Reg::R0, 0) };
    let mut insns = vec![zero, over, insn::call(Helper::TailCall), zero, insn::exit()];
    let before = insns.len();
    insns.extend(&code.insns);
    let mut relocs = code.relocs.clone();
    relocs.iter_mut().for_each(|reloc| reloc.at += before);
    let notes = code.notes.iter().map(|(at, note)| (at + before, note.clone())).collect();
    Code { insns, relocs, notes }
}

impl Program {
    /// Loads a program. Its relocations are indices into `maps`.
    pub fn load(name: &str, kind: ProgKind<'_>, code: &Code, maps: &[&Map]) -> Result<Self, Error> {
        Self::loaded(name, kind, code, maps, 0)
    }

    /// As [`Self::load`], for a sleepable program: it may wait for a page to be read in
    /// ([`kprism_ebpf::insn::Helper::CopyFromUser`]).
    pub fn load_sleepable(name: &str, kind: ProgKind<'_>, code: &Code, maps: &[&Map]) -> Result<Self, Error> {
        const SLEEPABLE: u32 = 1 << 4;
        Self::loaded(name, kind, code, maps, SLEEPABLE)
    }

    fn loaded(name: &str, kind: ProgKind<'_>, code: &Code, maps: &[&Map], flags: u32) -> Result<Self, Error> {
        let insns = place(code, maps)?;
        let license = c"Dual MIT/GPL";
        let (prog_type, expected_attach_type) = kind.numbers();
        let mut attr = sys::ProgLoad {
            prog_type,
            expected_attach_type,
            insn_count: insns.len() as u32,
            insns: insns.as_ptr() as u64,
            license: license.as_ptr() as u64,
            name: sys::object_name(name),
            flags,
            ..Default::default()
        };
        if let Some(target) = kind.target() {
            attr.attach_btf_id = target.id;
            attr.attach_btf_obj_fd = target.module.map_or(0, sys::raw);
        }
        match sys::bpf_fd(Cmd::ProgLoad, &mut attr) {
            Ok(fd) => Ok(Self { fd, name: name.into() }),
            Err(source) => Err(why(name, code, attr, source)),
        }
    }

    /// Name of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the kernel's information about the program.
    pub fn info(&self) -> Result<ProgramInfo, Error> {
        let mut words = [0u32; 60];
        let mut attr = sys::Info {
            fd: sys::raw(self.fd.as_fd()),
            len: size_of_val(&words) as u32,
            info: words.as_mut_ptr() as u64,
        };
        let what = || format!("program {}: information", self.name);
        sys::bpf(Cmd::InfoByFd, &mut attr).map_err(|source| Error::System { what: what(), source })?;
        // `struct bpf_prog_info`: id at byte 4, jited length at 16, recursion misses at 208, verified at 216.
        let missed = u64::from(words[52]) | u64::from(words[53]) << 32;
        Ok(ProgramInfo { id: words[1], jited_bytes: words[4], missed, verified: words[54] })
    }

    /// Runs the program now, `repeat` times if the program type supports it. Raw tracepoint programs take their
    /// arguments from `context`.
    pub fn test_run(&self, context: &mut [u64], repeat: u32) -> Result<Tested, Error> {
        let mut attr = sys::TestRun {
            prog_fd: sys::raw(self.fd.as_fd()),
            repeat,
            ctx_size_in: size_of_val(context) as u32,
            ctx_in: context.as_mut_ptr() as u64,
            ..Default::default()
        };
        let what = || format!("program {}: test run", self.name);
        sys::bpf(Cmd::ProgTestRun, &mut attr).map_err(|source| Error::System { what: what(), source })?;
        Ok(Tested { value: attr.retval, nanoseconds: attr.duration })
    }
}

impl AsFd for Program {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The instructions as the kernel reads them, with the maps' descriptors.
fn place(code: &Code, maps: &[&Map]) -> Result<Vec<u64>, Error> {
    const MAP_FD: u8 = 1;
    const MAP_VALUE: u8 = 2;
    let mut insns = code.insns.clone();
    for reloc in &code.relocs {
        let missing = || Error::NoMap { at: reloc.at, map: reloc.map };
        let map = maps.get(reloc.map).ok_or_else(missing)?;
        let [first, second] = insns.get_mut(reloc.at..reloc.at + 2).ok_or_else(missing)? else {
            return Err(missing());
        };
        first.src = if reloc.value.is_some() { MAP_VALUE } else { MAP_FD };
        first.imm = sys::raw(map.as_fd()).cast_signed();
        second.imm = reloc.value.unwrap_or(0).cast_signed();
    }
    Ok(insns.into_iter().map(Insn::word).collect())
}

/// Loads the program again, to get the verifier's log.
fn why(name: &str, code: &Code, mut attr: sys::ProgLoad, source: io::Error) -> Error {
    const MOST: usize = 16 << 20;
    let mut log = vec![0u8; 256 << 10];
    loop {
        attr.log_level = 1;
        attr.log_size = log.len() as u32;
        attr.log = log.as_mut_ptr() as u64;
        match sys::bpf_fd(Cmd::ProgLoad, &mut attr) {
            Err(e) if e.raw_os_error() == Some(libc::ENOSPC) && log.len() < MOST => {
                log = vec![0; log.len() * 8];
            }
            _ => break,
        }
    }
    let end = log.iter().position(|&byte| byte == 0).unwrap_or(log.len());
    let text = String::from_utf8_lossy(&log[..end]);
    if text.trim().is_empty() {
        return host::explain(format!("program {name}"), source);
    }
    Error::Verifier { name: name.into(), source, log: VerifierLog(disasm::annotate(&text, code)) }
}
