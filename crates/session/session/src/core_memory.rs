// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kernel's coverage counters from its memory: `/proc/kcore` of this machine, or a crash dump of any.
//!
//! In: the file, and the kernel's symbols. Out: data by object. Where the file has no memory under the virtual address, it is
//! found through the kernel's page tables; a kernel that was loaded elsewhere than it was linked for (KASLR) is told from
//! what the dump says of itself (VMCOREINFO).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
use kprism_gcov::memory::{self, Live, Roots};
use kprism_kmem::elf::{Core, HEADERS};
use kprism_kmem::paging::Paged;
use kprism_kmem::{Memory, Physical};

/// This machine's memory.
pub const KCORE: &str = "/proc/kcore";

/// A kernel's memory, and where its counters are in it.
pub struct CoreMemory {
    path: PathBuf,
    file: File,
    core: Core,
    roots: Roots,
    /// `init_top_pgt`, `phys_base`, and whether there are five levels.
    tables: Option<(u64, u64, bool)>,
}

impl CoreMemory {
    /// Opens `path`; `symbols` is the kernel's `System.map` or `kallsyms`, of this machine if none.
    pub fn open(path: &Path, symbols: Option<&Path>) -> Result<Self> {
        let name = || path.display().to_string();
        let file = File::open(path).with_context(name)?;
        let core = Core::read(&beginning(&file)).map_err(|why| anyhow!("{}: {why}", name()))?;
        let symbols = match symbols {
            Some(symbols) => symbols.to_owned(),
            None if path == Path::new(KCORE) => PathBuf::from("/proc/kallsyms"),
            None => bail!("{}: name the System.map of the dumped kernel with --symbols", name()),
        };
        let text = std::fs::read(&symbols).with_context(|| symbols.display().to_string())?;
        let roots = Roots::find(&text).with_context(|| {
            format!(
                "{}: no address of gcov_info_head: the kernel needs CONFIG_GCOV_KERNEL and, for its own list, \
                 CONFIG_KALLSYMS_ALL; addresses are shown to root, with kptr_restrict below 2",
                symbols.display()
            )
        })?;
        // How far the kernel was moved: its own list of this boot is where it is.
        let linked =
            memory::symbol(&text, "init_top_pgt").or_else(|| memory::symbol(&text, "swapper_pg_dir"));
        let there = core.value("SYMBOL(swapper_pg_dir)", 16);
        let moved = there.zip(linked).map_or(0, |(there, linked)| there.wrapping_sub(linked));
        let phys_base = core.info.lines().find_map(|line| line.strip_prefix("NUMBER(phys_base)="));
        let phys_base = phys_base.and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(0) as u64;
        let five_levels = core.value("NUMBER(pgtable_l5_enabled)", 10) == Some(1);
        let add = |address: u64| address.wrapping_add(moved);
        Ok(Self {
            path: path.to_owned(),
            file,
            core,
            roots: Roots { infos: add(roots.infos), nodes: roots.nodes.map(add) },
            tables: linked.map(|table| (add(table), phys_base, five_levels)),
        })
    }

    /// All counters; of this machine's kernel, which runs on, with what changed meanwhile.
    pub fn counters(&self) -> Result<Live> {
        let physical = self.tables.map(|(table, phys_base, five_levels)| {
            Paged::new(OfCore { file: &self.file, core: &self.core }, table, phys_base, five_levels)
        });
        let mut memory = Either { file: &self.file, core: &self.core, physical };
        let read = match self.path == Path::new(KCORE) {
            true => memory::read_live(&mut memory, self.roots),
            false => memory::read(&mut memory, self.roots).map(|objects| Live { objects, ..Live::default() }),
        };
        read.with_context(|| self.path.display().to_string())
    }
}

/// The file's first bytes, as many as there are up to what headers take.
fn beginning(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; HEADERS];
    let mut used = 0;
    while used < bytes.len() {
        match file.read_at(&mut bytes[used..], used as u64) {
            Ok(count) if count > 0 => used += count,
            _ => break,
        }
    }
    bytes.truncate(used);
    bytes
}

fn read_place(
    file: &File,
    place: impl Fn(u64) -> Option<(u64, u64)>,
    address: u64,
    into: &mut [u8],
) -> Result<(), String> {
    let (mut at, mut rest) = (address, into);
    while !rest.is_empty() {
        let (offset, left) = place(at).ok_or("the file has no such memory")?;
        let (piece, more) = rest.split_at_mut(rest.len().min(usize::try_from(left).unwrap_or(usize::MAX)));
        file.read_exact_at(piece, offset).map_err(|error| error.to_string())?;
        at = at.wrapping_add(piece.len() as u64);
        rest = more;
    }
    Ok(())
}

struct OfCore<'c> {
    file: &'c File,
    core: &'c Core,
}

impl Physical for OfCore<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        read_place(self.file, |at| self.core.physical_place(at), address, into)
    }
}

struct Either<'c> {
    file: &'c File,
    core: &'c Core,
    physical: Option<Paged<OfCore<'c>>>,
}

impl Memory for Either<'_> {
    fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
        match (self.core.virtual_place(address), &mut self.physical) {
            (None, Some(paged)) => paged.read(address, into),
            _ => read_place(self.file, |at| self.core.virtual_place(at), address, into),
        }
    }
}
