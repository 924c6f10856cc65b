// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads counters from a kernel's memory: of a stopped guest, `/proc/kcore`, or a crash dump.
//!
//! Input: memory by virtual address ([`Memory`]), and the addresses of the kernel's lists ([`Roots`]). Output: [`Data`]
//! of each object, as in `/sys/kernel/debug/gcov`, by the path of its file. No code of the kernel runs for this, so a
//! snapshot of a stopped guest adds no counts of its own.
//!
//! The kernel keeps its `struct gcov_info`s (kernel/gcov/gcc_4_7.c, the same as libgcov's) in a list that starts at
//! `gcov_info_head`. The files in debugfs belong to nodes in a list that starts at `all_head` (kernel/gcov/fs.c). The
//! nodes also have the counters of unloaded modules (`gcov_persist`), so they are used if the address of their list is
//! known. Layouts are those of 64-bit little-endian kernels.
//!
//! On a running kernel, [`read_live`] reads each function until two consecutive readings are equal. Counters only grow,
//! so all of them had these values at one point in time between the two readings.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use kprism_kmem::Memory;

use crate::data::{Counters, Data, Values};
use crate::version::Version;
use crate::words::Header;

/// Addresses of the kernel's lists.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roots {
    /// Address of `gcov_info_head`.
    pub infos: u64,
    /// Address of `all_head` in kernel/gcov/fs.c, if known.
    pub nodes: Option<u64>,
}

impl Roots {
    /// Finds them in the text of `/proc/kallsyms` or a `System.map`.
    pub fn find(symbols: &[u8]) -> Option<Self> {
        let infos = symbol(symbols, "gcov_info_head")?;
        Some(Self { infos, nodes: symbol(symbols, "all_head") })
    }
}

/// Returns a symbol's address. None if it is absent, hidden (0) or ambiguous.
pub fn symbol(symbols: &[u8], name: &str) -> Option<u64> {
    let mut found = None;
    for line in symbols.split(|&byte| byte == b'\n') {
        // Each line is an address, a letter and a name; a module may follow.
        let Some(rest) = line.strip_suffix(name.as_bytes()) else { continue };
        let Some(rest) = rest.strip_suffix(b" ") else { continue };
        let mut words = std::str::from_utf8(rest).ok()?.split_ascii_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        if address == 0 || found.is_some() {
            return None;
        }
        found = Some(address);
    }
    found
}

/// Reason why the counters cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address:#x}: {what}: {why}")]
pub struct Broken {
    /// Address of the data.
    pub address: u64,
    /// The data that was expected there.
    pub what: &'static str,
    /// The problem.
    pub why: String,
}

/// Limit of the objects in a kernel.
const OBJECTS: usize = 1 << 18;
/// Limit of the functions of an object, and of the counters of a function.
const MOST: u32 = 1 << 20;
/// Limit of the length of an object's path, in bytes.
const PATH: usize = 4096;
/// Limit of the counters in a kernel: 1 GiB of them.
const COUNTERS: usize = 1 << 27;
/// Size of a single read in bytes. Memory is allocated only as far as reads succeed.
const PIECE: usize = 1 << 16;

/// Offsets in `struct gcov_node`: its link in the list of all nodes, and its objects.
mod node {
    pub const ALL: u64 = 32;
    pub const LOADED: u64 = 56;
    pub const UNLOADED: u64 = 64;
    pub const COUNT: u64 = 88;
}

/// Limit of repeated readings of a function that keeps changing.
pub const TRIES: usize = 8;
/// Limit of attempts to walk lists that change meanwhile, when modules are loaded or unloaded.
const WALKS: usize = 4;

/// Counters of a kernel that was running while they were read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// Data, by the path of the object's data file.
    pub objects: BTreeMap<String, Data>,
    /// Number of readings that differed from the previous one and were repeated.
    pub again: usize,
    /// Functions whose counters still changed after [`TRIES`] repeated readings, so that their counters are from
    /// several points in time. By object and function number.
    pub unsettled: BTreeSet<(String, u32)>,
}

struct Reader<'m> {
    memory: &'m mut dyn Memory,
    counters: usize,
    /// Statistics; None if the kernel is stopped.
    live: Option<Live>,
}

/// Reads all counters, by the path of the object's data file.
///
/// # Errors
/// If the lists point to unknown memory, or contain invalid data.
pub fn read(memory: &mut dyn Memory, roots: Roots) -> Result<BTreeMap<String, Data>, Broken> {
    Reader { memory, counters: 0, live: None }.all(roots)
}

/// As [`read`], for a running kernel. Data that changes during the reading is read again.
///
/// # Errors
/// As for [`read`], if every attempt to walk the lists fails.
pub fn read_live(memory: &mut dyn Memory, roots: Roots) -> Result<Live, Broken> {
    let mut walks = 1;
    loop {
        let mut reader = Reader { memory: &mut *memory, counters: 0, live: Some(Live::default()) };
        match reader.all(roots) {
            Ok(objects) => return Ok(Live { objects, ..reader.live.unwrap_or_default() }),
            Err(broken) if walks == WALKS => return Err(broken),
            Err(_) => walks += 1,
        }
    }
}

impl Reader<'_> {
    fn all(&mut self, roots: Roots) -> Result<BTreeMap<String, Data>, Broken> {
        match roots.nodes {
            Some(head) => self.nodes(head),
            None => self.infos(roots.infos),
        }
    }

    fn bytes<const N: usize>(&mut self, address: u64, what: &'static str) -> Result<[u8; N], Broken> {
        let mut bytes = [0; N];
        self.memory.read(address, &mut bytes).map_err(|why| Broken { address, what, why })?;
        Ok(bytes)
    }

    fn word(&mut self, address: u64, what: &'static str) -> Result<u32, Broken> {
        self.bytes(address, what).map(u32::from_le_bytes)
    }

    fn pointer(&mut self, address: u64, what: &'static str) -> Result<u64, Broken> {
        self.bytes(address, what).map(u64::from_le_bytes)
    }

    fn values(&mut self, address: u64, count: u32, what: &'static str) -> Result<Vec<i64>, Broken> {
        let mut values = Vec::new();
        let (mut at, mut left) = (address, count as usize * 8);
        let mut piece = Vec::new();
        while left > 0 {
            piece.resize(left.min(PIECE), 0);
            self.memory.read(at, &mut piece).map_err(|why| Broken { address: at, what, why })?;
            values.extend(piece.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)));
            at = at.wrapping_add(piece.len() as u64);
            left -= piece.len();
        }
        Ok(values)
    }

    /// Reads the counters of all loaded objects.
    fn infos(&mut self, head: u64) -> Result<BTreeMap<String, Data>, Broken> {
        let (mut found, mut seen) = (BTreeMap::new(), HashSet::new());
        let mut at = self.pointer(head, "the list of objects")?;
        while at != 0 {
            fresh(&mut seen, at, "the list of objects")?;
            let (name, data) = self.info(at)?;
            add(&mut found, name, data, at)?;
            at = self.pointer(at.wrapping_add(8), "the next object")?;
        }
        Ok(found)
    }

    /// Reads the counters of all files in debugfs.
    fn nodes(&mut self, head: u64) -> Result<BTreeMap<String, Data>, Broken> {
        let (mut found, mut seen) = (BTreeMap::new(), HashSet::new());
        let mut at = self.pointer(head, "the list of nodes")?;
        while at != head {
            fresh(&mut seen, at, "the list of nodes")?;
            let node = at.wrapping_sub(node::ALL);
            let unloaded = self.pointer(node.wrapping_add(node::UNLOADED), "a node")?;
            let count = self.word(node.wrapping_add(node::COUNT), "a node")?;
            let loaded = self.pointer(node.wrapping_add(node::LOADED), "a node")?;
            if count > MOST {
                let why = format!("{count} objects of one name");
                return Err(Broken { address: node, what: "a node", why });
            }
            let mut infos = vec![unloaded];
            for index in 0..u64::from(count) {
                infos.push(self.pointer(loaded.wrapping_add(index * 8), "a node's objects")?);
            }
            for info in infos.into_iter().filter(|info| *info != 0) {
                let (name, data) = self.info(info)?;
                add(&mut found, name, data, info)?;
            }
            at = self.pointer(at, "the next node")?;
        }
        Ok(found)
    }

    /// Reads a `struct gcov_info`.
    fn info(&mut self, at: u64) -> Result<(String, Data), Broken> {
        let broken = |what, why: String| Broken { address: at, what, why };
        let version = Version(self.word(at, "an object's version")?);
        if !version.is_known() {
            return Err(broken("an object's version", format!("{version} is no version of GCC 4.7 to 16")));
        }
        let stamp = self.word(at.wrapping_add(16), "an object's stamp")?;
        // GCC 12 added a checksum between stamp and name, where the structure had padding.
        let name = self.pointer(at.wrapping_add(24), "an object's name")?;
        let name = self.text(name)?;
        let kinds = version.counter_kinds();
        let mut active = Vec::new();
        for kind in 0..kinds {
            let merge = at.wrapping_add(32 + u64::from(kind) * 8);
            if self.pointer(merge, "an object's kinds")? != 0 {
                active.push(kind);
            }
        }
        let after = at.wrapping_add(32 + u64::from(kinds) * 8);
        let count = self.word(after, "an object's number of functions")?;
        if count > MOST {
            return Err(broken("an object's number of functions", format!("{count}")));
        }
        let table = self.pointer(after.wrapping_add(8), "an object's functions")?;
        let mut functions = Vec::new();
        for pointer in self.values(table, count, "an object's functions")? {
            let (function, is_settled) = self.function(pointer as u64, &active)?;
            if let Some(live) = self.live.as_mut().filter(|_| !is_settled) {
                live.unsettled.insert((name.clone(), function.ident));
            }
            functions.push(function);
        }
        // The kernel writes no checksum either.
        let header = Header { big_endian: false, version, stamp, checksum: 0 };
        Ok((name, Data { header, summary: None, functions, rest: Default::default() }))
    }

    /// Reads a `struct gcov_fn_info`. Also returns whether its counters are from one point in time.
    fn function(&mut self, at: u64, active: &[u8]) -> Result<(Counters, bool), Broken> {
        let mut counters = Counters {
            ident: self.word(at.wrapping_add(8), "a function's ident")?,
            lineno_checksum: self.word(at.wrapping_add(12), "a function's checksum")?,
            cfg_checksum: self.word(at.wrapping_add(16), "a function's checksum")?,
            values: Vec::new(),
        };
        let mut places = Vec::new();
        for (index, &kind) in active.iter().enumerate() {
            let counts = at.wrapping_add(24 + index as u64 * 16);
            let count = self.word(counts, "a function's counters")?;
            self.counters += count as usize;
            if count > MOST || self.counters > COUNTERS {
                let why = format!("{count} of them");
                return Err(Broken { address: counts, what: "a function's counters", why });
            }
            let values = self.pointer(counts.wrapping_add(8), "a function's counters")?;
            places.push((values, count));
            counters.values.push((kind, Values::All(self.values(values, count, "counters")?)));
        }
        let is_settled = self.live.is_none() || self.settle(&mut counters, &places)?;
        Ok((counters, is_settled))
    }

    /// Reads a function's counters until two consecutive readings are equal. Returns false if they never are.
    fn settle(&mut self, counters: &mut Counters, places: &[(u64, u32)]) -> Result<bool, Broken> {
        for _ in 0..TRIES {
            let mut is_same = true;
            for ((_, values), &(place, count)) in counters.values.iter_mut().zip(places) {
                let now = Values::All(self.values(place, count, "counters")?);
                is_same &= now == *values;
                *values = now;
            }
            if is_same {
                return Ok(true);
            }
            if let Some(live) = &mut self.live {
                live.again += 1;
            }
        }
        Ok(false)
    }

    fn text(&mut self, at: u64) -> Result<String, Broken> {
        let mut text = Vec::new();
        while text.len() < PATH {
            let [byte] = self.bytes(at.wrapping_add(text.len() as u64), "an object's name")?;
            if byte == 0 {
                return Ok(String::from_utf8_lossy(&text).into_owned());
            }
            text.push(byte);
        }
        Err(Broken { address: at, what: "an object's name", why: format!("longer than {PATH} bytes") })
    }
}

fn fresh(seen: &mut HashSet<u64>, at: u64, what: &'static str) -> Result<(), Broken> {
    if seen.insert(at) && seen.len() <= OBJECTS {
        return Ok(());
    }
    Err(Broken { address: at, what, why: "it goes in circles, or on for ever".into() })
}

fn add(found: &mut BTreeMap<String, Data>, name: String, data: Data, at: u64) -> Result<(), Broken> {
    use std::collections::btree_map::Entry;
    match found.entry(name) {
        Entry::Vacant(place) => drop(place.insert(data)),
        Entry::Occupied(mut known) => {
            let added = known.get_mut().add(&data);
            added.map_err(|error| Broken { address: at, what: "an object", why: error.to_string() })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that starts at an address.
    struct Flat(u64, Vec<u8>);

    impl Memory for Flat {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
            let at = address.checked_sub(self.0).and_then(|at| usize::try_from(at).ok());
            let end = at.and_then(|at| at.checked_add(into.len()));
            let bytes =
                at.zip(end).and_then(|(at, end)| self.1.get(at..end)).ok_or("nothing is mapped there")?;
            into.copy_from_slice(bytes);
            Ok(())
        }
    }

    impl Flat {
        fn put(&mut self, at: u64, bytes: &[u8]) {
            let at = (at - self.0) as usize;
            self.1[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    const BASE: u64 = 0xffff_ffff_8100_0000;

    /// Returns a list with one object (GCC 12), which has one function with two counters, and a node for the object.
    fn small() -> (Flat, Roots) {
        let mut memory = Flat(BASE, vec![0; 4096]);
        let (head, info, name, table, function, values) =
            (BASE, BASE + 0x100, BASE + 0x200, BASE + 0x300, BASE + 0x400, BASE + 0x500);
        memory.put(head, &info.to_le_bytes());
        memory.put(info, &u32::from_be_bytes(*b"B22*").to_le_bytes());
        memory.put(info + 16, &7u32.to_le_bytes());
        memory.put(info + 24, &name.to_le_bytes());
        memory.put(info + 32, &1u64.to_le_bytes());
        memory.put(info + 32 + 8 * 8, &1u32.to_le_bytes());
        memory.put(info + 32 + 8 * 8 + 8, &table.to_le_bytes());
        memory.put(name, b"/k/a.gcda\0");
        memory.put(table, &function.to_le_bytes());
        memory.put(function + 8, &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        memory.put(function + 24, &2u32.to_le_bytes());
        memory.put(function + 32, &values.to_le_bytes());
        memory.put(values, &[5, 0, 0, 0, 0, 0, 0, 0, 6]);
        let (nodes, node) = (BASE + 0x600, BASE + 0x700);
        memory.put(nodes, &(node + node::ALL).to_le_bytes());
        memory.put(node + node::ALL, &nodes.to_le_bytes());
        memory.put(node + node::UNLOADED, &info.to_le_bytes());
        memory.put(node + node::LOADED, &(BASE + 0x800).to_le_bytes());
        memory.put(node + node::COUNT, &1u32.to_le_bytes());
        memory.put(BASE + 0x800, &info.to_le_bytes());
        (memory, Roots { infos: head, nodes: Some(nodes) })
    }

    fn counts(found: &BTreeMap<String, Data>) -> Vec<i64> {
        let function = &found["/k/a.gcda"].functions[0];
        assert_eq!((function.ident, function.lineno_checksum, function.cfg_checksum), (1, 2, 3));
        (0..2).map(|i| function.of(0).expect("arcs").get(i)).collect()
    }

    #[test]
    fn objects_are_found_with_what_was_unloaded() {
        let (mut memory, roots) = small();
        assert_eq!(counts(&read(&mut memory, Roots { nodes: None, ..roots }).unwrap()), [5, 6]);
        // The object is loaded and was also left behind by an unload: debugfs shows the sum.
        assert_eq!(counts(&read(&mut memory, roots).unwrap()), [10, 12]);
    }

    /// Memory of a running kernel: the first counter grows at each reading of the counters, this many times.
    struct Running(Flat, u8);

    impl Memory for Running {
        fn read(&mut self, address: u64, into: &mut [u8]) -> Result<(), String> {
            self.0.read(address, into)?;
            if address == BASE + 0x500 && self.1 > 0 {
                self.1 -= 1;
                self.0.1[0x500] += 1;
            }
            Ok(())
        }
    }

    #[test]
    fn what_changes_while_it_is_read_is_read_again() {
        let (memory, roots) = small();
        let roots = Roots { nodes: None, ..roots };
        let still = read_live(&mut Running(small().0, 0), roots).unwrap();
        assert_eq!((counts(&still.objects), still.again, still.unsettled.len()), (vec![5, 6], 0, 0));
        let settled = read_live(&mut Running(small().0, 3), roots).unwrap();
        assert_eq!((counts(&settled.objects), settled.again, settled.unsettled.len()), (vec![8, 6], 3, 0));
        let moving = read_live(&mut Running(memory, 100), roots).unwrap();
        assert_eq!(moving.again, TRIES);
        assert_eq!(moving.unsettled, [("/k/a.gcda".to_owned(), 1)].into());
    }

    #[test]
    fn nonsense_is_an_error_with_its_place() {
        let (mut memory, roots) = small();
        memory.put(BASE + 0x108, &(BASE + 0x100).to_le_bytes());
        let circle = read(&mut memory, Roots { nodes: None, ..roots }).unwrap_err();
        assert_eq!(circle.address, BASE + 0x100);
        for at in 0..0x900 {
            let (mut memory, roots) = small();
            memory.1[at] ^= 0xff;
            read(&mut memory, roots).ok();
            memory.1.truncate(at);
            read(&mut memory, roots).ok();
        }
    }

    #[test]
    fn symbols_are_told_apart() {
        let text = b"ffffffff825b7d28 b gcov_info_head\nffffffff82164480 d all_head\n0 t x_all_head\n";
        let roots = Roots { infos: 0xffff_ffff_825b_7d28, nodes: Some(0xffff_ffff_8216_4480) };
        assert_eq!(Roots::find(text), Some(roots));
        assert_eq!(symbol(b"1 d all_head\n2 d all_head\n", "all_head"), None, "which?");
        assert_eq!(Roots::find(b"0000000000000000 b gcov_info_head\n"), None, "hidden");
    }
}
