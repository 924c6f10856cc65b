// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest's mode of transparent huge pages.
//!
//! Input: a snapshot's folder: the guest's memory, and the kernel's symbols and types. Output: the kernel's name of the mode, or
//! the reason why it is not known. The guest executes nothing for it, so its runs stay the same.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use kprism_btf::{Btf, Kind};
use kprism_gcov::memory::symbol;
use kprism_kmem::paging::Paged;
use kprism_kmem::{Memory as _, Physical};

use crate::lab::Prepared;
use crate::snapshot::MEMORY;

/// The kernel's variable with the mode (mm/huge_memory.c).
const FLAGS: &str = "transparent_hugepage_flags";

/// The numbers of its bits, which differ among kernels (include/linux/huge_mm.h).
const BITS: &str = "transparent_hugepage_flag";

/// End of the memory in which file offsets are physical addresses, with whatever size of memory. The kernel's image is below.
const BELOW_4G: u64 = 2 << 30;

/// A guest's memory as its snapshot has it.
struct Saved(File);

impl Physical for Saved {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        if address.saturating_add(into.len() as u64) > BELOW_4G {
            return Err(format!("{address:#x}: expected below 2 GiB"));
        }
        self.0.read_exact_at(into, address).map_err(|error| format!("{address:#x}: {error}"))
    }
}

impl Prepared {
    /// The mode of transparent huge pages before the command: `always`, `madvise` or `never`.
    ///
    /// # Errors
    /// The reason why it is not known.
    pub fn huge_pages(&self) -> Result<&'static str, String> {
        if !self.is_where_linked() {
            return Err("the guest's kernel is at a random place (kaslr)".into());
        }
        if self.machine.features.iter().any(|feature| feature.to_string() == "+la57") {
            return Err("the guest may have page tables of five levels (+la57)".into());
        }
        of_snapshot(self.snapshot_folder())
    }
}

/// The mode in a snapshot of a kernel that is where it was linked.
fn of_snapshot(folder: &Path) -> Result<&'static str, String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let kallsyms = read("kallsyms")?;
    let address = |name: &str| {
        symbol(&kallsyms, name)
            .ok_or_else(|| format!("the guest's kernel has no variable `{name}` in kallsyms"))
    };
    let (flags, table) = (address(FLAGS)?, address("init_top_pgt")?);
    let btf = Btf::parse("the guest's BTF", read("btf")?, None).map_err(|error| error.to_string())?;
    let bits = btf.find(Kind::Enum, BITS).ok_or_else(|| format!("the guest's BTF has no enum `{BITS}`"))?;
    let bit = |name: &str| {
        let found = btf.enumerators(bits).find(|(own, _)| *own == name).map(|(_, bit)| bit);
        let bit = found.and_then(|bit| u32::try_from(bit).ok()).filter(|&bit| bit < u64::BITS);
        bit.ok_or_else(|| format!("the guest's BTF has no bit `{name}` of enum `{BITS}`"))
    };
    let (always, madvise) = (bit("TRANSPARENT_HUGEPAGE_FLAG")?, bit("TRANSPARENT_HUGEPAGE_REQ_MADV_FLAG")?);
    let path = folder.join(MEMORY);
    let failed = |error: String| format!("{}: {error}", path.display());
    let memory = File::open(&path).map_err(|error| failed(error.to_string()))?;
    let mut value = [0; 8];
    // Without la57 page tables have four levels.
    Paged::new(Saved(memory), table, 0, false).read(flags, &mut value).map_err(failed)?;
    Ok(mode(u64::from_le_bytes(value), always, madvise))
}

/// The mode as the kernel's `enabled` shows it.
fn mode(flags: u64, always: u32, madvise: u32) -> &'static str {
    let is_set = |bit: u32| flags >> bit & 1 != 0;
    match (is_set(always), is_set(madvise)) {
        (true, _) => "always",
        (false, true) => "madvise",
        (false, false) => "never",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bits_are_those_of_the_kernels_types() {
        // Linux 6.12 has another flag at bit 0, Linux 5.10 the mode's.
        assert_eq!((mode(0b011, 1, 2), mode(0b101, 1, 2), mode(0b001, 1, 2)), ("always", "madvise", "never"));
        assert_eq!((mode(0b001, 0, 1), mode(0b010, 0, 1), mode(0b100, 0, 1)), ("always", "madvise", "never"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let why = of_snapshot(dir.path()).unwrap_err();
        assert!(why.contains("kallsyms: "), "{why}");
        fs::write(dir.path().join("kallsyms"), "ffffffff81000000 T _text\n").unwrap();
        let why = of_snapshot(dir.path()).unwrap_err();
        assert!(why.contains(FLAGS), "{why}");
        let symbols = format!("ffffffff82000000 D {FLAGS}\nffffffff82a00000 D init_top_pgt\n");
        fs::write(dir.path().join("kallsyms"), symbols).unwrap();
        fs::write(dir.path().join("btf"), "").unwrap();
        let why = of_snapshot(dir.path()).unwrap_err();
        assert!(why.contains("the guest's BTF"), "{why}");
    }
}
