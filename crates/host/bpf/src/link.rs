// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attaches programs. File descriptors own every attachment, so none outlives the process.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use crate::error::Error;
use crate::host;
use crate::prog::{ITER, KPROBE_MULTI, KPROBE_SESSION, PERF_EVENT, Program, UPROBE_MULTI};
use crate::sys::{self, Cmd, LinkCreate, LinkTail, PerfAttr};

/// First word of the description of a breakpoint in a program.
const UPROBE: &str = "uprobe";
/// ENOTSUPP, which has no name in user space.
const ENOTSUPP: i32 = 524;

/// An attachment. Dropping it detaches the program.
#[derive(Debug)]
pub struct Link {
    link: OwnedFd,
    /// The perf event that the link belongs to.
    _event: Option<OwnedFd>,
}

/// Position of a probe in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The entry, or an address in the function.
    Entry,
    /// After the return.
    Return,
}

impl Link {
    /// Attaches an fentry, fexit or tp_btf program to the target that it was loaded for.
    pub fn tracing(program: &Program, cookie: u64) -> Result<Self, Error> {
        // Before Linux 6.0, BPF_LINK_CREATE does not support these programs, and there are no cookies. This call works
        // on all.
        let mut attr =
            sys::RawTracepoint { prog_fd: sys::raw(program.as_fd()), cookie, ..Default::default() };
        Self::made(program, "attaching", sys::bpf_fd(Cmd::RawTracepointOpen, &mut attr))
    }

    /// Creates an iterator: reading the descriptor to its end runs the program once for each object.
    pub fn iterator(program: &Program) -> Result<OwnedFd, Error> {
        let failed = |source| host::explain(format!("program {}: the walk", program.name()), source);
        let prog_fd = sys::raw(program.as_fd());
        let mut attr = LinkCreate { prog_fd, attach_type: ITER, ..Default::default() };
        let link = sys::bpf_fd(Cmd::LinkCreate, &mut attr).map_err(failed)?;
        let mut attr = sys::IterCreate { link_fd: sys::raw(link.as_fd()), flags: 0 };
        sys::bpf_fd(Cmd::IterCreate, &mut attr).map_err(failed)
    }

    /// Detaches all links. Each detach waits until the program no longer runs anywhere; they wait in parallel.
    pub fn detach_all(links: Vec<Self>) {
        const THREADS: usize = 64;
        let each = links.len().div_ceil(THREADS).max(1);
        let mut links = links;
        std::thread::scope(|scope| {
            while !links.is_empty() {
                let some = links.split_off(links.len().saturating_sub(each));
                scope.spawn(move || drop(some));
            }
        });
    }

    /// Attaches a raw tracepoint program.
    pub fn raw_tracepoint(program: &Program, name: &str) -> Result<Self, Error> {
        let text = c_string(name)?;
        let mut attr = sys::RawTracepoint {
            name: text.as_ptr() as u64,
            prog_fd: sys::raw(program.as_fd()),
            ..Default::default()
        };
        let made = sys::bpf_fd(Cmd::RawTracepointOpen, &mut attr);
        Self::made(program, &format!("raw tracepoint {name}"), made)
    }

    /// Attaches to many functions by address, each with a cookie.
    pub fn kprobe_multi(
        program: &Program,
        addresses: &[u64],
        cookies: &[u64],
        when: When,
    ) -> Result<Self, Error> {
        let flags = u32::from(when == When::Return);
        Self::multi(program, KPROBE_MULTI, LinkTail::kprobe_multi(flags, addresses, cookies), addresses.len())
    }

    /// Attaches one program to entry and return of many functions.
    pub fn kprobe_session(program: &Program, addresses: &[u64], cookies: &[u64]) -> Result<Self, Error> {
        Self::multi(program, KPROBE_SESSION, LinkTail::kprobe_multi(0, addresses, cookies), addresses.len())
    }

    /// Attaches to many offsets of a file. `pid` 0 means every process.
    pub fn uprobe_multi(
        program: &Program,
        path: &Path,
        offsets: &[u64],
        cookies: &[u64],
        when: When,
        pid: u32,
    ) -> Result<Self, Error> {
        if !cookies.is_empty() && cookies.len() != offsets.len() {
            return Err(Error::refused("uprobe_multi", "there must be a cookie for each offset, or none"));
        }
        let path = c_string(&path.to_string_lossy())?;
        let flags = u32::from(when == When::Return);
        let tail = LinkTail::uprobe_multi(&path, offsets, cookies, flags, pid);
        Self::multi(program, UPROBE_MULTI, tail, offsets.len())
    }

    fn multi(program: &Program, attach_type: u32, tail: LinkTail, count: usize) -> Result<Self, Error> {
        let prog_fd = sys::raw(program.as_fd());
        let mut attr = LinkCreate { prog_fd, attach_type, tail, ..Default::default() };
        Self::made(program, &format!("attaching to {count} places"), sys::bpf_fd(Cmd::LinkCreate, &mut attr))
    }

    /// Attaches to a kernel function, or to an address in it, through the kprobe PMU.
    pub fn kprobe(
        program: &Program,
        symbol: &str,
        offset: u64,
        when: When,
        cookie: u64,
    ) -> Result<Self, Error> {
        let name = c_string(symbol)?;
        let what = format!("kprobe {symbol}+{offset:#x}");
        Self::probe(program, "kprobe", &what, name.as_ptr() as u64, offset, when, -1, cookie)
    }

    /// Attaches to any instruction of the running kernel by address. No name is looked up, so functions with the same
    /// name are no problem.
    pub fn kprobe_at(program: &Program, address: u64, when: When, cookie: u64) -> Result<Self, Error> {
        Self::probe(program, "kprobe", &format!("kprobe {address:#x}"), 0, address, when, -1, cookie)
    }

    /// Attaches to an offset of a file. `pid` -1 means every process.
    pub fn uprobe(
        program: &Program,
        path: &Path,
        offset: u64,
        when: When,
        pid: i32,
        cookie: u64,
    ) -> Result<Self, Error> {
        let name = c_string(&path.to_string_lossy())?;
        let what = format!("{UPROBE} {}+{offset:#x}", path.display());
        Self::probe(program, "uprobe", &what, name.as_ptr() as u64, offset, when, pid, cookie)
    }

    /// Attaches to a static tracepoint of a program. `listeners` is the file offset of the counter that shows the program
    /// that there are listeners. `pid` -1 means every process.
    pub fn usdt(
        program: &Program,
        path: &Path,
        offset: u64,
        listeners: u64,
        pid: i32,
    ) -> Result<Self, Error> {
        let name = c_string(&path.to_string_lossy())?;
        let what = format!("{UPROBE} {}+{offset:#x}", path.display());
        let Ok(listeners) = u32::try_from(listeners) else {
            return Err(Error::refused(what, "its counter of listeners lies beyond 4 GiB of the file"));
        };
        let kind = host::pmu_type("uprobe")?;
        // The PMU's `format/ref_ctr_offset` is the upper half of the configuration.
        let config = u64::from(listeners) << 32;
        let config1 = name.as_ptr() as u64;
        let attr = PerfAttr { kind, config, config1, config2: offset, ..Default::default() };
        Self::perf(program, &what, attr, pid, 0)
    }

    #[allow(clippy::too_many_arguments)]
    fn probe(
        program: &Program,
        pmu: &str,
        what: &str,
        name: u64,
        offset: u64,
        when: When,
        pid: i32,
        cookie: u64,
    ) -> Result<Self, Error> {
        let kind = host::pmu_type(pmu)?;
        // Bit 0 of both PMUs' configuration selects a return probe (`format/retprobe`).
        let config = u64::from(when == When::Return);
        let attr = PerfAttr { kind, config, config1: name, config2: offset, ..Default::default() };
        Self::perf(program, what, attr, pid, cookie)
    }

    /// Attaches to a perf tracepoint. The program runs for every task, whatever the event's task; it must check by
    /// itself.
    pub fn tracepoint(program: &Program, system: &str, name: &str, cookie: u64) -> Result<Self, Error> {
        const PERF_TYPE_TRACEPOINT: u32 = 2;
        let config = host::tracepoint_id(system, name)?;
        let attr = PerfAttr { kind: PERF_TYPE_TRACEPOINT, config, sample_period: 1, ..Default::default() };
        Self::perf(program, &format!("tracepoint {system}:{name}"), attr, -1, cookie)
    }

    fn perf(program: &Program, what: &str, mut attr: PerfAttr, pid: i32, cookie: u64) -> Result<Self, Error> {
        let failed = |source: io::Error| match source.raw_os_error() {
            Some(ENOTSUPP) if what.starts_with(UPROBE) => {
                let why =
                    "the kernel puts no breakpoint on the instruction there: it cannot execute it elsewhere";
                Error::refused(what, why)
            }
            _ => host::explain(what.to_owned(), source),
        };
        let cpu = if pid == -1 { 0 } else { -1 };
        let event = sys::perf_event_open(&mut attr, pid, cpu).map_err(failed)?;
        let mut attr = LinkCreate {
            prog_fd: sys::raw(program.as_fd()),
            target_fd: sys::raw(event.as_fd()),
            attach_type: PERF_EVENT,
            tail: LinkTail::perf_event(cookie),
            ..Default::default()
        };
        let link = sys::bpf_fd(Cmd::LinkCreate, &mut attr).map_err(failed)?;
        sys::perf_enable(event.as_fd()).map_err(failed)?;
        Ok(Self { link, _event: Some(event) })
    }

    fn made(program: &Program, what: &str, link: io::Result<OwnedFd>) -> Result<Self, Error> {
        let failed = |source| host::explain(format!("program {}: {what}", program.name()), source);
        Ok(Self { link: link.map_err(failed)?, _event: None })
    }

    /// Number of calls of a kprobe.multi's functions for which the kernel skipped the program.
    pub fn missed(&self) -> Result<u64, Error> {
        let (words, _) = self.info()?;
        // `struct bpf_link_info`: type, id, program, padding; then addresses, count and flags, missed.
        const KPROBE_MULTI_LINK: u64 = 8;
        Ok(if words[0] & 0xffff_ffff == KPROBE_MULTI_LINK { words[4] } else { 0 })
    }

    /// Number of hits of a kprobe, or of calls at a kretprobe, that the kernel passed over: another probe was running there, or all of
    /// the kretprobe's entries for open calls were in use (`nmissed` in `include/linux/kprobes.h`). `None` if the kernel does not tell
    /// (before Linux 6.7), or if it is no kprobe.
    pub fn kprobe_missed(&self) -> Option<u64> {
        const PERF_EVENT_LINK: u64 = 7;
        const KPROBES: [u64; 2] = [3, 4];
        // `struct bpf_link_info`: type, id, program, padding; then kind of the event; the kprobe's function, length of its name and
        // offset, address, missed.
        const MISSED: usize = 6;
        let (words, bytes) = self.info().ok()?;
        let is_kprobe =
            words[0] & 0xffff_ffff == PERF_EVENT_LINK && KPROBES.contains(&(words[2] & 0xffff_ffff));
        (is_kprobe && bytes >= 8 * (MISSED + 1)).then_some(words[MISSED])
    }

    /// The kernel's `struct bpf_link_info`, and how many bytes of it the kernel has.
    fn info(&self) -> Result<([u64; 10], usize), Error> {
        let mut words = [0u64; 10];
        let mut attr = sys::Info {
            fd: sys::raw(self.link.as_fd()),
            len: size_of_val(&words) as u32,
            info: words.as_mut_ptr() as u64,
        };
        sys::bpf(Cmd::InfoByFd, &mut attr)
            .map_err(|source| Error::System { what: "link: information".into(), source })?;
        Ok((words, attr.len as usize))
    }
}

fn c_string(text: &str) -> Result<CString, Error> {
    CString::new(text).map_err(|_| Error::refused(format!("{text:?}"), "a name holds no NUL"))
}
