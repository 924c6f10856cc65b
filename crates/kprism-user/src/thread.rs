// SPDX-License-Identifier: GPL-2.0-or-later
//! One thread's TLBs.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use kprism_tlb::stream::{Event, Miss, Writer};
use kprism_tlb::{Access, Bank, Geometry, Missed, Page};
use serde_json::{Value, json};

/// Bytes after which misses are written.
const CHUNK: usize = 1 << 20;

/// See the module.
pub struct Thread {
    bank: Bank,
    /// Instructions of the blocks that began.
    instructions: u64,
    /// By kind: of data each access that QEMU reports, of code each block.
    references: [u64; 3],
    /// The system call under way: number and arguments.
    pub call: [u64; 7],
    writer: Writer,
    file: File,
    process: u32,
    cpu: u32,
}

impl Thread {
    /// Thread number `cpu`, whose id and process are these; its misses go to a file in `folder`.
    pub fn new(
        cpu: u32,
        (tid, process): (u32, u32),
        geometries: &[Geometry],
        folder: &Path,
    ) -> io::Result<Self> {
        let mut writer = Writer::new(geometries);
        writer.event(&Event::Task { pid: tid, tgid: process });
        Ok(Thread {
            bank: Bank::new(geometries),
            instructions: 0,
            references: [0; 3],
            call: [0; 7],
            writer,
            file: File::create(folder.join(format!("cpu{cpu}.miss")))?,
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
        self.access(va, Access::Fetch, va);
        if next {
            self.access((va | 0xfff) + 1, Access::Fetch, va);
        }
    }

    /// The instruction at `ip` accesses data.
    #[inline(always)]
    pub fn memory(&mut self, va: u64, bytes: u64, access: Access, ip: u64) {
        self.references[access as usize] += 1;
        self.access(va, access, ip);
        if (va & 0xfff) + bytes > 4096 {
            self.access((va | 0xfff).wrapping_add(1), access, ip);
        }
    }

    #[inline(always)]
    fn access(&mut self, va: u64, access: Access, ip: u64) {
        let missed = self.bank.access(va, access, || Page::K4);
        if missed.is_told() {
            self.tell(va, access, ip, missed);
        }
    }

    fn tell(&mut self, va: u64, access: Access, ip: u64, missed: Missed) {
        let event = match missed.touched {
            true => Event::Touch { va, access, size: missed.size },
            false => Event::Miss(Miss {
                ns: self.instructions,
                va,
                ip,
                access,
                size: missed.size,
                first: missed.first,
                last: missed.last,
            }),
        };
        self.writer.event(&event);
        if self.writer.bytes.len() >= CHUNK {
            self.write();
        }
    }

    /// Writes what there is; nothing of a forked child, which has the same file.
    pub fn write(&mut self) {
        if std::process::id() == self.process
            && let Err(e) = self.file.write_all(&self.writer.bytes)
        {
            eprintln!("kprism-user: writing misses: {e}");
        }
        self.writer.bytes.clear();
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
