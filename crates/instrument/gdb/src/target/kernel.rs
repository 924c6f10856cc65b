// SPDX-License-Identifier: MIT OR Apache-2.0
//! The running kernel. Memory is read from `/proc/kcore`, or, where that is not readable, by a BPF program that is run
//! for each read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;

use kprism_bpf::link::{Link, When};
use kprism_bpf::map::Map;
use kprism_bpf::mapping::Mapping;
use kprism_bpf::prog::{ProgKind, Program};
use kprism_ebpf::asm::Asm;
use kprism_ebpf::insn::{Alu, Cond, Helper, Reg, Width};

use super::markers::{self, Marker};
use crate::Error;

/// Address at which an x86-64 kernel is linked (CONFIG_PHYSICAL_START above __START_KERNEL_map).
const LINKED: u64 = 0xffff_ffff_8100_0000;
/// Maximum of bytes that one run of the BPF program reads.
const PIECE: usize = 512;

/// The running kernel as a target.
#[derive(Debug)]
pub struct Kernel {
    memory: Memory,
    text: u64,
    /// Result of the last lookup.
    markers: Vec<Marker>,
}

#[derive(Debug)]
enum Memory {
    /// `/proc/kcore` and its segments: address, size, offset.
    Core(File, Vec<(u64, u64, u64)>),
    Bpf(Reader),
}

impl Kernel {
    /// Opens the running kernel.
    pub fn running() -> Result<Self, Error> {
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
        Ok(Self { memory, text, markers: Vec::new() })
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
        self.markers = markers::all(&symbols()?);
        Ok(&self.markers)
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
