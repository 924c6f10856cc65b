// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory shared with the kernel, accessed by words, because another writer may be active at any time.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// A mapped range of a descriptor; it is unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
}

/// Maps the page of a file that contains the byte at `offset`, executable, as a process that runs the file would. While
/// it is mapped, the kernel can insert a breakpoint immediately. It then rejects an unsuitable instruction with an
/// error, instead of silently when a process maps the file. None if the file cannot be mapped as executable.
pub fn code_page(path: &Path, offset: u64) -> Option<impl Drop> {
    struct Page(*mut libc::c_void);
    impl Drop for Page {
        fn drop(&mut self) {
            // SAFETY: the page was mapped below, nobody else knows it, and nothing refers to it.
            unsafe { libc::munmap(self.0, PAGE as usize) };
        }
    }
    const PAGE: u64 = 4096;
    let file = std::fs::File::open(path).ok()?;
    let from = libc::off_t::try_from(offset / PAGE * PAGE).ok()?;
    let access = libc::PROT_READ | libc::PROT_EXEC;
    // SAFETY: a new private mapping, at a place of the kernel's choice, touches nothing of ours; nothing is executed there.
    let page = unsafe {
        libc::mmap(std::ptr::null_mut(), PAGE as usize, access, libc::MAP_PRIVATE, file.as_raw_fd(), from)
    };
    (page != libc::MAP_FAILED).then_some(Page(page))
}

// SAFETY: all access is by atomic words, or by copies of bytes that the kernel has said are finished.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes from `offset` on.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, offset: usize, writable: bool) -> io::Result<Self> {
        let access = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping, at a place of the kernel's choice, touches nothing of ours.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                access,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.cast(), len })
    }

    /// Length of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len, "word at {offset} of {}", self.len);
        // SAFETY: within the mapping and aligned (mappings begin at pages), and atomic on both sides.
        unsafe { AtomicU64::from_ptr(self.base.add(offset).cast()) }
    }

    /// Reads the word at a byte offset, which must be a multiple of 8. Relaxed ordering.
    pub fn read(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Relaxed)
    }

    /// As [`Self::read`], with acquire ordering: everything that the writer wrote before the word is visible.
    pub fn read_acquire(&self, offset: usize) -> u64 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Sets the word at a byte offset, with release ordering. The mapping must be writable.
    pub fn write(&self, offset: usize, value: u64) {
        self.word(offset).store(value, Ordering::Release);
    }

    /// Reads a byte, with acquire ordering.
    pub(crate) fn read_byte(&self, offset: usize) -> u8 {
        assert!(offset < self.len);
        // SAFETY: within the mapping, and atomic on both sides.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.load(Ordering::Acquire)
    }

    /// Sets a byte, with release ordering. The mapping must be writable.
    pub(crate) fn write_byte(&self, offset: usize, value: u8) {
        assert!(offset < self.len);
        // SAFETY: within the mapping, and atomic on both sides.
        unsafe { AtomicU8::from_ptr(self.base.add(offset)) }.store(value, Ordering::Release);
    }

    /// Copies bytes that no writer changes any more.
    pub fn copy(&self, offset: usize, out: &mut [u8]) {
        assert!(offset.checked_add(out.len()).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping; `out` is ours alone.
        unsafe { std::ptr::copy_nonoverlapping(self.base.add(offset), out.as_mut_ptr(), out.len()) }
    }

    /// Returns a range of bytes.
    ///
    /// # Safety
    /// No other thread or program may write to the range while the slice exists.
    pub(crate) unsafe fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), len) }
    }

    /// Sets a range of bytes to 0. The mapping must be writable.
    ///
    /// # Safety
    /// No other thread or program may access the range meanwhile.
    pub(crate) unsafe fn clear(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the mapping; the caller promises the rest.
        unsafe { std::ptr::write_bytes(self.base.add(offset), 0, len) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and nobody holds references into it beyond `self`.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}
