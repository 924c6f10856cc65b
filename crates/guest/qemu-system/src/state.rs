// SPDX-License-Identifier: GPL-2.0-or-later
//! What all vCPUs share: settings, the known blocks, the dictionary file, the IDT, on and off.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;

use kprism_image::insn::Mode;

use crate::block::{Block, HANDLER, UNLISTED};
use crate::codemap::{DICT_MAGIC, write_fragment};
use crate::guest;
use crate::hooks::Hooks;
use crate::idt;
use crate::options::{Keep, Options, Start};
use crate::pump::Done;
use crate::trigger::Triggers;
use crate::turns::Turns;
use crate::vcpu::Vcpu;

/// QEMU's limit for this machine type is 255.
pub const MAX_VCPUS: usize = 256;

/// What all callbacks share.
pub static STATE: OnceLock<State> = OnceLock::new();

/// The vCPUs by number, null before their start and after the end. Apart from [`STATE`], as every block that runs
/// looks here.
pub static VCPUS: [AtomicPtr<Vcpu>; MAX_VCPUS] = [const { AtomicPtr::new(std::ptr::null_mut()) }; MAX_VCPUS];

/// See the module.
pub struct State {
    pub options: Options,
    pub hooks: Hooks,
    /// Set where vCPUs share one thread and take turns.
    pub turns: Option<Turns>,
    /// What cuts the streams.
    pub triggers: Triggers,
    /// How often they were cut.
    pub cuts: AtomicU64,
    /// Tracing is wanted.
    pub tracing: AtomicBool,
    /// The plugin is shutting down: no more tape.
    pub closed: AtomicBool,
    /// Why recording stopped early, if it did.
    pub stopped: Mutex<Option<String>>,
    pub encoders: Mutex<Vec<JoinHandle<Done>>>,
    blocks: Mutex<Blocks>,
    dict: Mutex<Dict>,
}

#[derive(Default)]
struct Blocks {
    by_va: HashMap<u64, Vec<&'static Block>>,
    gates: HashMap<u64, u8>,
    /// Base of the IDT, once a `lidt` was seen; Linux's final place until then.
    idt: u64,
    /// The table as last read.
    table: Vec<u8>,
}

struct Dict {
    file: BufWriter<File>,
    next: u32,
    /// Memory its blocks take.
    footprint: usize,
}

/// A mutex whose holder panicked still guards usable data here: records are only ever added.
pub fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// Opens the dictionary file.
    ///
    /// # Errors
    /// A message naming the file.
    pub fn new(options: Options, hooks: Hooks, smp: usize) -> Result<Self, String> {
        let path = options.out.join("code.dict");
        let fail = |e| format!("{}: {e}", path.display());
        let mut file = BufWriter::new(File::create(&path).map_err(fail)?);
        file.write_all(DICT_MAGIC).map_err(fail)?;
        Ok(State {
            turns: (options.icount && smp > 1).then(Turns::new).transpose()?,
            triggers: Triggers::new(&options.keep)?,
            cuts: AtomicU64::new(0),
            tracing: AtomicBool::new(options.start == Start::Boot),
            options,
            hooks,
            closed: AtomicBool::new(false),
            stopped: Mutex::new(None),
            encoders: Mutex::new(Vec::new()),
            blocks: Mutex::new(Blocks { idt: idt::LINUX_IDT, ..Blocks::default() }),
            dict: Mutex::new(Dict { file, next: 0, footprint: 0 }),
        })
    }

    /// Guest time at the start of `block`. Deterministic mode has already charged the whole block when its
    /// callback runs.
    pub fn clock_before(&self, block: &Block) -> Option<u64> {
        let ns = guest::clock_ns()?;
        Some(if self.options.icount { ns.saturating_sub(block.insns()) } else { ns })
    }

    /// The one `Block` for this code: QEMU translates the same code again after every flush.
    pub fn intern(&self, va: u64, bytes: &[u8], lens: &[u8], mode: Mode, cpl: u8) -> &'static Block {
        let mut blocks = lock(&self.blocks);
        if cpl == 0 && va >> 63 == 1 {
            blocks.refresh_gates();
        }
        let same = |b: &&&'static Block| *b.bytes == *bytes && b.mode == mode && b.cpl == cpl;
        if let Some(known) = blocks.by_va.get(&va).and_then(|list| list.iter().find(same)) {
            return known;
        }
        let block: &'static Block = Box::leak(Box::new(Block::new(va, bytes, lens, mode, cpl)));
        if let Some(&vector) = blocks.gates.get(&va) {
            block.flags.fetch_or(HANDLER | u32::from(vector), Ordering::Relaxed);
        }
        blocks.by_va.entry(va).or_default().push(block);
        block
    }

    /// A `lidt` set the table's base.
    pub fn set_idt(&self, base: u64) {
        let mut blocks = lock(&self.blocks);
        blocks.idt = base;
        blocks.refresh_gates();
    }

    /// Gives `block` its dictionary id and writes its bytes, once: when it first runs, as the order of translation
    /// differs from run to run.
    pub fn ensure_in_dict(&self, block: &Block) {
        if block.id.load(Ordering::Acquire) != UNLISTED {
            return;
        }
        let mut dict = lock(&self.dict);
        if block.id() != UNLISTED {
            return;
        }
        let id = dict.next;
        dict.next += 1;
        if let Err(e) = write_fragment(&mut dict.file, id, block.va, &block.bytes) {
            self.stop(format!("code.dict: {e}"));
        }
        dict.footprint += size_of::<Block>() + block.bytes.len() + 2 * block.starts.len() + 16;
        block.id.store(id, Ordering::Release);
    }

    /// Recording can't go on; what was recorded stays.
    pub fn stop(&self, why: String) {
        lock(&self.stopped).get_or_insert(why);
        self.set_tracing(false);
        // A guest that nobody records any more would only use up its time. QEMU takes this signal as a request to quit, and
        // calls the plugin's end, which writes the reason down.
        // SAFETY: sends a signal to the calling process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    }

    /// Switches tracing; every vCPU notices at its next block.
    pub fn set_tracing(&self, on: bool) {
        self.tracing.store(on, Ordering::SeqCst);
        self.tell();
    }

    /// Cuts the streams; every vCPU notices at its next block.
    pub fn cut(&self) {
        self.cuts.fetch_add(1, Ordering::SeqCst);
        self.tell();
    }

    /// Has every vCPU go the slow way at its next block, and see what changed.
    fn tell(&self) {
        self.for_each_vcpu(|v| v.quick.store(false, Ordering::SeqCst));
    }

    /// Whether what is recorded is kept, after that many cuts: always between snapshots, as they may come to hold it.
    pub fn keeps(&self, cuts: u64) -> bool {
        match &self.options.keep {
            Keep::All | Keep::Last { .. } => true,
            Keep::Windows { from, .. } => from.is_none() ^ (cuts % 2 == 1),
        }
    }

    /// Windows that were opened, if it is them that are kept.
    pub fn windows(&self) -> Option<u64> {
        let cuts = self.cuts.load(Ordering::SeqCst);
        matches!(self.options.keep, Keep::Windows { .. }).then(|| (cuts + 1 + u64::from(self.keeps(0))) / 2)
    }

    /// Every vCPU that exists. Only its atomic fields may be touched unless its thread is the caller's or
    /// stands still.
    pub fn for_each_vcpu(&self, mut f: impl FnMut(&Vcpu)) {
        for slot in &VCPUS {
            // SAFETY: set once from a leaked box, never freed.
            if let Some(v) = unsafe { slot.load(Ordering::Acquire).as_ref() } {
                f(v);
            }
        }
    }

    /// Writes the dictionary out and says how much memory its blocks take.
    pub fn finish(&self) -> usize {
        let mut dict = lock(&self.dict);
        if let Err(e) = dict.file.flush() {
            self.stop(format!("code.dict: {e}"));
        }
        dict.footprint
    }
}

impl Blocks {
    /// Reads the IDT again and marks the blocks its gates lead to. The table changes while the kernel boots.
    fn refresh_gates(&mut self) {
        let mut table = [0; idt::SIZE];
        if !guest::memory(self.idt, &mut table) || *self.table == table {
            return;
        }
        self.table = table.to_vec();
        for (vector, va) in idt::gates(&table) {
            if self.gates.insert(va, vector) != Some(vector) {
                for block in self.by_va.get(&va).into_iter().flatten() {
                    block.flags.fetch_or(HANDLER | u32::from(vector), Ordering::Relaxed);
                }
            }
        }
    }
}
