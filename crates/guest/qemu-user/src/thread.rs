// SPDX-License-Identifier: GPL-2.0-or-later
//! One thread's TLBs.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use kprism_expr::access::{self, Condition};
use kprism_tlb::bank::missed;
use kprism_tlb::stream::live;
use kprism_tlb::stream::{Event, Miss, Writer};
use kprism_tlb::{Bank, Geometry, Sieve};

use crate::State;
use crate::block::Entry;
use crate::shared::Stream;
use crate::sift::{Counted, Sifted, sift};

/// True once the user was told that misses cannot be written.
static TOLD_FULL: AtomicBool = AtomicBool::new(false);
/// True in a process that the program forked. It is not followed, and the files belong to its parent.
pub static FORKED: AtomicBool = AtomicBool::new(false);

/// Number of entries recorded before the models process them: few enough for the first-level cache, enough for the
/// program's own memory accesses to overlap.
pub const BATCH: usize = 512;

/// One thread's state. Fields used by callbacks come first.
#[repr(C)]
pub struct Thread {
    /// Index of the next entry. Before the thread's first entry there is no room.
    next: usize,
    /// The first one stays empty, so that an entry always follows another.
    entries: [Entry; BATCH + 1],
    counted: Counted,
    sieve: Sieve,
    sifted: Box<Sifted>,
    bank: Bank,
    /// The current system call: number and arguments.
    pub call: [u64; 7],
    /// The word of the last access that belonged to a signal's frame, and the index of the next entry at that time.
    of_signal: (u64, usize),
    /// `None` if misses are only counted.
    stream: Option<(Writer, Stream)>,
    /// The counters, shared with the process that waits for this one.
    words: &'static [AtomicU64],
    begun: bool,
    #[cfg(target_arch = "x86_64")]
    newer: bool,
    process: u32,
    tid: u32,
    /// The misses that are kept, if not all are. Then hits that a replay needs are left out too.
    only: Option<&'static Condition>,
    /// Misses of the last level of the first geometry that do not meet the condition, and those of which it cannot be
    /// computed.
    left_out: [u64; 2],
}

impl Thread {
    /// Thread number `cpu` of the process. Its misses go to a file in `folder`, if given.
    pub fn new(
        cpu: u32,
        state: &'static State,
        folder: Option<&Path>,
        words: &'static [AtomicU64],
    ) -> io::Result<Self> {
        let geometries = &state.geometries;
        let stream = match folder {
            Some(folder) => {
                Some((Writer::new(geometries), Stream::new(folder.join(format!("cpu{cpu}.miss")))?))
            }
            None => None,
        };
        let mut thread = Thread {
            next: BATCH + 1,
            entries: [Entry::default(); BATCH + 1],
            counted: Counted::default(),
            sieve: Sieve::new(geometries, stream.is_some()),
            sifted: Box::default(),
            bank: Bank::counting(geometries),
            call: [0; 7],
            of_signal: (0, 0),
            stream,
            words,
            begun: false,
            #[cfg(target_arch = "x86_64")]
            newer: is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("bmi1")
                && is_x86_feature_detected!("bmi2")
                && is_x86_feature_detected!("lzcnt"),
            process: state.process,
            tid: 0,
            only: state.only.as_ref(),
            left_out: [0; 2],
        };
        thread.publish();
        Ok(thread)
    }

    /// The thread has ended, and another one has its number now. It starts with empty TLBs, and its misses follow the
    /// other's.
    pub fn begin_again(&mut self, geometries: &[Geometry]) {
        self.look_up();
        if let Some((writer, _)) = &mut self.stream {
            writer.event(&Event::Flush);
        }
        self.bank.flush_all();
        self.sieve = Sieve::new(geometries, self.stream.is_some());
        self.counted.leave();
        (self.next, self.begun, self.call) = (BATCH + 1, false, [0; 7]);
        self.publish();
    }

    /// Current time: the number of instructions so far.
    pub fn now(&mut self) -> u64 {
        self.look_up();
        self.counted.instructions
    }

    /// Records an entry.
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

    /// Returns true if a callback with this word is for a signal's frame (`Block::words`). The frame's first access is
    /// unlike any jump's: two bytes, of the floating point unit's state. All that follow belong to the frame too, until
    /// another instruction comes.
    pub fn is_of_signal(&mut self, word: u64, is_expected: bool) -> bool {
        if !is_expected {
            self.of_signal = (word, self.next);
        }
        self.of_signal == (word, self.next)
    }

    /// Handles a full buffer.
    #[cold]
    #[inline(never)]
    extern "C" fn full(&mut self, entry: Entry) {
        if self.begun {
            self.look_up();
        } else {
            // QEMU reports a thread on the one that creates it. Here it is the thread itself.
            self.begun = true;
            // SAFETY: asks for this thread's number.
            let pid = unsafe { libc::gettid() } as u32;
            self.tid = pid;
            if let Some((writer, _)) = &mut self.stream {
                writer.event(&Event::Task { pid, tgid: self.process });
            }
        }
        self.entries[1] = entry;
        self.next = 2;
    }

    /// Runs the models over the recorded entries.
    pub fn look_up(&mut self) {
        if FORKED.load(Ordering::Relaxed) {
            self.next = 1;
            return;
        }
        self.of_signal = (0, 0);
        if self.begun && self.next > 1 {
            self.run_models();
            self.publish();
        }
    }

    fn run_models(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.newer {
            // SAFETY: this processor has what is asked for.
            return unsafe { self.look_up_newer() };
        }
        self.look_up_any();
    }

    /// Like `look_up_any`, compiled for processors of the last ten years.
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
        let (only, left_out, tid, pid) = (self.only, &mut self.left_out, self.tid, self.process);
        writer.many(|to| {
            for i in 0..count {
                let Some(missed) = missed(marks[i]) else { continue };
                let (va, access, size) = (vas[i], kinds[i], missed.size);
                if missed.touched {
                    if only.is_none() {
                        to.touch(va, access, size);
                    }
                    continue;
                }
                let (first, last) = (missed.first, missed.last);
                let miss = Miss { ns: places[i].ns, va, ip: places[i].ip, access, size, first, last };
                if only.is_none_or(|only| is_kept(only, &miss, (tid, pid), left_out)) {
                    to.miss(&miss);
                }
            }
        });
    }

    /// Ends the thread: all recorded entries are processed.
    pub fn finish(&mut self) {
        self.look_up();
        if let Some((_, stream)) = &mut self.stream
            && let Err(e) = stream.finish()
        {
            eprintln!("kprism-user: the stream of misses: {e}");
        }
    }

    /// Stores misses and counters where they survive this process.
    fn publish(&mut self) {
        let set = |word: usize, n: u64| self.words[word].store(n, Ordering::Relaxed);
        if let Some((writer, stream)) = &mut self.stream {
            let (unwritten, error) = stream.add(&writer.bytes);
            writer.bytes.clear();
            set(live::BYTES, stream.bytes() as u64);
            self.words[live::UNWRITTEN].fetch_add(unwritten as u64, Ordering::Relaxed);
            if let Some(e) = error.filter(|_| !TOLD_FULL.swap(true, Ordering::Relaxed)) {
                eprintln!("kprism-user: misses cannot be written any more, the program runs on: {e}");
            }
        }
        set(live::UNMET, self.left_out[0]);
        set(live::NOT_COMPUTED, self.left_out[1]);
        set(live::INSTRUCTIONS, self.counted.instructions);
        for kind in 0..3 {
            set(live::REFERENCES + kind, self.counted.references[kind]);
            set(live::LOOKED_UP + kind, self.bank.looked_up[kind]);
        }
        for (i, counts) in self.bank.counts().enumerate() {
            let at = live::MODELS + live::MODEL * i;
            for kind in 0..3 {
                set(at + kind, counts.first[kind]);
                set(at + 3 + kind, counts.last[kind]);
            }
            set(at + 6, counts.walk_reads);
        }
        set(live::IN_USE, 1);
    }
}

/// Returns true if the miss meets the condition; counts it if not.
#[cold]
#[inline(never)]
fn is_kept(only: &Condition, miss: &Miss, (tid, pid): (u32, u32), left_out: &mut [u64; 2]) -> bool {
    let own = access::Miss {
        va: miss.va,
        ip: miss.ip,
        page_bytes: miss.size.bytes(),
        access: miss.access as u8,
        tid,
        pid,
        ..access::Miss::default()
    };
    let of_first = u64::from(miss.last & 1);
    match only.holds(&own) {
        Ok(true) => return true,
        Ok(false) => left_out[0] += of_first,
        Err(_) => left_out[1] += of_first,
    }
    false
}
