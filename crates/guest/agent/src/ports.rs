// SPDX-License-Identifier: MIT OR Apache-2.0
//! The agent's side of QEMU's devices: port I/O, and physical addresses.

use std::arch::asm;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use kprism_agent::{CONTROL_PORT, EXIT_PORT, PAUSE_PORT, Region};

/// First port of fw_cfg's range. The last one used is 0x51b.
const FW_CFG: u16 = 0x510;
const PAGE: usize = 4096;
/// Number of pages whose physical addresses are read at once.
const AT_ONCE: usize = 256;

/// Acquires or gives up the right to use the ports of `lib.rs` and of fw_cfg. A child inherits the right and should
/// give it up: otherwise each switch to the child loads a port bitmap.
pub fn allow_ports(allow: bool) -> io::Result<()> {
    // The three output ports are consecutive.
    for (from, count) in [(CONTROL_PORT, 3), (EXIT_PORT, 1), (PAUSE_PORT, 1), (FW_CFG, 12)] {
        // SAFETY: ioperm changes nothing but this thread's port rights.
        if unsafe { libc::ioperm(from.into(), count, i32::from(allow)) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Writes all of `bytes` to `port`, one byte at a time as far as the device can tell.
pub fn write(port: u16, bytes: &[u8]) {
    // SAFETY: reads `bytes` only; the port is one of ours, allowed by `allow_ports`.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") bytes.as_ptr() => _, inout("rcx") bytes.len() => _,
             options(nostack, readonly, preserves_flags));
    }
}

fn out16(port: u16, value: u16) {
    // SAFETY: an allowed port of fw_cfg.
    unsafe { asm!("out dx, ax", in("dx") port, in("ax") value, options(nostack, nomem, preserves_flags)) }
}

/// Not `nomem`: the write makes the device change memory.
fn out32(port: u16, value: u32) {
    // SAFETY: an allowed port of fw_cfg.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nostack, preserves_flags)) }
}

fn in8(port: u16) -> u8 {
    let value: u8;
    // SAFETY: an allowed port of fw_cfg.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nostack, nomem, preserves_flags)) }
    value
}

/// The time stamp counter.
pub fn time_stamp() -> u64 {
    // SAFETY: RDTSC only reads a counter, which Linux lets programs read.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Finds `name` in fw_cfg's directory. Returns its selector and size (QEMU docs/specs/fw_cfg.rst, "File Directory").
pub fn find_file(name: &str) -> Option<(u16, u32)> {
    out16(FW_CFG, 0x19);
    let mut count = [0; 4];
    count.fill_with(|| in8(FW_CFG + 1));
    for _ in 0..u32::from_be_bytes(count) {
        let mut entry = [0; 64];
        entry.fill_with(|| in8(FW_CFG + 1));
        let end = entry[8..].iter().position(|&byte| byte == 0).unwrap_or(56);
        if &entry[8..8 + end] == name.as_bytes() {
            let size = u32::from_be_bytes([entry[0], entry[1], entry[2], entry[3]]);
            return Some((u16::from_be_bytes([entry[4], entry[5]]), size));
        }
    }
    None
}

/// Reads the whole fw_cfg file with this selector.
pub fn read_file(selector: u16, size: u32) -> io::Result<Vec<u8>> {
    let mut contents = Vec::with_capacity(size as usize);
    ConfigFile::new(selector, size)?.read_to_end(&mut contents)?;
    Ok(contents)
}

/// A fw_cfg file, read from start to end through the device's DMA interface. A transfer is complete when the `out`
/// instruction is. Reading needs [`WINDOW`] bytes of memory, however large the file is. No other fw_cfg item may be
/// selected meanwhile.
pub struct ConfigFile {
    /// One page for the command, then the window.
    buffer: PinnedBuffer,
    command: u64,
    selector: Option<u16>,
    /// Number of bytes left in the device.
    rest: usize,
    /// Number of bytes filled in the window, and number of those handed out.
    filled: usize,
    taken: usize,
}

/// Number of bytes read from the device at once.
const WINDOW: usize = 64 << 10;

impl ConfigFile {
    /// Opens the file.
    pub fn new(selector: u16, size: u32) -> io::Result<Self> {
        let buffer = PinnedBuffer::new(WINDOW + PAGE)?;
        let command = buffer.physical(0)?;
        Ok(Self { buffer, command, selector: Some(selector), rest: size as usize, filled: 0, taken: 0 })
    }

    fn fill(&mut self) -> io::Result<()> {
        const READ: u32 = 2;
        const SELECT: u32 = 8;
        (self.filled, self.taken) = (0, 0);
        let mut pages = [0; WINDOW / PAGE];
        self.buffer.pages(1, &mut pages)?;
        while self.filled < WINDOW && self.rest > 0 {
            // Pages that follow each other in the machine's memory are one transfer.
            let first = self.filled / PAGE;
            let address = pages[first];
            let follow = |(i, page): &(usize, &u64)| **page == address + (i * PAGE) as u64;
            let count = pages[first..].iter().enumerate().take_while(follow).count();
            let length = self.rest.min(count * PAGE);
            let select = self.selector.take().map_or(0, |selector| SELECT | (u32::from(selector) << 16));
            // The command: a big-endian {control u32, length u32, address u64}.
            let bytes = self.buffer.bytes();
            bytes[0..4].copy_from_slice(&(READ | select).to_be_bytes());
            bytes[4..8].copy_from_slice(&(length as u32).to_be_bytes());
            bytes[8..16].copy_from_slice(&address.to_be_bytes());
            out32(FW_CFG + 4, ((self.command >> 32) as u32).to_be());
            out32(FW_CFG + 8, (self.command as u32).to_be());
            if self.buffer.bytes()[0..4] != [0; 4] {
                return Err(io::Error::other("fw_cfg DMA failed"));
            }
            self.filled += length;
            self.rest -= length;
        }
        Ok(())
    }
}

impl Read for ConfigFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.filled {
            self.fill()?;
        }
        let (from, count) = (PAGE + self.taken, out.len().min(self.filled - self.taken));
        out[..count].copy_from_slice(&self.buffer.bytes()[from..from + count]);
        self.taken += count;
        Ok(count)
    }
}

/// Locked memory with known physical addresses.
pub struct PinnedBuffer {
    address: *mut u8,
    length: usize,
    pagemap: File,
}

impl PinnedBuffer {
    /// Maps and locks at least `length` bytes, zeroed.
    pub fn new(length: usize) -> io::Result<Self> {
        // Compaction may still move locked pages, unless this setting forbids it.
        std::fs::write("/proc/sys/vm/compact_unevictable_allowed", "0").ok();
        let length = length.next_multiple_of(PAGE).max(PAGE);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE | libc::MAP_LOCKED;
            libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address: address.cast(), length, pagemap: File::open("/proc/self/pagemap")? })
    }

    /// A buffer that holds `contents`.
    pub fn holding(contents: &[u8]) -> io::Result<Self> {
        let mut buffer = Self::new(contents.len())?;
        buffer.bytes()[..contents.len()].copy_from_slice(contents);
        Ok(buffer)
    }

    /// The buffer's memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours alone and lives as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }

    /// The physical address of byte `offset`.
    fn physical(&self, offset: usize) -> io::Result<u64> {
        let mut page = [0];
        self.pages(offset / PAGE, &mut page)?;
        Ok(page[0] + (offset % PAGE) as u64)
    }

    /// Fills `pages` with the physical addresses of pages from page `first` on (Documentation/admin-guide/mm/pagemap.rst). Nothing is
    /// allocated: memory that this process keeps costs each command that it forks.
    fn pages(&self, first: usize, pages: &mut [u64]) -> io::Result<()> {
        let mut entries = [0; 8 * AT_ONCE];
        for (i, some) in pages.chunks_mut(AT_ONCE).enumerate() {
            let entries = &mut entries[..8 * some.len()];
            let page = self.address as usize / PAGE + first + i * AT_ONCE;
            self.pagemap.read_exact_at(entries, (page * 8) as u64)?;
            for (page, entry) in some.iter_mut().zip(entries.chunks_exact(8)) {
                let entry = entry.try_into().map_or(0, u64::from_le_bytes);
                let frame = entry & ((1 << 55) - 1);
                if entry >> 63 == 0 || frame == 0 {
                    return Err(io::Error::other("a locked page is not in memory"));
                }
                *page = frame * PAGE as u64;
            }
        }
        Ok(())
    }

    /// The physical ranges of the first `len` bytes.
    pub fn region(&self, len: usize) -> io::Result<Region> {
        let mut runs: Vec<(u64, u64)> = Vec::new();
        let mut some = [0; AT_ONCE];
        for first in (0..len.div_ceil(PAGE)).step_by(AT_ONCE) {
            let from = first * PAGE;
            let some = &mut some[..(len - from).div_ceil(PAGE).min(AT_ONCE)];
            self.pages(first, some)?;
            for (offset, &mut address) in (from..len).step_by(PAGE).zip(some) {
                let bytes = (len - offset).min(PAGE) as u64;
                match runs.last_mut() {
                    Some((start, length)) if *start + *length == address => *length += bytes,
                    _ => runs.push((address, bytes)),
                }
            }
        }
        Ok(Region { len: len as u64, runs })
    }
}

impl AsMut<[u8]> for PinnedBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self.bytes()
    }
}

impl Drop for PinnedBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.address.cast(), self.length) };
    }
}
