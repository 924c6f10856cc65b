// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs programs in this machine's kernel: loaded as raw tracepoint programs and run by BPF_PROG_TEST_RUN, without
//! being attached. The state is a memory-mapped array.
#![allow(dead_code)]

use std::io::Error;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

use kprism_expr::emit::{self, Map, Program, Reloc};

use crate::support::{BASE, SIZE, VARIABLES, World};

const MAP_CREATE: libc::c_long = 0;
const PROG_LOAD: libc::c_long = 5;
const PROG_TEST_RUN: libc::c_long = 10;
const ARRAY: u32 = 2;
const PERCPU_ARRAY: u32 = 6;
const HASH: u32 = 1;
const RINGBUF: u32 = 27;
const MMAPABLE: u32 = 1 << 10;
const RAW_TRACEPOINT: u32 = 17;
/// BPF_PROG_TYPE_KPROBE: programs for perf events and probes.
const KPROBE: u32 = 2;
const LOG: usize = 1 << 20;

fn bpf(command: libc::c_long, attr: &mut [u64]) -> Result<i32, Error> {
    // SAFETY: the attributes are as long as said, and the pointers in them outlive the call.
    let r = unsafe { libc::syscall(libc::SYS_bpf, command, attr.as_mut_ptr(), attr.len() * 8) };
    if r < 0 { Err(Error::last_os_error()) } else { Ok(r as i32) }
}

fn pair(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn map(kind: u32, key: u32, value: u32, entries: u32, flags: u32) -> Result<OwnedFd, Error> {
    let fd =
        bpf(MAP_CREATE, &mut [pair(kind, key), pair(value, entries), u64::from(flags), 0, 0, 0, 0, 0, 0])?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Size of the state in bytes, for one program or for a pack.
const STATE: usize = 1 << 16;

/// The kernel's BPF, with maps and memory for programs.
pub struct Kernel {
    state: OwnedFd,
    scratch: OwnedFd,
    ring: OwnedFd,
    entries: OwnedFd,
    words: *mut u64,
    memory: *mut u8,
}

impl Kernel {
    /// Creates the maps. An error if BPF programs may not be loaded.
    pub fn new() -> Result<Self, Error> {
        let state = map(ARRAY, 4, STATE as u32, 1, MMAPABLE)?;
        let scratch = map(PERCPU_ARRAY, 4, emit::SCRATCH as u32, 1, 0)?;
        let ring = map(RINGBUF, 0, 0, 1 << 16, 0)?;
        let entries = map(HASH, 16, 16, 64, 0)?;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a map of at least that size.
        let words =
            unsafe { libc::mmap(std::ptr::null_mut(), STATE, both, libc::MAP_SHARED, state.as_raw_fd(), 0) };
        let fixed = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: NOREPLACE: nothing is overwritten.
        let memory = unsafe { libc::mmap(BASE as *mut libc::c_void, SIZE, both, fixed, -1, 0) };
        if words == libc::MAP_FAILED || memory == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Self { state, scratch, ring, entries, words: words.cast(), memory: memory.cast() })
    }

    /// Loads a program. The error is the verifier's log.
    pub fn load(&self, program: &Program, kprobe: bool) -> Result<OwnedFd, String> {
        let mut insns = program.insns.clone();
        for (at, reloc) in &program.relocs {
            let (Reloc::Map(map) | Reloc::MapValue(map, _)) = reloc else { continue };
            insns[*at].imm = match map {
                Map::State => &self.state,
                Map::Scratch => &self.scratch,
                Map::Ring => &self.ring,
                Map::Entries => &self.entries,
            }
            .as_raw_fd();
        }
        let code: Vec<u8> = insns.iter().flat_map(|i| i.bytes()).collect();
        let loaded = Self::load_bytes(&code, if kprobe { KPROBE } else { RAW_TRACEPOINT });
        loaded.map_err(|why| format!("{why}\n{}", program.listing()))
    }

    /// Loads instructions that reference no map but the state.
    pub fn load_words(&self, words: &[u64]) -> Result<OwnedFd, String> {
        const OF_STATE: u64 = 0x2018;
        let mut second = false;
        let placed = words.iter().map(|word| {
            let named = !std::mem::replace(&mut second, *word & 0xff == 0x18) && *word & 0xf0ff == OF_STATE;
            if named { *word & 0xffff_ffff | (self.state.as_raw_fd() as u64) << 32 } else { *word }
        });
        let code: Vec<u8> = placed.flat_map(u64::to_le_bytes).collect();
        Self::load_bytes(&code, RAW_TRACEPOINT)
    }

    fn load_bytes(code: &[u8], kind: u32) -> Result<OwnedFd, String> {
        let licence = c"GPL";
        let mut attr = [0u64; 18];
        attr[0] = pair(kind, (code.len() / 8) as u32);
        attr[1] = code.as_ptr() as u64;
        attr[2] = licence.as_ptr() as u64;
        if let Ok(fd) = bpf(PROG_LOAD, &mut attr) {
            // SAFETY: the kernel has just made it for us.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        let mut log = vec![0u8; LOG];
        attr[3] = pair(1, LOG as u32);
        attr[4] = log.as_mut_ptr() as u64;
        let error = bpf(PROG_LOAD, &mut attr).err();
        let end = log.iter().position(|b| *b == 0).unwrap_or(0);
        let log = String::from_utf8_lossy(&log[end.saturating_sub(1500)..end]).into_owned();
        Err(format!("{error:?}\n{log}"))
    }

    /// Runs `count` programs that were joined into one, with `words` words of state each, on the world's arguments.
    /// Returns their states.
    pub fn run(&self, program: &OwnedFd, world: &World, count: usize, words: usize) -> &[u64] {
        assert!(count * words * 8 <= STATE);
        // SAFETY: both mappings are ours alone and as large as the slices; nobody else has a slice of them while a
        // program runs.
        let (state, memory) = unsafe {
            (
                std::slice::from_raw_parts_mut(self.words, count * words),
                std::slice::from_raw_parts_mut(self.memory, SIZE),
            )
        };
        state.fill(0);
        for state in state.chunks_mut(words) {
            state[emit::VARS as usize / 8..][..VARIABLES].copy_from_slice(&world.vars);
        }
        memory.copy_from_slice(&world.memory);
        let mut attr = [0u64; 10];
        attr[0] = pair(program.as_raw_fd() as u32, 0);
        attr[5] = pair(96, 0);
        attr[6] = world.args.as_ptr() as u64;
        bpf(PROG_TEST_RUN, &mut attr).expect("a loaded program runs");
        state
    }
}
