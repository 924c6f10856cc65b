// SPDX-License-Identifier: GPL-2.0-or-later
//! One thread's TLBs.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use kprism_tlb::bank::told;
use kprism_tlb::stream::{Event, Miss, Writer};
use kprism_tlb::{Bank, Geometry, Sieve};
use serde_json::{Value, json};

use crate::block::Entry;
use crate::sift::{Counted, Sifted, sift};

/// Bytes after which misses are written.
const CHUNK: usize = 1 << 20;

/// What is noted before the models see it: little enough for the first cache, enough for the program's own accesses to
/// memory to overlap.
pub const BATCH: usize = 512;

/// See the module. First what callbacks touch.
#[repr(C)]
pub struct Thread {
    /// Where the next entry goes; there is no room for the thread's first.
    next: usize,
    /// The first one stays empty: an entry always follows another.
    entries: [Entry; BATCH + 1],
    counted: Counted,
    sieve: Sieve,
    sifted: Box<Sifted>,
    bank: Bank,
    /// The system call under way: number and arguments.
    pub call: [u64; 7],
    /// Nothing, where misses are counted only.
    stream: Option<(Writer, File)>,
    begun: bool,
    #[cfg(target_arch = "x86_64")]
    newer: bool,
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
        Ok(Thread {
            next: BATCH + 1,
            entries: [Entry::default(); BATCH + 1],
            counted: Counted::default(),
            sieve: Sieve::new(geometries, stream.is_some()),
            sifted: Box::default(),
            bank: Bank::counting(geometries),
            call: [0; 7],
            stream,
            begun: false,
            #[cfg(target_arch = "x86_64")]
            newer: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt"),
            process,
            cpu,
        })
    }

    /// The time: instructions so far.
    pub fn now(&mut self) -> u64 {
        self.look_up();
        self.counted.instructions
    }

    /// Something happened.
    #[inline(always)]
    pub fn note(&mut self, entry: Entry) {
        match self.entries.get_mut(self.next) {
            Some(to) => {
                *to = entry;
                self.next += 1;
            }
            None => self.full(entry),
        }
    }

    /// A block begins.
    #[inline(always)]
    pub fn block(&mut self, entry: Entry) {
        if !self.entries[self.next - 1].join(entry) {
            self.note(entry);
        }
    }

    /// There is no room for an entry.
    #[cold]
    #[inline(never)]
    extern "C" fn full(&mut self, entry: Entry) {
        if self.begun {
            self.look_up();
        } else {
            // QEMU tells of a thread on the one that makes it; here it is the thread itself.
            self.begun = true;
            // SAFETY: asks for this thread's number.
            let pid = unsafe { libc::gettid() } as u32;
            if let Some((writer, _)) = &mut self.stream {
                writer.event(&Event::Task { pid, tgid: self.process });
            }
        }
        self.entries[1] = entry;
        self.next = 2;
    }

    /// Runs the models over what was noted.
    fn look_up(&mut self) {
        if !self.begun {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        if self.newer {
            // SAFETY: this processor has what is asked for.
            return unsafe { self.look_up_newer() };
        }
        self.look_up_any();
    }

    /// The same, compiled for processors of the last ten years.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
    fn look_up_newer(&mut self) {
        self.look_up_any();
    }

    #[inline(always)]
    fn look_up_any(&mut self) {
        let entries = &self.entries[1..std::mem::replace(&mut self.next, 1)];
        let (sieve, counted, sifted) = (&mut self.sieve, &mut self.counted, &mut *self.sifted);
        let count = match (self.stream.is_some(), sieve.width(), sieve.is_uniform()) {
            (false, 1, true) => sift::<1, true, false>(entries, sieve, counted, sifted),
            (true, 1 | 2, true) => sift::<2, true, true>(entries, sieve, counted, sifted),
            (true, 3, true) => sift::<3, true, true>(entries, sieve, counted, sifted),
            _ => sift::<{ kprism_tlb::sieve::WIDEST }, false, true>(entries, sieve, counted, sifted),
        };
        let Sifted { vas, kinds, marks, places } = sifted;
        self.bank.look_up_many(&vas[..count], &kinds[..count], &mut marks[..count]);
        let Some((writer, _)) = &mut self.stream else { return };
        writer.many(|to| {
            for i in 0..count {
                let Some(missed) = told(marks[i]) else { continue };
                let (va, access, size) = (vas[i], kinds[i], missed.size);
                if missed.touched {
                    to.touch(va, access, size);
                    continue;
                }
                let (first, last) = (missed.first, missed.last);
                to.miss(&Miss { ns: places[i].ns, va, ip: places[i].ip, access, size, first, last });
            }
        });
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
            "cpu": self.cpu, "instructions": self.counted.instructions, "references": by_kind(self.counted.references),
            "looked_up": by_kind(self.bank.looked_up), "models": models,
        })
    }
}
