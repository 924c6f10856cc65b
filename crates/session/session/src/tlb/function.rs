// SPDX-License-Identifier: MIT OR Apache-2.0
//! Misses by instruction, for some functions.

use std::collections::BTreeMap;

use kprism_image::symbols::Symbols;
use kprism_tlb::profile::Profile;
use object::{Object, ObjectSegment};

/// Misses of the first geometry by an instruction's distance from its function's entry, in bytes.
pub type Sites = BTreeMap<u64, u64>;

/// The longest instruction.
const LONGEST: usize = 15;

/// Misses of the instructions of the functions that are marked in `chosen`, by the function's number. A function without
/// misses is left out.
pub fn by_function(profile: &Profile, symbols: &Symbols, chosen: &[bool]) -> BTreeMap<u32, Sites> {
    let mut missed: BTreeMap<u32, Sites> = BTreeMap::new();
    for (&(space, ip), site) in &profile.sites {
        let Some(at) = symbols.locate(space, ip, site.ns) else { continue };
        if chosen[at.func.0 as usize] && site.misses[0] > 0 {
            *missed.entry(at.func.0).or_default().entry(ip.wrapping_sub(at.entry)).or_default() +=
                site.misses[0];
        }
    }
    missed
}

/// The bytes of an ELF file at a link-time address, as many as one instruction may have.
pub fn bytes_at(file: &[u8], address: u64) -> Option<Vec<u8>> {
    let elf = object::File::parse(file).ok()?;
    let segment = elf.segments().find(|s| (s.address()..s.address() + s.size()).contains(&address))?;
    let data = segment.data().ok()?.get((address - segment.address()) as usize..)?;
    Some(data[..data.len().min(LONGEST)].to_vec())
}
