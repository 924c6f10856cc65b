// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls bpf(2) and perf_event_open(2), and their structures.
//!
//! The layouts are those of the kernel's `include/uapi/linux/bpf.h` and `perf_event.h`. Fields after the last one used
//! are omitted; the kernel treats them as zero. All `unsafe` for these calls is in this file.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

/// Commands of bpf(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Cmd {
    MapCreate = 0,
    MapLookup = 1,
    MapUpdate = 2,
    MapDelete = 3,
    MapNextKey = 4,
    ProgLoad = 5,
    ProgTestRun = 10,
    InfoByFd = 15,
    RawTracepointOpen = 17,
    BtfLoad = 18,
    BtfFdById = 19,
    BtfNextId = 23,
    LinkCreate = 28,
    IterCreate = 33,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct MapCreate {
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub inner_map_fd: u32,
    pub numa_node: u32,
    pub name: [u8; 16],
    pub ifindex: u32,
    pub btf_fd: u32,
    pub btf_key_type: u32,
    pub btf_value_type: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct BtfLoad {
    pub btf: u64,
    pub log: u64,
    pub size: u32,
    pub log_size: u32,
    pub log_level: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct MapElement {
    pub fd: u32,
    pub pad: u32,
    pub key: u64,
    pub value: u64,
    pub flags: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct ProgLoad {
    pub prog_type: u32,
    pub insn_count: u32,
    pub insns: u64,
    pub license: u64,
    pub log_level: u32,
    pub log_size: u32,
    pub log: u64,
    pub kern_version: u32,
    pub flags: u32,
    pub name: [u8; 16],
    pub ifindex: u32,
    pub expected_attach_type: u32,
    pub btf_fd: u32,
    pub func_info_rec_size: u32,
    pub func_info: u64,
    pub func_info_count: u32,
    pub line_info_rec_size: u32,
    pub line_info: u64,
    pub line_info_count: u32,
    pub attach_btf_id: u32,
    pub attach_btf_obj_fd: u32,
    pub core_relo_count: u32,
    pub fd_array: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct TestRun {
    pub prog_fd: u32,
    pub retval: u32,
    pub data_size_in: u32,
    pub data_size_out: u32,
    pub data_in: u64,
    pub data_out: u64,
    pub repeat: u32,
    pub duration: u32,
    pub ctx_size_in: u32,
    pub ctx_size_out: u32,
    pub ctx_in: u64,
    pub ctx_out: u64,
    pub flags: u32,
    pub cpu: u32,
    pub batch_size: u32,
    pub pad: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Info {
    pub fd: u32,
    pub len: u32,
    pub info: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Id {
    pub start: u32,
    pub next: u32,
    pub flags: u32,
    pub pad: u32,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct RawTracepoint {
    pub name: u64,
    pub prog_fd: u32,
    pub pad: u32,
    pub cookie: u64,
}

#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct IterCreate {
    pub link_fd: u32,
    pub flags: u32,
}

/// `link_create`, with the end of the kinds used here.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct LinkCreate {
    pub prog_fd: u32,
    pub target_fd: u32,
    pub attach_type: u32,
    pub flags: u32,
    pub tail: LinkTail,
}

/// The union at the end of `link_create`, as words.
#[derive(Debug, Default, Clone, Copy)]
#[repr(C)]
pub(crate) struct LinkTail(pub [u64; 6]);

impl LinkTail {
    pub fn perf_event(cookie: u64) -> Self {
        Self([cookie, 0, 0, 0, 0, 0])
    }

    /// `flags, cnt, syms, addrs, cookies`.
    pub fn kprobe_multi(flags: u32, addresses: &[u64], cookies: &[u64]) -> Self {
        let count = addresses.len() as u64;
        Self([u64::from(flags) | count << 32, 0, addresses.as_ptr() as u64, cookies.as_ptr() as u64, 0, 0])
    }

    /// `path, offsets, ref_ctr_offsets, cookies, cnt, flags, pid`.
    pub fn uprobe_multi(
        path: &std::ffi::CStr,
        offsets: &[u64],
        cookies: &[u64],
        flags: u32,
        pid: u32,
    ) -> Self {
        let count = offsets.len() as u64;
        let cookies = if cookies.is_empty() { 0 } else { cookies.as_ptr() as u64 };
        let counts = count | u64::from(flags) << 32;
        Self([path.as_ptr() as u64, offsets.as_ptr() as u64, 0, cookies, counts, u64::from(pid)])
    }
}

/// Calls bpf(2). Pointers in `attr` must point to live memory of the sizes in the fields next to them.
pub(crate) fn bpf<T>(cmd: Cmd, attr: &mut T) -> io::Result<i32> {
    let pointer: *mut T = attr;
    // SAFETY: `attr` is a plain structure of the size given. The callers are the functions of this crate; they fill
    // pointers from slices that they hold borrowed over the call, with these slices' lengths.
    let result = unsafe { libc::syscall(libc::SYS_bpf, cmd as libc::c_long, pointer, size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

/// Calls bpf(2) for a command that returns a new file descriptor.
pub(crate) fn bpf_fd<T>(cmd: Cmd, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = bpf(cmd, attr)?;
    // SAFETY: the kernel just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Converts a file descriptor to the type that bpf(2) expects.
pub(crate) fn raw(fd: BorrowedFd<'_>) -> u32 {
    fd.as_raw_fd() as u32
}

/// Converts a name to one that the kernel accepts for an object: at most 15 characters of a limited set.
pub(crate) fn object_name(name: &str) -> [u8; 16] {
    let mut out = [0; 16];
    for (slot, byte) in out[..15].iter_mut().zip(name.bytes()) {
        *slot = if byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.' { byte } else { b'_' };
    }
    out
}

/// `struct perf_event_attr` up to `PERF_ATTR_SIZE_VER5`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct PerfAttr {
    pub kind: u32,
    pub size: u32,
    pub config: u64,
    pub sample_period: u64,
    pub sample_type: u64,
    pub read_format: u64,
    pub flags: u64,
    pub wakeup_events: u32,
    pub bp_type: u32,
    /// Path or symbol of a probe.
    pub config1: u64,
    /// Offset in it.
    pub config2: u64,
    pub rest: [u64; 5],
}

/// Calls perf_event_open(2). `pid` -1 means every process; then a CPU is required.
pub(crate) fn perf_event_open(attr: &mut PerfAttr, pid: i32, cpu: i32) -> io::Result<OwnedFd> {
    const CLOEXEC: libc::c_ulong = 8;
    attr.size = size_of::<PerfAttr>() as u32;
    let pointer: *mut PerfAttr = attr;
    // SAFETY: `attr` has the size it says; its pointers are to strings that the caller holds.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, pointer, pid, cpu, -1, CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just made it, for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Enables a perf event.
pub(crate) fn perf_enable(fd: BorrowedFd<'_>) -> io::Result<()> {
    const PERF_EVENT_IOC_ENABLE: libc::c_ulong = 0x2400;
    // SAFETY: this ioctl takes no memory.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), PERF_EVENT_IOC_ENABLE, 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
