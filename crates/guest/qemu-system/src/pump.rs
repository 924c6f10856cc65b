// SPDX-License-Identifier: GPL-2.0-or-later
//! The encoder thread of a vCPU: reads buffers of the tape and writes the stream files. It writes continuously, so a
//! killed QEMU leaves usable streams.

use std::fs::File;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use crate::codemap::MAP_MAGIC;
use crate::encoder::{Encoded, Encoder};
use crate::options::{Keep, Options};
use crate::ring::{Ring, Snapshot};
use crate::state::{STATE, State};
use crate::tape;
use crate::vcpu::Vcpu;

/// Chunks in flight per vCPU. This bounds memory, and decouples the two threads.
const BUFFERS: usize = 8;

struct Files {
    pt: File,
    map: File,
    side: File,
    /// TLB misses, if requested.
    misses: Option<File>,
    /// The kept part, if not all of the stream is kept.
    part: Option<Part>,
}

/// The part of a stream that is kept.
struct Part {
    ring: Ring,
    /// True for windows, false for snapshots.
    windows: bool,
    /// True inside a window: data is written at once.
    open: bool,
    /// Number of snapshots so far.
    snapshots: u64,
    /// Number of those that lack the begin of what triggered them here. `None` if that is not known.
    short: Option<u64>,
}

impl Part {
    fn new(keep: &Keep) -> Option<Self> {
        let (bytes, windows, open) = match keep {
            Keep::All => return None,
            Keep::Last { bytes, .. } => (*bytes, false, false),
            Keep::Windows { from, .. } => (0, true, from.is_none()),
        };
        let mut part = Part { ring: Ring::new(bytes), windows, open: false, snapshots: 0, short: Some(0) };
        if open {
            part.set_open(true);
        }
        Some(part)
    }

    /// Opens or closes a window. Outside a window nothing is kept.
    fn set_open(&mut self, open: bool) {
        self.open = open;
        self.ring.keep(if open { usize::MAX } else { 0 });
    }

    fn write(&mut self, e: &mut Encoder, pt: &mut File, map: &mut File) -> io::Result<()> {
        let (begin, end) = (e.writer.taken(), e.writer.offset());
        let mut done = 0;
        let mut records: &[u8] = &e.map.out;
        if begin == 0
            && let Some(rest) = records.strip_prefix(MAP_MAGIC.as_slice())
        {
            map.write_all(MAP_MAGIC)?;
            records = rest;
        }
        for split in e.splits.drain(..) {
            let to = (split.offset - begin) as usize;
            self.ring.push(&e.writer.out[done..to], std::mem::take(&mut records), end);
            if let Some(ns) = split.since_ns.filter(|_| !self.windows) {
                let lacks = self.ring.reaches(ns).map(|reaches| u64::from(!reaches));
                self.short = self.short.zip(lacks).map(|(short, lacks)| short + lacks);
            }
            if split.keep {
                self.ring.snapshot().write(pt, map)?;
            } else {
                self.ring.clear();
            }
            if self.windows {
                self.set_open(!split.keep);
            } else {
                self.snapshots += 1;
            }
            done = to;
        }
        self.ring.push(&e.writer.out[done..], records, end);
        if self.open {
            self.ring.snapshot().write(pt, map)?;
        }
        Ok(())
    }
}

impl Snapshot {
    fn write(&self, pt: &mut File, map: &mut File) -> io::Result<()> {
        map.write_all(&self.map)?;
        pt.write_all(&self.pt)
    }
}

impl Files {
    fn create(options: &Options, cpu: u32) -> io::Result<Self> {
        let dir = &options.out;
        let misses = dir.join("tlb").join(format!("cpu{cpu}.miss"));
        Ok(Files {
            pt: File::create(dir.join(format!("cpu{cpu}.pt")))?,
            map: File::create(dir.join(format!("cpu{cpu}.map")))?,
            side: File::create(dir.join(format!("cpu{cpu}.side.jsonl")))?,
            misses: (!options.tlb.is_empty()).then(|| File::create(misses)).transpose()?,
            part: Part::new(&options.keep),
        })
    }

    fn write(&mut self, e: &mut Encoder) -> io::Result<()> {
        self.side.write_all(&e.lines)?;
        e.lines.clear();
        if let (Some(file), Some(misses)) = (&mut self.misses, &mut e.misses) {
            file.write_all(&misses.bytes)?;
            misses.bytes.clear();
        }
        match &mut self.part {
            Some(part) => part.write(e, &mut self.pt, &mut self.map)?,
            None => {
                self.map.write_all(&e.map.out)?;
                self.pt.write_all(&e.writer.out)?;
            }
        }
        e.map.out.clear();
        e.writer.take();
        Ok(())
    }
}

/// Starts a vCPU's encoder thread and returns the vCPU's side.
pub fn start(state: &State, cpu: u32) -> io::Result<(Vcpu, JoinHandle<Encoded>)> {
    let (full, buffers) = sync_channel(BUFFERS);
    let (recycle, empty) = channel();
    let files = Files::create(&state.options, cpu)?;
    let options = state.options.clone();
    let thread = std::thread::Builder::new()
        .name(format!("kprism/{cpu}"))
        .spawn(move || run(cpu, &options, files, &buffers, &recycle))?;
    let full: SyncSender<Vec<u64>> = full;
    Ok((Vcpu::new(cpu, full, empty, &state.options.tlb), thread))
}

fn run(
    cpu: u32,
    options: &Options,
    mut files: Files,
    buffers: &Receiver<Vec<u64>>,
    recycle: &Sender<Vec<u64>>,
) -> Encoded {
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
    for words in buffers {
        tape::read(&words, |entry| encoder.entry(entry));
        // The vCPU may be gone already, and need no buffer.
        let _ = recycle.send(words);
        write(&mut encoder, &mut files);
    }
    encoder.finish();
    write(&mut encoder, &mut files);
    let part = files.part.as_ref();
    Encoded {
        cpu,
        instructions: match part {
            None => Some(encoder.counts.instructions),
            Some(part) => part.windows.then(|| encoder.kept(part.open)),
        },
        snapshots: part.filter(|p| !p.windows).map(|p| p.snapshots),
        short_snapshots: part.filter(|p| !p.windows).and_then(|p| p.short),
        dropped_records: part.map(|p| p.ring.dropped()),
        footprint: encoder.map.peak() + BUFFERS * tape::BUFFER * 8 + part.map_or(0, |p| p.ring.footprint()),
        pt_bytes: encoder.writer.offset(),
        left_out: encoder.filter.as_ref().map(|filter| filter.left_out),
        counts: encoder.counts,
    }
}

/// Blocks all signals on this thread: QEMU controls its threads by signals, and none is meant for this one.
pub fn block_signals() {
    // SAFETY: fills a local set and applies it to the calling thread only.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigfillset(&mut set);
        libc::pthread_sigmask(libc::SIG_SETMASK, &set, std::ptr::null_mut());
    }
}
