// SPDX-License-Identifier: GPL-2.0-or-later
//! The guest's physical memory, for reading page tables. QEMU's plugin interface reads virtual addresses only, each
//! with its own page walk. `cpu_physical_memory_map`, which QEMU exports though it is not part of that interface, gives
//! the location of the memory in this process. If a QEMU does not export it, Linux's direct map of physical memory is
//! used.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

use crate::guest;

type MapMemory = unsafe extern "C" fn(u64, *mut u64, c_int) -> *mut c_void;

static MAP: OnceLock<Option<MapMemory>> = OnceLock::new();

/// Address of `page_offset_base` without address space randomisation (Documentation/arch/x86/x86_64/mm.rst).
const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;

/// Pieces of the guest's memory found so far.
#[derive(Default)]
pub struct Ram {
    pieces: Vec<Piece>,
}

struct Piece {
    start: u64,
    bytes: u64,
    host: *const u8,
}

// SAFETY: the pointers lead to the guest's memory, which lives as long as QEMU and is shared between its threads.
unsafe impl Send for Ram {}

impl Ram {
    /// The word at a physical address, which is a multiple of 8; `None` if there is no memory.
    #[inline]
    pub fn word(&mut self, physical: u64) -> Option<u64> {
        let found = self.pieces.iter().find(|p| physical.wrapping_sub(p.start) < p.bytes);
        let piece = match found {
            Some(piece) => piece,
            None => match self.map(physical) {
                Some(piece) => piece,
                None => return guest::word(DIRECT_MAP.checked_add(physical)?),
            },
        };
        // SAFETY: within the piece, aligned; the guest may write it meanwhile, as it may on hardware, which is why the
        // read is volatile.
        Some(unsafe { piece.host.add((physical - piece.start) as usize).cast::<u64>().read_volatile() })
    }

    #[cold]
    fn map(&mut self, physical: u64) -> Option<&Piece> {
        let map = (*MAP.get_or_init(|| {
            // SAFETY: a plain symbol lookup in the running process; the type is QEMU's.
            unsafe {
                let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"cpu_physical_memory_map".as_ptr());
                (!symbol.is_null()).then(|| std::mem::transmute::<*mut c_void, MapMemory>(symbol))
            }
        }))?;
        let start = physical & !0xfff;
        // As much as is contiguous from here; QEMU returns that length.
        let mut bytes = 1 << 40;
        // SAFETY: maps for reading; the mapping is never given back, as the memory is used until the end. For what is
        // no memory QEMU answers with a buffer of its own or null, and with a length below a page or null.
        let host = unsafe { map(start, &mut bytes, 0) };
        if host.is_null() || bytes < 1 << 16 {
            return None;
        }
        self.pieces.push(Piece { start, bytes, host: host.cast() });
        self.pieces.last()
    }
}
