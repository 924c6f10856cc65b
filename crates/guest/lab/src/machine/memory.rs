// SPDX-License-Identifier: MIT OR Apache-2.0
//! Physical memory of a stopped guest, by QEMU's command `pmemsave`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::Path;

use kprism_kmem::Physical;
use serde_json::json;

use crate::qmp::Qmp;

/// Bytes read at once for a smaller request. Memory of devices begins and ends at multiples of this: reading it could change a
/// device.
const PIECE: u64 = 1 << 16;

/// A file without a name, through which QEMU passes memory if it inherits it. It is gone with both processes.
pub(crate) fn passage() -> io::Result<File> {
    // SAFETY: the name is a C string; the descriptor is new and nobody else's.
    let descriptor = unsafe { libc::memfd_create(c"guest memory".as_ptr(), libc::MFD_CLOEXEC) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }))
}

/// Physical memory of a stopped guest. What is read in small pieces is read at most once.
pub(crate) struct GuestMemory<'q> {
    qmp: &'q mut Qmp,
    /// File through which QEMU passes it; both processes know it by this path.
    file: &'q Path,
    known: HashMap<u64, Vec<u8>>,
}

impl<'q> GuestMemory<'q> {
    pub fn new(qmp: &'q mut Qmp, file: &'q Path) -> Self {
        Self { qmp, file, known: HashMap::new() }
    }

    fn fetch(&mut self, address: u64, size: u64) -> Result<Vec<u8>, String> {
        let arguments = json!({ "val": address, "size": size, "filename": self.file.to_string_lossy() });
        self.qmp.call("pmemsave", arguments).map_err(|error| error.to_string())?;
        fs::read(self.file).map_err(|error| error.to_string())
    }
}

impl Drop for GuestMemory<'_> {
    fn drop(&mut self) {
        fs::remove_file(self.file).ok();
    }
}

impl Physical for GuestMemory<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        let missing = || "the guest has no such memory".to_owned();
        if into.len() as u64 >= PIECE {
            let bytes = self.fetch(address, into.len() as u64)?;
            into.copy_from_slice(bytes.get(..into.len()).ok_or_else(missing)?);
            return Ok(());
        }
        let (mut at, mut rest) = (address, into);
        while !rest.is_empty() {
            let (base, within) = (at / PIECE * PIECE, (at % PIECE) as usize);
            let (first, more) = rest.split_at_mut(rest.len().min(PIECE as usize - within));
            if !self.known.contains_key(&base) {
                let bytes = self.fetch(base, PIECE)?;
                self.known.insert(base, bytes);
            }
            let bytes = self.known.get(&base).and_then(|bytes| bytes.get(within..within + first.len()));
            first.copy_from_slice(bytes.ok_or_else(missing)?);
            at += first.len() as u64;
            rest = more;
        }
        Ok(())
    }
}
