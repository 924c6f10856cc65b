// SPDX-License-Identifier: GPL-2.0-or-later
//! The encoder thread of a vCPU: tape chunks in, stream files out. Writes as it goes, so that a killed
//! QEMU leaves usable streams.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::codemap::MAP_MAGIC;
use crate::encoder::{Counts, Encoder};
use crate::options::Options;
use crate::ring::Ring;
use crate::state::{STATE, State};
use crate::tape;
use crate::vcpu::Vcpu;

/// Chunks in flight per vCPU: bounds memory, lets the two threads drift.
const CHUNKS: usize = 8;

/// What an encoder leaves behind.
pub struct Done {
    pub cpu: u32,
    pub counts: Counts,
    pub footprint: usize,
    pub pt_bytes: u64,
    /// If only snapshots are kept: how many there are.
    pub snapshots: Option<u64>,
    /// Map records dropped as no snapshot needs them.
    pub dropped_records: Option<u64>,
}

struct Files {
    pt: File,
    map: File,
    side: File,
    /// TLB misses, if wanted.
    misses: Option<File>,
    /// If only snapshots are wanted.
    ring: Option<Ring>,
    /// Snapshots written.
    snapshots: u64,
}

impl Files {
    fn create(dir: &Path, cpu: u32, keep: Option<usize>, tlb: bool) -> io::Result<Self> {
        let misses = dir.join("tlb").join(format!("cpu{cpu}.miss"));
        Ok(Files {
            pt: File::create(dir.join(format!("cpu{cpu}.pt")))?,
            map: File::create(dir.join(format!("cpu{cpu}.map")))?,
            side: File::create(dir.join(format!("cpu{cpu}.side.jsonl")))?,
            misses: tlb.then(|| File::create(misses)).transpose()?,
            ring: keep.map(Ring::new),
            snapshots: 0,
        })
    }

    fn write(&mut self, e: &mut Encoder) -> io::Result<()> {
        self.side.write_all(&e.lines)?;
        e.lines.clear();
        if let (Some(file), Some(misses)) = (&mut self.misses, &mut e.misses) {
            file.write_all(&misses.bytes)?;
            misses.bytes.clear();
        }
        let Some(ring) = &mut self.ring else {
            self.map.write_all(&e.map.out)?;
            e.map.out.clear();
            self.pt.write_all(&e.writer.out)?;
            e.writer.take();
            return Ok(());
        };
        let (begin, end) = (e.writer.taken(), e.writer.offset());
        let mut done = 0;
        let mut map: &[u8] = &e.map.out;
        if begin == 0
            && let Some(records) = map.strip_prefix(MAP_MAGIC.as_slice())
        {
            self.map.write_all(MAP_MAGIC)?;
            map = records;
        }
        for cut in e.cuts.drain(..) {
            let to = (cut - begin) as usize;
            ring.push(&e.writer.out[done..to], std::mem::take(&mut map), end);
            let snapshot = ring.snapshot();
            self.map.write_all(&snapshot.map)?;
            self.pt.write_all(&snapshot.pt)?;
            self.snapshots += 1;
            done = to;
        }
        ring.push(&e.writer.out[done..], map, end);
        e.map.out.clear();
        e.writer.take();
        Ok(())
    }
}

/// Starts a vCPU's encoder thread and returns the vCPU's half.
pub fn start(state: &State, cpu: u32) -> io::Result<(Vcpu, JoinHandle<Done>)> {
    let (full, chunks) = sync_channel(CHUNKS);
    let (recycle, empty) = channel();
    let keep = state.options.snapshot.as_ref().map(|s| s.keep);
    let files = Files::create(&state.options.out, cpu, keep, !state.options.tlb.is_empty())?;
    let options = state.options.clone();
    let thread = std::thread::Builder::new()
        .name(format!("kprism/{cpu}"))
        .spawn(move || run(cpu, &options, files, &chunks, &recycle))?;
    let full: SyncSender<Vec<u64>> = full;
    Ok((Vcpu::new(cpu, full, empty, &state.options.tlb), thread))
}

fn run(
    cpu: u32,
    options: &Options,
    mut files: Files,
    chunks: &Receiver<Vec<u64>>,
    recycle: &Sender<Vec<u64>>,
) -> Done {
    block_signals();
    let mut encoder = Encoder::new(cpu, options);
    let mut failed = false;
    let mut write = |encoder: &mut Encoder, files: &mut Files| {
        if failed {
            encoder.discard();
        } else if let Err(e) = files.write(encoder) {
            failed = true;
            if let Some(state) = STATE.get() {
                state.stop(format!("writing the streams of vCPU {cpu}: {e}"));
            }
        }
    };
    // Where vCPUs share a thread, each is told of a snapshot at its own time; else the others are told here.
    let others = STATE.get().filter(|s| s.turns.is_none()).and_then(|s| s.trigger.as_ref());
    let mut seen = 0;
    for words in chunks {
        tape::read(&words, |entry| encoder.entry(entry));
        if let Some(trigger) = others
            && trigger.met.load(Ordering::Acquire) > seen
        {
            seen = trigger.met.load(Ordering::Acquire);
            // Its own conditions come in their place among the blocks.
            if trigger.by.load(Ordering::Relaxed) != u64::from(cpu) {
                encoder.cut();
            }
        }
        // The vCPU may be gone already; then nobody wants the chunk back.
        let _ = recycle.send(words);
        write(&mut encoder, &mut files);
    }
    encoder.finish();
    write(&mut encoder, &mut files);
    Done {
        cpu,
        counts: encoder.counts,
        footprint: encoder.map.peak()
            + CHUNKS * tape::CHUNK * 8
            + files.ring.as_ref().map_or(0, Ring::footprint),
        pt_bytes: encoder.writer.offset(),
        snapshots: files.ring.is_some().then_some(files.snapshots),
        dropped_records: files.ring.as_ref().map(Ring::dropped),
    }
}

/// QEMU steers its threads by signals; none of them is meant for this one.
fn block_signals() {
    // SAFETY: fills a local set and applies it to the calling thread only.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}
