// SPDX-License-Identifier: MIT OR Apache-2.0
//! Maps addresses to memory objects: ELF symbols, the heap, mapped regions, stacks, parts of the kernel's half.
//!
//! Input: the mappings in a run's sideband, in order, and the mapped ELF files. Output: the object of an address in a
//! process.
//!
//! The kernel joins neighbouring anonymous mappings. So only the part of a mapping that was not mapped before becomes a
//! new object: two arrays from two `malloc` calls stay two objects. A mapping that lies wholly inside another one
//! replaces that part of it (`MAP_FIXED`, `mprotect`). The end of a mapping is not recorded. A later mapping at the
//! same place takes it over only where it extends beyond it.

pub mod allocs;
mod recent;

use std::collections::{BTreeMap, HashMap};

use kprism_image::is_kernel;
use kprism_image::sideband::{Mmap, Record};
use object::{Object as _, ObjectSegment as _, ObjectSymbol as _, SymbolKind};

use crate::stream::{Context, Event};
use crate::x86::layout::{KERNEL, MMAPS, QEMU_MMAPS, STACKS};
use allocs::{Allocations, Site};
use recent::Recent;

/// Kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A variable, or the rest of an ELF file.
    Elf,
    /// The memory of `brk`, where small allocations are.
    Heap,
    /// An anonymous mapping: a large allocation, a thread's stack.
    Anonymous,
    /// The main thread's stack.
    Stack,
    /// A part of the kernel's half.
    Kernel,
    /// Nothing is known to be mapped there.
    Unknown,
}

impl Kind {
    /// The name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Elf => "elf",
            Kind::Heap => "heap",
            Kind::Anonymous => "mmap",
            Kind::Stack => "stack",
            Kind::Kernel => "kernel",
            Kind::Unknown => "unknown",
        }
    }
}

/// One object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Its name.
    pub name: String,
    /// Kind of the object.
    pub kind: Kind,
    /// Process; 0 for the kernel.
    pub tgid: u32,
    /// First address.
    pub start: u64,
    /// Size in bytes, as far as known. For allocations, the maximum at any time.
    pub bytes: u64,
    /// The allocation site, and an address space with that code.
    pub site: Option<(Site, u64)>,
}

/// The objects of a run.
#[derive(Debug, Clone, Default)]
pub struct Objects {
    objects: Vec<Object>,
    /// By process: start, end, object. No two overlap.
    maps: HashMap<u32, BTreeMap<u64, (u64, u32)>>,
    kernel: HashMap<&'static str, u32>,
    unknown: HashMap<u32, u32>,
    allocations: Allocations,
    /// Of `maps`.
    recent: Recent,
}

impl Objects {
    /// Collects the objects. `file` reads a mapped file by its path in the guest.
    pub fn new(records: &[Record], mut file: impl FnMut(&str) -> Option<Vec<u8>>) -> Self {
        let mut o = Objects::default();
        let mut elves: HashMap<String, Option<Elf>> = HashMap::new();
        for record in records {
            let Record::Mmap(m) = record else { continue };
            if m.end <= m.start || is_kernel(m.start) {
                continue;
            }
            match m.path.as_str() {
                "" | "[anon]" => o.anonymous(m),
                "[heap]" => o.put(m.tgid, m.start, m.end, "[heap]", Kind::Heap),
                path if path.starts_with("[stack") => o.put(m.tgid, m.start, m.end, "[stack]", Kind::Stack),
                path if path.starts_with('[') => o.put(m.tgid, m.start, m.end, path, Kind::Elf),
                path => {
                    let elf = elves.entry(path.to_owned()).or_insert_with(|| Elf::read(&file(path)?));
                    o.file(m, path, elf.as_ref());
                }
            }
        }
        o
    }

    /// All objects. An object's number is its index in this list.
    pub fn all(&self) -> &[Object] {
        &self.objects
    }

    fn anonymous(&mut self, m: &Mmap) {
        let kind = match m.start {
            _ if m.end > STACKS => Kind::Stack,
            s if s < MMAPS && !QEMU_MMAPS.contains(&s) => Kind::Heap,
            _ => Kind::Anonymous,
        };
        let name = match kind {
            Kind::Stack => "[stack]",
            Kind::Heap => "[heap]",
            _ => "",
        };
        self.put(m.tgid, m.start, m.end, name, kind);
    }

    /// Assigns the free parts of a range to the process's object of this kind and name if there is one, else to a new
    /// one. A range without a name always becomes a new object.
    fn put(&mut self, tgid: u32, start: u64, end: u64, name: &str, kind: Kind) {
        self.recent.clear();
        let map = self.maps.entry(tgid).or_default();
        let around = map.range(..=start).next_back().map(|(&s, &(e, number))| (s, e, number));
        if let Some((s, e, number)) = around
            && e >= end
            && (s, e) != (start, end)
            && kind == Kind::Anonymous
            && self.objects[number as usize].kind == kind
        {
            map.remove(&s);
            for (s, e) in [(s, start), (end, e)] {
                if s < e {
                    map.insert(s, (e, number));
                }
            }
            self.objects[number as usize].bytes -= end - start;
        }
        let mut at = start;
        let mut gaps = Vec::new();
        let before = map.range(..start).next_back().map(|(_, &(e, _))| e).filter(|&e| e > start);
        at = at.max(before.unwrap_or(at));
        for (&s, &(e, _)) in map.range(start..end) {
            if s > at {
                gaps.push((at, s));
            }
            at = at.max(e);
        }
        if at < end {
            gaps.push((at, end));
        }
        let Some(&(first, _)) = gaps.first() else { return };
        let bytes = gaps.iter().map(|(s, e)| e - s).sum();
        let same = |o: &Object| o.tgid == tgid && o.kind == kind && o.name == name;
        let known = if name.is_empty() { None } else { self.objects.iter().position(same) };
        let number = match known {
            Some(number) => {
                let object = &mut self.objects[number];
                object.bytes += bytes;
                object.start = object.start.min(first);
                number
            }
            None => {
                let name = match name {
                    "" => format!("mmap of {} at {first:#x}", size_text(bytes)),
                    name => name.to_owned(),
                };
                self.objects.push(Object { name, kind, tgid, start: first, bytes, site: None });
                self.objects.len() - 1
            }
        };
        for (s, e) in gaps {
            map.insert(s, (e, number as u32));
        }
    }

    fn file(&mut self, m: &Mmap, path: &str, elf: Option<&Elf>) {
        let Some(elf) = elf else {
            return self.put(m.tgid, m.start, m.end, path, Kind::Elf);
        };
        let Some(bias) = elf.bias(m) else {
            return self.put(m.tgid, m.start, m.end, path, Kind::Elf);
        };
        // The whole image at once, including `.bss`, which is zero at the start, has no file, and is mapped as
        // anonymous memory.
        let (low, high) = (elf.low.wrapping_add(bias), elf.high.wrapping_add(bias));
        if low >= high || self.maps.get(&m.tgid).is_some_and(|map| map.range(low..high).next().is_some()) {
            return;
        }
        let base = path.rsplit('/').next().unwrap_or(path);
        for v in &elf.variables {
            let start = v.start.wrapping_add(bias);
            if start >= low && start + v.bytes <= high {
                self.put(m.tgid, start, start + v.bytes, &format!("{} ({base})", v.name), Kind::Elf);
            }
        }
        self.put(m.tgid, low, high, path, Kind::Elf);
    }

    /// Adds the allocations of programs, in order of time. Each allocation site becomes an object.
    pub fn allocated(&mut self, events: impl IntoIterator<Item = (Context, Event)>) {
        for (context, event) in events {
            match event {
                Event::Alloc(a) => {
                    let next = self.objects.len() as u32;
                    let site = Site { tgid: context.tgid, function: a.function, frames: a.frames };
                    let number = self.allocations.alloc(&site, &a, next);
                    if number == next {
                        let kind = if site.is_mapping() { Kind::Anonymous } else { Kind::Heap };
                        let name = format!("{} at {:#x}", site.name(), a.frames[0]);
                        let site = Some((site, context.space));
                        self.objects.push(Object {
                            name,
                            kind,
                            tgid: context.tgid,
                            start: a.va,
                            bytes: 0,
                            site,
                        });
                    }
                    let object = &mut self.objects[number as usize];
                    object.start = object.start.min(a.va);
                    object.bytes = self.allocations.most(number);
                }
                Event::Free { ns, va, bytes } => self.allocations.free(context.tgid, ns, va, bytes),
                _ => {}
            }
        }
    }

    /// Renames the objects of allocation sites. `name` gets the site and an address space in which it was.
    pub fn name_sites(&mut self, mut name: impl FnMut(&Site, u64) -> Option<String>) {
        for object in &mut self.objects {
            if let Some(name) = object.site.as_ref().and_then(|(site, space)| name(site, *space)) {
                object.name = name;
            }
        }
    }

    /// The object at an address, by its number.
    pub fn find(&mut self, context: &Context, va: u64) -> u32 {
        match self.allocations.find(context.tgid, va, context.ns) {
            Some(number) => number,
            None => self.mapped(context.tgid, va),
        }
    }

    /// Like [`Objects::find`], by the unit that could get larger pages: small allocations count as the mapping in which
    /// they lie.
    pub fn region(&mut self, context: &Context, va: u64) -> u32 {
        match self.allocations.find(context.tgid, va, context.ns) {
            Some(number) if self.objects[number as usize].kind == Kind::Anonymous => number,
            _ => self.mapped(context.tgid, va),
        }
    }

    /// The object mapped at an address of a process.
    fn in_maps(&mut self, tgid: u32, va: u64) -> Option<u32> {
        let (&start, &(end, number)) = self.maps.get(&tgid)?.range(..=va).next_back()?;
        if va >= end {
            return None;
        }
        self.recent.put(tgid, va, (start, end - 1), Some(number));
        Some(number)
    }

    fn mapped(&mut self, tgid: u32, va: u64) -> u32 {
        if is_kernel(va) {
            let part =
                KERNEL.iter().find(|p| (p.0..p.1).contains(&va)).map_or("other kernel memory", |p| p.2);
            let next = self.objects.len() as u32;
            let number = *self.kernel.entry(part).or_insert(next);
            if number == next {
                let (start, end) = KERNEL.iter().find(|p| p.2 == part).map_or((0, 0), |p| (p.0, p.1));
                let name = format!("[{part}]");
                let bytes = end - start;
                self.objects.push(Object { name, kind: Kind::Kernel, tgid: 0, start, bytes, site: None });
            }
            return number;
        }
        if let Some(Some(number)) = self.recent.get(tgid, va) {
            return number;
        }
        if let Some(number) = self.in_maps(tgid, va) {
            return number;
        }
        if va >= STACKS {
            self.put(tgid, va & !0xfff, (va & !0xfff) + 4096, "[stack]", Kind::Stack);
            if let Some(number) = self.in_maps(tgid, va) {
                return number;
            }
        }
        let next = self.objects.len() as u32;
        let number = *self.unknown.entry(tgid).or_insert(next);
        if number == next {
            self.objects.push(Object {
                name: "[not mapped while recorded]".into(),
                kind: Kind::Unknown,
                tgid,
                start: 0,
                bytes: 0,
                site: None,
            });
        }
        number
    }
}

fn size_text(bytes: u64) -> String {
    match bytes {
        b if b >= 10 << 30 => format!("{} GiB", b >> 30),
        b if b >= 10 << 20 => format!("{} MiB", b >> 20),
        b => format!("{} KiB", b >> 10),
    }
}

struct Variable {
    name: String,
    start: u64,
    bytes: u64,
}

/// The data segments and variables of an ELF file.
struct Elf {
    /// File offset, bytes in the file, address.
    segments: Vec<(u64, u64, u64)>,
    low: u64,
    high: u64,
    variables: Vec<Variable>,
}

impl Elf {
    fn read(bytes: &[u8]) -> Option<Elf> {
        let file = object::File::parse(bytes).ok()?;
        let segments: Vec<(u64, u64, u64)> =
            file.segments().map(|s| (s.file_range().0, s.file_range().1, s.address())).collect();
        let low = segments.iter().map(|s| s.2).min()? & !0xfff;
        let high = file.segments().map(|s| s.address().saturating_add(s.size())).max()?;
        let high = high.checked_add(0xfff)? & !0xfff;
        let mut variables: Vec<Variable> = file
            .symbols()
            .chain(file.dynamic_symbols())
            .filter(|s| {
                s.kind() == SymbolKind::Data && s.size() > 0 && s.address() >= low && s.address() < high
            })
            .filter_map(|s| {
                Some(Variable { name: s.name().ok()?.to_owned(), start: s.address(), bytes: s.size() })
            })
            .filter(|v| v.bytes <= high - v.start)
            .collect();
        // The largest first, so that an alias of a part does not split it.
        variables.sort_by(|a, b| (a.start, b.bytes, &a.name).cmp(&(b.start, a.bytes, &b.name)));
        variables.dedup_by_key(|v| v.start);
        Some(Elf { segments, low, high, variables })
    }

    /// The difference between addresses in the mapping `m` and in the file.
    fn bias(&self, m: &Mmap) -> Option<u64> {
        let holds = |&&(offset, bytes, _): &&(u64, u64, u64)| {
            m.pgoff >= offset & !0xfff && m.pgoff < offset.saturating_add(bytes)
        };
        // Two segments may share a page of the file. The mapping belongs to the segment whose first page it is.
        let exact = self
            .segments
            .iter()
            .find(|s| s.0 & !0xfff == m.pgoff && (s.2 & 0xfff) == (s.0 & 0xfff) && s.1 > 0);
        let segment = exact.or_else(|| self.segments.iter().find(holds))?;
        Some(m.start.wrapping_sub(segment.2.wrapping_sub(segment.0).wrapping_add(m.pgoff)))
    }
}
