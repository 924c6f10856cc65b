// SPDX-License-Identifier: MIT OR Apache-2.0
//! The running kernel. Memory is read from `/proc/kcore`, or, where that is not readable, by a BPF program that is run
//! for each read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use kprism_bpf::link::{Link, When};
use kprism_bpf::map::Map;
use kprism_bpf::mapping::Mapping;
use kprism_bpf::prog::{ProgKind, Program};
use kprism_debuginfo::separate::by_build_id;
use kprism_debuginfo::{Image, beside};
use kprism_ebpf::asm::Asm;
use kprism_ebpf::insn::{Alu, Cond, Helper, Reg, Width};
use kprism_image::BuildId;

use super::labels::{Label, labels};
use super::markers::{self, Marker};
use super::places::{self, Code, Found, Place, Symbols};
use crate::Error;

/// Address at which an x86-64 kernel is linked (CONFIG_PHYSICAL_START above __START_KERNEL_map).
const LINKED: u64 = 0xffff_ffff_8100_0000;
/// Limit of a table of jump labels, bytes.
const MOST_LABELS: u64 = 16 << 20;
/// Limit of a module's table of jump labels, bytes.
const MOST_OF_MODULE: u64 = 64 << 10;
/// Maximum of bytes that one run of the BPF program reads.
const PIECE: usize = 512;

/// The running kernel as a target.
#[derive(Debug)]
pub struct Kernel {
    memory: Memory,
    text: u64,
    debug: DebugFiles,
    /// Offset of the key in a tracepoint's structure.
    key: u64,
    /// Result of the last lookup.
    markers: Vec<Marker>,
    /// Places of tracepoints in the kernel's own code.
    places: Vec<Place>,
    /// Those in modules, by name and address of the module's jump labels.
    modules: BTreeMap<(String, u64), Vec<Place>>,
    said: Vec<String>,
}

/// Files with debug information of the running kernel.
#[derive(Debug, Clone, Default)]
pub struct DebugFiles {
    /// The kernel's, if it is named.
    pub vmlinux: Option<PathBuf>,
    /// Modules', taken by their build ids.
    pub modules: Vec<PathBuf>,
    /// Folders with debug information by build id.
    pub folders: Vec<PathBuf>,
}

impl DebugFiles {
    /// The running kernel's file: the named one, or one by its build id.
    fn kernel_file(&self) -> Result<Option<PathBuf>, Error> {
        let id = fs::read("/sys/kernel/notes").ok().and_then(|notes| BuildId::of_notes(&notes));
        let Some(file) = &self.vmlinux else {
            return Ok(id.and_then(|id| by_build_id(&id, &self.folders)));
        };
        if !file.is_file() {
            return Err(Error::Cannot(format!("--vmlinux {}: no such file", file.display())));
        }
        let its = BuildId::of_file(file);
        if let (Some(id), Some(its)) = (&id, &its)
            && id != its
        {
            let what = format!(
                "--vmlinux {}: another kernel's: its build id is {its}, the running kernel has {id}",
                file.display()
            );
            return Err(Error::Cannot(what));
        }
        Ok(Some(file.clone()))
    }

    /// The file of a module with this build id.
    fn module_file(&self, id: Option<&BuildId>) -> Option<PathBuf> {
        let id = id?;
        let named = self.modules.iter().find(|file| BuildId::of_file(file).as_ref() == Some(id));
        named.cloned().or_else(|| by_build_id(id, &self.folders))
    }
}

#[derive(Debug)]
enum Memory {
    /// `/proc/kcore` and its segments: address, size, offset.
    Core(File, Vec<(u64, u64, u64)>),
    Bpf(Reader),
}

impl Kernel {
    /// Opens the running kernel, whose debug information and that of its modules is in these files.
    pub fn running(debug: DebugFiles) -> Result<Self, Error> {
        let symbols = symbols()?;
        let line = symbols.lines().find(|line| line.ends_with(" T _text") || line.ends_with(" t _text"));
        let text = line.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
        let Some(text) = text.filter(|text| *text != 0) else {
            let remedy = "/proc/kallsyms does not tell where the kernel is: run as root, or sysctl kernel.kptr_restrict=0";
            return Err(Error::Cannot(remedy.into()));
        };
        let core = File::open("/proc/kcore").ok().and_then(|file| {
            let segments = segments(&file)?;
            let core = Memory::Core(file, segments);
            (!core.read(text, 16).is_empty()).then_some(core)
        });
        let memory = match core {
            Some(core) => core,
            None => Memory::Bpf(Reader::new()?),
        };
        let types = kprism_bpf::kernel::Kernel::running()?;
        let key = types.btf().offset("tracepoint", "key").map_err(kprism_bpf::Error::from)?;
        let key = u64::from(key.unsigned_abs());
        let (places, modules) = (Vec::new(), BTreeMap::new());
        let mut kernel =
            Self { memory, text, debug, key, markers: Vec::new(), places, modules, said: Vec::new() };
        kernel.find_places(&Symbols::of(&symbols))?;
        Ok(kernel)
    }

    /// Address of its first instruction.
    pub fn text(&self) -> u64 {
        self.text
    }

    /// Offset of its addresses from those at which it was linked.
    pub fn slide(&self) -> u64 {
        self.text.wrapping_sub(LINKED)
    }

    /// The method of reading memory, in words.
    pub fn reads_by(&self) -> &'static str {
        match self.memory {
            Memory::Core(..) => "/proc/kcore",
            Memory::Bpf(_) => "BPF (/proc/kcore cannot be read)",
        }
    }

    /// Reads memory, as far as it is readable.
    pub fn read(&self, address: u64, length: usize) -> Vec<u8> {
        self.memory.read(address, length)
    }

    /// All static tracepoints, looked up again, as modules come and go.
    pub fn markers(&mut self) -> Result<&[Marker], Error> {
        let text = symbols()?;
        self.find_places_of_modules(&Symbols::of(&text));
        let places = self.places.iter().chain(self.modules.values().flatten());
        self.markers = markers::all(&text, places);
        Ok(&self.markers)
    }

    /// Adds the places of tracepoints in the code of the kernel.
    fn find_places(&mut self, symbols: &Symbols<'_>) -> Result<(), Error> {
        let Some(file) = self.debug.kernel_file()? else {
            self.said.push(
                "the kernel's tracepoints are markers, but not their places in the code: those need its debug \
                 information (--vmlinux FILE)"
                    .to_owned(),
            );
            return Ok(());
        };
        let cannot = |why: String| Error::Cannot(format!("{}: {why}", file.display()));
        let image = Image::map(&file).map_err(|why| Error::Cannot(why.to_string()))?;
        let text = image.symbol("_text").ok_or_else(|| cannot("no symbol _text: is it a vmlinux?".into()))?;
        let described =
            kprism_expr::dwarf::Debug::new(&image).map_err(|why| Error::Cannot(why.to_string()))?;
        let slide = self.text.wrapping_sub(text);
        let code_in_file = !image.is_debug_only();
        let sections = beside::code_sections(&file).map_err(cannot)?;
        let sections: Vec<_> =
            sections.iter().map(|s| (s.start.wrapping_add(slide), s.start, s.size)).collect();
        let labels: Vec<Label> = match symbols.between("__start___jump_table", "__stop___jump_table") {
            Some((start, size)) => labels(start, &self.read(start, size.min(MOST_LABELS) as usize)).collect(),
            None => return Err(cannot("the running kernel has no jump labels".into())),
        };
        let code = Code {
            labels: &labels,
            key: self.key,
            file: Some(&file),
            folders: &self.debug.folders,
            sections: &sections,
            read: &|at, length| self.read(at, length),
            refuses: &|at| code_in_file && described.kprobe_refusal(at.wrapping_sub(slide)).is_some(),
        };
        let found = places::find(symbols, &code, &mut HashSet::new()).map_err(Error::Cannot)?;
        self.said.push(found.said("the kernel"));
        self.places = found.places;
        Ok(())
    }

    /// Looks the places in the code of loaded modules up, of those that are new.
    fn find_places_of_modules(&mut self, symbols: &Symbols<'_>) {
        let mut loaded = BTreeMap::new();
        let mut taken: HashSet<u64> = self.places.iter().map(|place| place.address).collect();
        for module in fs::read_dir("/sys/module").into_iter().flatten().flatten() {
            let name = module.file_name().to_string_lossy().into_owned();
            let sections = sections(&module.path());
            let Some(table) = sections.get("__jump_table").copied() else { continue };
            let key = (name.clone(), table);
            if let Some(found) = self.modules.remove(&key) {
                taken.extend(found.iter().map(|place| place.address));
                loaded.insert(key, found);
                continue;
            }
            let found = match self.places_of_module(symbols, &module.path(), &sections, &mut taken) {
                Ok(found) if found == Found::default() => Vec::new(),
                Ok(found) => {
                    self.said.push(found.said(&format!("module {name}")));
                    found.places
                }
                Err(why) => {
                    self.said.push(format!("module {name}: {why}"));
                    Vec::new()
                }
            };
            loaded.insert(key, found);
        }
        self.modules = loaded;
    }

    fn places_of_module(
        &self,
        symbols: &Symbols<'_>,
        folder: &Path,
        loaded: &HashMap<String, u64>,
        taken: &mut HashSet<u64>,
    ) -> Result<Found, String> {
        let id = fs::read(folder.join("notes/.note.gnu.build-id")).ok();
        let file = self.debug.module_file(id.and_then(|notes| BuildId::of_notes(&notes)).as_ref());
        let sections = file.as_deref().map(beside::code_sections).transpose()?.unwrap_or_default();
        let sections: Vec<_> =
            sections.iter().filter_map(|s| Some((*loaded.get(&s.name)?, s.start, s.size))).collect();
        let start = loaded.get("__jump_table").copied().unwrap_or_default();
        // It ends at the next section: what is no label there has no tracepoint's key.
        let next = loaded.values().filter(|other| **other > start).min();
        let size = next.map_or(MOST_OF_MODULE, |next| (next - start).min(MOST_OF_MODULE));
        let labels: Vec<Label> = labels(start, &self.read(start, size as usize)).collect();
        let code = Code {
            labels: &labels,
            key: self.key,
            file: file.as_deref(),
            folders: &self.debug.folders,
            sections: &sections,
            read: &|at, length| self.read(at, length),
            // Nothing tells it of a module before it is tried.
            refuses: &|_| false,
        };
        places::find(symbols, &code, taken)
    }

    /// News about places of tracepoints since the last call.
    pub fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    /// The static tracepoint at this address. Looking them all up takes long; GDB has usually done it before.
    pub fn marker_at(&mut self, address: u64) -> Result<Marker, Error> {
        let find = |all: &[Marker]| all.iter().find(|m| m.address == address).cloned();
        let missing = || Error::Cannot(format!("{address:#x} is no static tracepoint"));
        match find(&self.markers) {
            Some(marker) => Ok(marker),
            None => find(self.markers()?).ok_or_else(missing),
        }
    }

    /// Attaches a program at an address.
    pub fn attach(&self, program: &Program, address: u64) -> Result<Link, Error> {
        Ok(Link::kprobe_at(program, address, When::Entry, 0)?)
    }
}

/// The addresses of a module's sections.
fn sections(module: &Path) -> HashMap<String, u64> {
    let number = |text: String| u64::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok();
    let entries = fs::read_dir(module.join("sections")).into_iter().flatten().flatten();
    let all = entries.filter_map(|entry| {
        let address = number(fs::read_to_string(entry.path()).ok()?).filter(|address| *address != 0)?;
        Some((entry.file_name().to_string_lossy().into_owned(), address))
    });
    all.collect()
}

fn symbols() -> Result<String, Error> {
    let path = "/proc/kallsyms";
    fs::read_to_string(path).map_err(Error::system(path))
}

impl Memory {
    fn read(&self, address: u64, length: usize) -> Vec<u8> {
        let mut out = vec![0; length];
        let mut done = 0;
        while done < length {
            let at = address.wrapping_add(done as u64);
            let taken = match self {
                Memory::Core(file, segments) => {
                    let there = segments.iter().find(|(from, size, _)| at.wrapping_sub(*from) < *size);
                    there.map_or(0, |(from, size, offset)| {
                        let most = (length - done).min((size - (at - from)).min(1 << 20) as usize);
                        file.read_at(&mut out[done..done + most], offset + (at - from)).unwrap_or(0)
                    })
                }
                Memory::Bpf(reader) => {
                    // One read stays within a page: the next may not be mapped.
                    let most = (length - done).min(PIECE).min(0x1000 - (at & 0xfff) as usize);
                    if reader.read(at, &mut out[done..done + most]) { most } else { 0 }
                }
            };
            if taken == 0 {
                break;
            }
            done += taken;
        }
        out.truncate(done);
        out
    }
}

/// The segments of `/proc/kcore`, an ELF core file: address, size, offset.
fn segments(file: &File) -> Option<Vec<(u64, u64, u64)>> {
    let mut header = [0; 64];
    file.read_exact_at(&mut header, 0).ok()?;
    let word = |bytes: &[u8], at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let half = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let (offset, size, count) = (word(&header, 32)?, half(54), half(56));
    if header[..4] != *b"\x7fELF" || size < 56 {
        return None;
    }
    let mut table = vec![0; size * count];
    file.read_exact_at(&mut table, offset).ok()?;
    const LOAD: u32 = 1;
    let loads = table.chunks_exact(size).filter(|h| h[..4] == LOAD.to_le_bytes());
    loads.map(|h| Some((word(h, 16)?, word(h, 40)?, word(h, 8)?))).collect()
}

/// A BPF program that copies kernel memory into a map.
#[derive(Debug)]
struct Reader {
    program: Program,
    memory: Mapping,
    _map: Map,
}

impl Reader {
    fn new() -> Result<Self, Error> {
        let map = Map::memory("kg_read", PIECE as u32)?;
        let mut asm = Asm::new();
        let fine = asm.label();
        use Reg::{R0, R1, R2, R3, R6};
        // The program's arguments: address and length.
        asm.load(Width::B8, R3, R1, 0).load(Width::B8, R6, R1, 8).alu_imm(Alu::And, R6, 0x3ff);
        asm.branch_imm(Cond::Le, R6, PIECE as i32, fine).mov_imm(R6, PIECE as i32).bind(fine);
        asm.map_value(R1, 0, 0).mov(R2, R6).call(Helper::ProbeReadKernel);
        asm.alu_imm(Alu::Rsh, R0, 63).put(kprism_ebpf::insn::exit());
        let program = Program::load(
            "kg_read",
            ProgKind::RawTracepoint,
            &asm.finish().map_err(kprism_bpf::Error::from)?,
            &[&map],
        )?;
        Ok(Self { program, memory: map.mapped()?, _map: map })
    }

    fn read(&self, address: u64, into: &mut [u8]) -> bool {
        let mut context = [address, into.len() as u64];
        let read = self.program.test_run(&mut context, 0).is_ok_and(|tested| tested.value == 0);
        if read {
            self.memory.copy(0, into);
        }
        read
    }
}
