// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins trace data: perf writes each CPU's (or thread's) AUX buffer piece by piece.
//!
//! Missing data (the buffer was full, a piece is not in the file) is replaced by an OVF packet, by which a processor
//! reports data that it lost. The data after it counts from its first PSB.
//!
//! - **Full trace.** Offsets grow with the stream, so they tell the order, and where a piece is missing. A full buffer is
//!   told by an AUX record; perf may have read the data before and after it as one piece.
//! - **Snapshots.** Offsets are places in a ring and say nothing: pieces are in the order of the file, and each may begin
//!   with data that the one before ends with. Such data is found by its contents.

use std::collections::BTreeMap;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kprism_image::Bytes;
use kprism_pt::find_psb;

use super::tasks::{Gap, History};
use kprism_perfdata::Auxtrace;
use kprism_perfdata::record::aux;

/// A CPU's or a thread's packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trace {
    pub cpu: Option<u32>,
    /// Thread id, if threads were traced individually.
    pub tid: Option<u32>,
    pub pt: Bytes,
    /// Number of places with missing data.
    pub losses: usize,
}

/// A piece of a buffer: its record, and the data.
pub(crate) type Piece<'a> = (Auxtrace, &'a [u8]);

const NONE: u32 = u32::MAX;

/// perf pads pieces with zeros to a multiple of this.
const ALIGNED: u64 = 8;

/// Least length of data from a PSB on that cannot be mistaken for other data: the PSB, and a TSC behind it.
const TELLING: usize = 24;

/// An overflow packet (SDM volume 3, "OVF packet").
const OVF: &[u8] = &[0x02, 0xf3];

/// Streams of this length or more are joined in a file, bytes.
const LARGE: usize = 16 << 20;

/// Joins the pieces, CPUs first, then threads, in order of their numbers. `ring` is true if the settings of the recording
/// ask for snapshots. Large streams are joined in temporary files whose paths begin with `spool`, if it is given.
///
/// # Errors
/// A temporary file cannot be written, with its path.
pub(crate) fn assemble(
    pieces: Vec<Piece<'_>>,
    history: &History<'_>,
    ring: bool,
    spool: Option<&Path>,
) -> Result<Vec<Trace>, (PathBuf, io::Error)> {
    let mut buffers: BTreeMap<(u32, u32), Vec<Piece<'_>>> = BTreeMap::new();
    for (head, bytes) in pieces {
        let tid = if head.cpu == NONE { head.tid } else { NONE };
        buffers.entry((head.cpu, tid)).or_default().push((head, bytes));
    }
    let some = |number: u32| (number != NONE).then_some(number);
    let join = |((cpu, tid), pieces)| {
        let own = |gap: &&Gap| if cpu == NONE { gap.tid == some(tid) } else { gap.cpu == some(cpu) };
        let own: Vec<&Gap> = history.gaps.iter().filter(own).collect();
        let mut joined = Joined::default();
        if ring || own.iter().any(|gap| gap.flags & aux::OVERWRITE != 0) {
            joined.add_snapshots(pieces);
        } else {
            let full = own.iter().filter(|gap| gap.flags & aux::TRUNCATED != 0).map(|gap| gap.offset);
            let mut full: Vec<u64> = full.collect();
            full.sort_unstable();
            joined.add_all(pieces, &full);
        }
        let losses = joined.losses;
        Ok(Trace { cpu: some(cpu), tid: some(tid), pt: joined.finish(spool)?, losses })
    };
    buffers.into_iter().map(join).collect()
}

/// A stream as a list of parts of the file.
#[derive(Debug, Default)]
struct Joined<'a> {
    parts: Vec<&'a [u8]>,
    len: usize,
    losses: usize,
}

impl<'a> Joined<'a> {
    fn push(&mut self, part: &'a [u8]) {
        if !part.is_empty() {
            self.parts.push(part);
            self.len += part.len();
        }
    }

    /// Drops the last `count` bytes.
    fn drop_last(&mut self, mut count: usize) {
        self.len -= count;
        while let Some(last) = self.parts.last_mut().filter(|_| count > 0) {
            if let Some(kept) = last.len().checked_sub(count).filter(|&kept| kept > 0) {
                *last = &last[..kept];
                return;
            }
            count -= last.len();
            self.parts.pop();
        }
    }

    /// The stream's bytes in one piece.
    fn finish(self, spool: Option<&Path>) -> Result<Bytes, (PathBuf, io::Error)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(spool) = spool.filter(|_| self.len >= LARGE) else { return Ok(self.parts.concat().into()) };
        let mut path = spool.as_os_str().to_owned();
        path.push(format!(".{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let path = PathBuf::from(path);
        let write = || {
            let mut file = File::create_new(&path)?;
            self.parts.iter().try_for_each(|part| file.write_all(part))
        };
        if let Err(error) = write() {
            if error.kind() != io::ErrorKind::AlreadyExists {
                let _ = std::fs::remove_file(&path);
            }
            return Err((path, error));
        }
        Bytes::open_temporary(path.clone()).map_err(|error| (path, error))
    }

    /// Adds pieces of a full trace. `full` are the sorted offsets after which a full buffer lost data.
    fn add_all(&mut self, mut pieces: Vec<Piece<'a>>, full: &[u64]) {
        // Pieces of a buffer come in order; the offsets show any other order.
        pieces.sort_by_key(|(head, _)| head.offset);
        let mut end = pieces.first().map_or(0, |(head, _)| head.offset);
        for (head, bytes) in pieces {
            // Padding of the piece before.
            let padding = end.saturating_sub(head.offset);
            if (1..ALIGNED).contains(&padding) {
                let padding = self.len.min(padding as usize);
                let mut last = self.parts.iter().rev().flat_map(|part| part.iter().rev());
                if last.by_ref().take(padding).all(|&byte| byte == 0) {
                    self.drop_last(padding);
                    end = head.offset;
                }
            }
            let skip = usize::try_from(end.saturating_sub(head.offset)).unwrap_or(usize::MAX);
            let mut rest = bytes.get(skip..).unwrap_or_default();
            let mut at = head.offset.saturating_add(skip as u64);
            let mut lost = head.offset != end;
            let last = head.offset.saturating_add(head.size);
            let first = full.partition_point(|&gap| gap < at);
            for &gap in full[first..].iter().take_while(|&&gap| gap < last) {
                let (before, after) = rest.split_at(rest.len().min((gap.saturating_sub(at)) as usize));
                self.add(before, lost && !before.is_empty());
                (rest, at, lost) = (after, gap, true);
            }
            self.add(rest, lost);
            end = end.max(last);
        }
    }

    /// Adds snapshots of a ring.
    fn add_snapshots(&mut self, pieces: Vec<Piece<'a>>) {
        let mut before: &[u8] = &[];
        for (_, bytes) in pieces {
            // Zeros at the end may be padding: if they are packets, the next snapshot has them, too.
            let zeros = before.iter().rev().take(ALIGNED as usize - 1).take_while(|&&byte| byte == 0).count();
            before = &before[..before.len() - zeros];
            match known(before, bytes) {
                Some(new) => {
                    self.drop_last(zeros);
                    self.push(&bytes[new..]);
                }
                None => self.add(bytes, true),
            }
            before = bytes;
        }
    }

    fn add(&mut self, bytes: &'a [u8], lost: bool) {
        if !lost || self.len == 0 {
            return self.push(bytes);
        }
        self.losses += 1;
        self.push(OVF);
        self.push(&bytes[find_psb(bytes, 0).unwrap_or(bytes.len())..]);
    }
}

/// Length of the part of a snapshot that the one before has, too. `None` if they have no PSB in common.
fn known(before: &[u8], bytes: &[u8]) -> Option<usize> {
    let (mut last, mut from) = (None, 0);
    while let Some(psb) = find_psb(before, from).filter(|psb| psb + TELLING <= before.len()) {
        (last, from) = (Some(psb), psb + 1);
    }
    let tail = &before[last?..];
    let mut from = 0;
    while let Some(psb) = find_psb(bytes, from) {
        if bytes[psb..].starts_with(tail) {
            return Some(psb + tail.len());
        }
        from = psb + 1;
    }
    None
}
