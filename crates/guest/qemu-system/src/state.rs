// SPDX-License-Identifier: GPL-2.0-or-later
//! State shared by all vCPUs: options, the known blocks, the dictionary file, the IDT, whether tracing is on.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;

use kprism_image::insn::Mode;
use kprism_image::is_kernel;

use crate::abi::MAX_VCPUS;
use crate::block::{Block, HANDLER, UNLISTED};
use crate::codemap::{DICT_MAGIC, write_fragment};
use crate::encoder::Encoded;
use crate::goal;
use crate::guest;
use crate::hooks::Hooks;
use crate::idt;
use crate::modules::Modules;
use crate::options::{Keep, Options, Start};
use crate::round_robin::RunningVcpu;
use crate::stops;
use crate::sync::lock;
use crate::trigger::{At, Effect, Met, Op, Triggers};

/// State shared by all callbacks.
pub static STATE: OnceLock<State> = OnceLock::new();

/// True if a host can begin and pause the recording (see [`control`](crate::control)).
pub static IS_CONTROLLED: AtomicBool = AtomicBool::new(false);

/// For each vCPU: true while its blocks may take the fast path. Apart from the vCPU, of which other threads must not have a
/// reference.
pub static QUICK: [AtomicBool; MAX_VCPUS] = [const { AtomicBool::new(false) }; MAX_VCPUS];

/// The shared state.
pub struct State {
    pub options: Options,
    pub hooks: Hooks,
    /// The kernel's modules that came.
    pub modules: Mutex<Modules>,
    /// Set if vCPUs share one thread and take turns.
    pub round_robin: Option<RunningVcpu>,
    /// Conditions at which the streams are split.
    pub triggers: Triggers,
    /// Number of splits so far.
    pub splits: AtomicU64,
    /// Number of splits at which the guest was held.
    held: AtomicU64,
    /// True if tracing is requested.
    pub tracing: AtomicBool,
    /// True once the plugin shuts down: no more tape is written.
    pub closed: AtomicBool,
    /// The reason why recording stopped early, if it did.
    pub stopped: Mutex<Option<String>>,
    /// The encoder thread of each vCPU, by its number.
    pub encoders: Mutex<Vec<(u32, JoinHandle<Encoded>)>>,
    blocks: Mutex<Blocks>,
    dict: Mutex<Dict>,
}

#[derive(Default)]
struct Blocks {
    by_va: HashMap<u64, Vec<&'static Block>>,
    gates: HashMap<u64, u8>,
    /// Base of the IDT from the last `lidt`; before that, what the options say, or Linux's final address.
    idt: u64,
    /// The table when last read.
    table: Vec<u8>,
}

struct Dict {
    file: BufWriter<File>,
    next: u32,
    /// Memory used by its blocks, bytes.
    footprint: usize,
}

impl State {
    /// Opens the dictionary file.
    ///
    /// # Errors
    /// The text names the file.
    pub fn new(options: Options, hooks: Hooks, smp: usize) -> Result<Self, String> {
        let path = options.out.join("code.dict");
        let fail = |e| format!("{}: {e}", path.display());
        let mut file = BufWriter::new(File::create(&path).map_err(fail)?);
        file.write_all(DICT_MAGIC).map_err(fail)?;
        let idt = options.idt.unwrap_or(idt::LINUX_IDT);
        Ok(State {
            round_robin: (options.icount && smp > 1).then(RunningVcpu::new).transpose()?,
            triggers: Triggers::new(&options.keep, options.at.as_ref())?,
            splits: AtomicU64::new(0),
            held: AtomicU64::new(0),
            tracing: AtomicBool::new(options.start != Start::Mark),
            options,
            hooks,
            modules: Mutex::default(),
            closed: AtomicBool::new(false),
            stopped: Mutex::new(None),
            encoders: Mutex::new(Vec::new()),
            blocks: Mutex::new(Blocks { idt, ..Blocks::default() }),
            dict: Mutex::new(Dict { file, next: 0, footprint: 0 }),
        })
    }

    /// Guest time at the start of `block`. Deterministic mode has already added the whole block when its callback runs.
    pub fn clock_before(&self, block: &Block) -> Option<u64> {
        let ns = guest::clock_ns()?;
        Some(if self.options.icount { ns.saturating_sub(block.insns()) } else { ns })
    }

    /// Returns the unique `Block` for this code. QEMU translates the same code again after every flush.
    pub fn intern(&self, va: u64, bytes: &[u8], lens: &[u8], mode: Mode, cpl: u8) -> &'static Block {
        let mut blocks = lock(&self.blocks);
        if cpl == 0 && is_kernel(va) {
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

    /// Assigns `block` its dictionary id and writes its bytes, once, when it first runs. Ids given at translation
    /// would differ from run to run.
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

    /// Stops recording after an error. The data recorded so far stays.
    pub fn stop(&self, why: String) {
        lock(&self.stopped).get_or_insert(why);
        self.set_tracing(false);
        if IS_CONTROLLED.load(Ordering::Relaxed) {
            // The guest is not the lab's: it runs on. The host reads the reason at the end.
            return;
        }
        // Without a recording, running the guest further would only take time. QEMU takes this signal as a request to
        // quit, and calls the plugin's exit callback, which writes the reason.
        // SAFETY: sends a signal to the calling process.
        unsafe { libc::kill(libc::getpid(), libc::SIGTERM) };
    }

    /// Switches tracing on or off. Every vCPU notices at its next block.
    pub fn set_tracing(&self, on: bool) {
        self.tracing.store(on, Ordering::SeqCst);
        self.interrupt_blocks();
    }

    /// Splits the streams: the piece before is kept or dropped. Every vCPU notices at its next block.
    pub fn split(&self) {
        self.splits.fetch_add(1, Ordering::SeqCst);
        self.interrupt_blocks();
    }

    /// Handles a block that [`Triggers::concern`]s, which begins at `va` `at` this moment: splits the streams where a condition is
    /// met. Returns the begin of what triggered a snapshot, in ns, if it has one.
    pub fn block_triggers(&self, at: &At<'_>, va: u64, is_gate: bool) -> Option<u64> {
        self.triggers.block_starts(at, va, is_gate).filter_map(|met| self.take_effect(at.cpu, met)).min()
    }

    /// Handles an instruction, `at` the moment after it. Returns the same.
    pub fn instruction_triggers(&self, at: &At<'_>, op: Op) -> Option<u64> {
        self.triggers.instruction(at, op).filter_map(|met| self.take_effect(at.cpu, met)).min()
    }

    fn take_effect(&self, cpu: u32, Met { effect, since_ns }: Met) -> Option<u64> {
        if effect == Effect::Hold {
            goal::condition_holds(cpu);
            return None;
        }
        let open = self.keeps(self.splits.load(Ordering::SeqCst));
        if effect == Effect::Snapshot || open == (effect == Effect::Until) {
            self.split();
        }
        since_ns.filter(|_| effect == Effect::Snapshot)
    }

    /// Makes every vCPU take the slow path at its next block, where it notices changes.
    fn interrupt_blocks(&self) {
        QUICK.iter().for_each(|quick| quick.store(false, Ordering::SeqCst));
    }

    /// Returns true if data is kept after this number of splits. For snapshots always: a later one may contain it.
    pub fn keeps(&self, splits: u64) -> bool {
        match &self.options.keep {
            Keep::All | Keep::Last { .. } => true,
            Keep::Windows { from, .. } => from.is_none() ^ (splits % 2 == 1),
        }
    }

    /// Holds the guest at each split at which the host is to read its memory, before `block`, which starts: the streams are
    /// split at the same place.
    pub fn hold_at_windows(&self, block: &Block) {
        let splits = self.splits.load(Ordering::SeqCst);
        let held = self.held.swap(splits, Ordering::SeqCst);
        if !self.options.holds_windows || held == splits {
            return;
        }
        let ns = self.clock_before(block).unwrap_or(0);
        for splits in held + 1..=splits {
            stops::wait_at_window(self.keeps(splits), ns);
        }
    }

    /// Number of windows opened, if windows are kept.
    pub fn windows(&self) -> Option<u64> {
        let splits = self.splits.load(Ordering::SeqCst);
        matches!(self.options.keep, Keep::Windows { .. }).then(|| (splits + 1 + u64::from(self.keeps(0))) / 2)
    }

    /// Flushes the dictionary. Returns the memory used by its blocks, bytes.
    pub fn finish(&self) -> usize {
        let mut dict = lock(&self.dict);
        if let Err(e) = dict.file.flush() {
            self.stop(format!("code.dict: {e}"));
        }
        dict.footprint
    }
}

impl Blocks {
    /// Reads the IDT again and marks the blocks at its gates. The table changes while the kernel boots.
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
