// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of a trampoline: a file in memory that the process itself makes and maps, with its own system calls. So nothing of
//! the recorder's has to be visible to it, whatever its namespaces, user and root folder.
//!
//! | page | in the process | holds |
//! |---|---|---|
//! | 0 | private, executable: the kernel puts uprobes only there | the code |
//! | 1 | shared, writable | [`COUNTERS`] counters |
//! | 2 | shared, writable | whether hits count |
//!
//! A child that the process forks has the same pages, and counts in the same counters.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::maps;
use crate::process::Stopped;
use crate::trampoline::{APART, Addresses, COUNTERS};

/// Name of the file, as `/proc/PID/maps` shows it.
pub const NAME: &str = "kprism-jump";

const PAGE: u64 = 4096;
const PAGES: u64 = 3;

/// The memory of one trampoline, mapped here too.
#[derive(Debug)]
pub struct Area {
    file: File,
    /// Address in the process.
    base: u64,
    /// Pages 1 and 2, mapped here.
    words: *const AtomicU64,
    /// Number of the file.
    inode: u64,
}

/// The memory of one trampoline as its process has it; not mapped here.
#[derive(Debug)]
pub struct Memory {
    /// Its file.
    pub file: File,
    /// Its address in the process.
    pub base: u64,
}

impl Memory {
    /// Makes the memory in a stopped process, within reach of a jump from `place`.
    ///
    /// # Errors
    /// There is no room, or the process may not.
    pub fn make(stopped: &Stopped, place: u64) -> Result<Self, String> {
        const MFD_CLOEXEC: u64 = 1;
        const MFD_EXEC: u64 = 0x10;
        let pid = stopped.pid();
        let maps = maps::of(pid).map_err(|error| error.to_string())?;
        let base =
            maps::gap(&maps, place, PAGES * PAGE).ok_or("no free memory is within 2 GiB of the place")?;
        let name = stopped.below_stack()?;
        let mut kept = [0; NAME.len() + 1];
        let failed = |error: std::io::Error| format!("memory for the trampoline: {error}");
        stopped.read(name, &mut kept).map_err(failed)?;
        stopped.write(name, format!("{NAME}\0").as_bytes()).map_err(failed)?;
        let make = |flags: u64| stopped.system_call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]);
        // Kernels before 6.3 do not know the flag.
        let made = make(MFD_CLOEXEC | MFD_EXEC).or_else(|_| make(MFD_CLOEXEC));
        stopped.write(name, &kept).map_err(failed)?;
        let fd = made?;
        let memory = Self::map(stopped, fd, base);
        stopped.system_call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        memory
    }

    fn map(stopped: &Stopped, fd: u64, base: u64) -> Result<Self, String> {
        let path = format!("/proc/{}/fd/{fd}", stopped.pid());
        let file = open(&path)?;
        file.set_len(PAGES * PAGE).map_err(|error| format!("{path}: {error}"))?;
        let map = |at: u64, pages: u64, rights: i32, flags: i32, offset: u64| {
            let flags = (flags | libc::MAP_FIXED_NOREPLACE) as u64;
            let arguments = [at, pages * PAGE, rights as u64, flags, fd, offset];
            stopped.system_call(libc::SYS_mmap, arguments).map(drop)
        };
        map(base, 1, libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE, 0)?;
        map(base + PAGE, PAGES - 1, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, PAGE)?;
        Ok(Self { file, base })
    }

    /// Opens memory that process `pid` holds as its file `fd`.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn of(pid: u32, fd: i32, base: u64) -> Result<Self, String> {
        Ok(Self { file: open(&format!("/proc/{pid}/fd/{fd}"))?, base })
    }
}

fn open(path: &str) -> Result<File, String> {
    File::options().read(true).write(true).open(path).map_err(|error| format!("{path}: {error}"))
}

// SAFETY: the mapping belongs to the process, not to a thread, and its words are accessed atomically.
unsafe impl Send for Area {}

impl Area {
    /// Takes over memory that [`Memory::make`] made in a process, by its file.
    ///
    /// # Errors
    /// The file cannot be mapped here.
    pub fn of(Memory { file, base }: Memory) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("memory for the trampoline: {error}");
        let inode = file.metadata().map_err(failed)?.ino();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let (size, offset) = ((PAGES - 1) * PAGE, PAGE.cast_signed());
        // SAFETY: a new mapping of a file that has this size; its address is checked.
        let words = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size as usize,
                rights,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                offset,
            )
        };
        if words == libc::MAP_FAILED {
            return Err(failed(std::io::Error::last_os_error()));
        }
        Ok(Self { file, base, words: words.cast(), inode })
    }

    /// The addresses of a trampoline here, for a place.
    pub fn addresses(&self, place: u64) -> Addresses {
        Addresses { place, code: self.base, counters: self.base + PAGE, on: self.base + 2 * PAGE }
    }

    /// Writes the code. Nobody executes it yet.
    pub fn write(&self, code: &[u8]) -> Result<(), String> {
        if code.len() as u64 > PAGE {
            return Err(format!("the trampoline would have {} bytes, more than a page", code.len()));
        }
        self.file.write_all_at(code, 0).map_err(|error| error.to_string())
    }

    /// A path to the file, as long as this is there.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }

    /// Number of the file.
    pub fn inode(&self) -> u64 {
        self.inode
    }

    /// Whether hits count from now on.
    pub fn switch(&self, on: bool) {
        self.word(PAGE as usize / 8).store(on.into(), Ordering::SeqCst);
    }

    /// Hits so far whose condition was false.
    pub fn false_hits(&self) -> u64 {
        (0..COUNTERS).map(|number| self.word(number * APART / 8).load(Ordering::Relaxed)).sum()
    }

    fn word(&self, number: usize) -> &AtomicU64 {
        assert!(number < 2 * PAGE as usize / 8);
        // SAFETY: within the two pages that are mapped as long as this is there; all who share them access whole words.
        unsafe { &*self.words.add(number) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and references into it borrow this.
        unsafe { libc::munmap(self.words.cast_mut().cast(), 2 * PAGE as usize) };
    }
}
