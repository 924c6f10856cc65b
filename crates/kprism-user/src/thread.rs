// SPDX-License-Identifier: GPL-2.0-or-later
//! One thread's TLBs.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use kprism_tlb::stream::{Event, Miss, Writer};
use kprism_tlb::{Access, Bank, Geometry, Missed};
use serde_json::{Value, json};

use crate::abi::{self, MemInfo};
use crate::block;

/// Bytes after which misses are written.
const CHUNK: usize = 1 << 20;

/// Accesses that the models take at once: few enough for the first cache, enough for the program's own accesses to
/// memory to overlap.
const BATCH: usize = 512;
/// No access moves more bytes.
const WIDEST: u64 = 64;
const NOWHERE: u64 = u64::MAX;

/// The instruction and the time of an access.
#[derive(Clone, Copy, Default)]
struct Place {
    ip: u64,
    ns: u64,
}

/// See the module.
pub struct Thread {
    /// Page of the last access to data, twice, and 1 for a store if these are told apart; page of the last fetch.
    data: u64,
    code: u64,
    /// 1 if loads and stores are told apart.
    split: u64,
    store_bit: MemInfo,
    /// Data and code are looked up in one array.
    shared: bool,
    /// Instructions of the blocks that began.
    instructions: u64,
    /// By kind: of data each access that QEMU reports, of code each block.
    references: [u64; 3],
    noted: usize,
    /// Accesses to another page than the last one of their kind.
    vas: [u64; BATCH],
    kinds: [Access; BATCH],
    places: [Place; BATCH],
    told: Vec<(u32, Missed)>,
    bank: Bank,
    /// The system call under way: number and arguments.
    pub call: [u64; 7],
    /// Nothing, where misses are counted only.
    stream: Option<(Writer, File)>,
    begun: bool,
    process: u32,
    cpu: u32,
}

impl Thread {
    /// Thread number `cpu` of a process; its misses go to a file in `folder`, if there is one.
    pub fn new(cpu: u32, process: u32, geometries: &[Geometry], folder: Option<&Path>) -> io::Result<Self> {
        let stream = match folder {
            Some(folder) => {
                Some((Writer::new(geometries), File::create(folder.join(format!("cpu{cpu}.miss")))?))
            }
            None => None,
        };
        let bank = if stream.is_some() { Bank::new(geometries) } else { Bank::counting(geometries) };
        Ok(Thread {
            data: NOWHERE,
            code: NOWHERE,
            split: u64::from(bank.is_split()),
            store_bit: abi::store_bit(),
            shared: bank.is_shared(),
            instructions: 0,
            references: [0; 3],
            noted: 0,
            vas: [0; BATCH],
            kinds: [Access::Load; BATCH],
            places: [Place::default(); BATCH],
            told: Vec::new(),
            bank,
            call: [0; 7],
            stream,
            begun: false,
            process,
            cpu,
        })
    }

    /// The time: instructions so far.
    pub fn now(&self) -> u64 {
        self.instructions
    }

    /// A block of `n` instructions starts at `va`, and ends on the next page or not.
    #[inline(always)]
    pub fn block(&mut self, va: u64, n: u64, next: bool) {
        self.instructions += n;
        self.references[Access::Fetch as usize] += 1;
        if va >> 12 != self.code || next {
            self.fetch(va, next);
        }
    }

    #[cold]
    #[inline(never)]
    fn fetch(&mut self, va: u64, next: bool) {
        // The first thing that a thread does. QEMU tells of a thread on the one that makes it.
        if self.code == NOWHERE && !std::mem::replace(&mut self.begun, true) {
            // SAFETY: asks for this thread's number.
            let pid = unsafe { libc::gettid() } as u32;
            if let Some((writer, _)) = &mut self.stream {
                writer.event(&Event::Task { pid, tgid: self.process });
            }
        }
        for at in [va, (va | 0xfff) + 1].into_iter().take(1 + usize::from(next)) {
            if at >> 12 != self.code {
                self.code = at >> 12;
                if self.shared {
                    self.data = NOWHERE;
                }
                self.note(at, Access::Fetch, va);
            }
        }
    }

    /// An access to data; `word` is the block's (see [`crate::block`]).
    #[inline(always)]
    pub fn memory(&mut self, va: u64, info: MemInfo, word: u64) {
        let store = info & self.store_bit != 0;
        let (ip, block) = block::of_access(word, store);
        if let Some((start, n)) = block {
            self.block(start, n, false);
        }
        let access = if store { Access::Store } else { Access::Load };
        self.references[access as usize] += 1;
        if va & 0xfff > 4096 - WIDEST {
            return self.at_the_edge(va, info, access, ip);
        }
        self.data(va, access, ip);
    }

    #[inline(always)]
    fn data(&mut self, va: u64, access: Access, ip: u64) {
        let this = va >> 12 << 1 | self.split & u64::from(access == Access::Store);
        if this != self.data {
            self.data = this;
            if self.shared {
                self.code = NOWHERE;
            }
            self.note(va, access, ip);
        }
    }

    #[inline(never)]
    fn at_the_edge(&mut self, va: u64, info: MemInfo, access: Access, ip: u64) {
        self.data(va, access, ip);
        // SAFETY: a plain function of QEMU's on the word that it passed.
        let bytes = 1 << unsafe { abi::qemu_plugin_mem_size_shift(info) };
        if (va & 0xfff) + bytes > 4096 {
            self.data((va | 0xfff).wrapping_add(1), access, ip);
        }
    }

    #[inline(always)]
    fn note(&mut self, va: u64, access: Access, ip: u64) {
        let at = self.noted % BATCH;
        self.vas[at] = va;
        self.kinds[at] = access;
        self.places[at] = Place { ip, ns: self.instructions };
        self.noted += 1;
        if self.noted == BATCH {
            self.look_up();
        }
    }

    /// Runs the models over what was noted.
    #[inline(never)]
    fn look_up(&mut self) {
        let noted = std::mem::take(&mut self.noted);
        self.bank.look_up_many(&self.vas[..noted], &self.kinds[..noted], &mut self.told);
        let Some((writer, _)) = &mut self.stream else { return };
        for &(at, missed) in &self.told {
            let at = at as usize;
            let (va, access, Place { ip, ns }) = (self.vas[at], self.kinds[at], self.places[at]);
            let size = missed.size;
            writer.event(&match missed.touched {
                true => Event::Touch { va, access, size },
                false => {
                    Event::Miss(Miss { ns, va, ip, access, size, first: missed.first, last: missed.last })
                }
            });
        }
        if writer.bytes.len() >= CHUNK {
            self.write();
        }
    }

    /// The end: all that was noted is looked up and written.
    pub fn finish(&mut self) {
        self.look_up();
        self.write();
    }

    /// Writes what there is; nothing of a forked child, which has the same file.
    fn write(&mut self) {
        let Some((writer, file)) = &mut self.stream else { return };
        if std::process::id() == self.process
            && let Err(e) = file.write_all(&writer.bytes)
        {
            eprintln!("kprism-user: writing misses: {e}");
        }
        writer.bytes.clear();
    }

    /// What was counted, as the observer tells it.
    pub fn account(&self, geometries: &[Geometry]) -> Value {
        let by_kind = |n: [u64; 3]| json!({ "load": n[0], "store": n[1], "fetch": n[2] });
        let models: Vec<Value> = geometries
            .iter()
            .zip(self.bank.counts())
            .map(|(g, c)| {
                json!({
                    "name": g.name, "first_level_misses": by_kind(c.first), "misses": by_kind(c.last),
                    "walk_reads": c.walk_reads,
                })
            })
            .collect();
        json!({
            "cpu": self.cpu, "instructions": self.instructions, "references": by_kind(self.references),
            "looked_up": by_kind(self.bank.looked_up), "models": models,
        })
    }
}
