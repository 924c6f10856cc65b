// SPDX-License-Identifier: MIT OR Apache-2.0
//! Assembles segments to programs. A program checks what is cheapest first: whose hit it is, the condition, room in the
//! ring. Then it writes the record's header and values.
//!
//! Segments use the stack from its top. The program's own data lies at the bottom, and no register is kept across
//! segments. Counters and the ring are per CPU, so no two CPUs write to one cache line.

mod count;
pub mod segment;

use kprism_bpf::cpu_ring;
use kprism_bpf::wanted::{self, TRACED};
use kprism_ebpf::asm::{Asm, Code, Label};
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};
use kprism_expr::emit::{self, Map, Reloc};
use kprism_expr::ir::{FAULTS, Fault, Space};
use kprism_expr::regs;

use self::segment::{CONTEXT, Operand};
use crate::Error;
use crate::plan::CompiledActions;
use crate::plan::{Fill, Plan, Segment, Site, Slot};
use crate::stream::{HEADER, Part};

use Reg::{R0, R1, R2, R3, R10};
use Width::{B4, B8};

/// Indices of the maps, the same for every program: the processes whose hits count.
pub const TASKS: usize = 0;
/// Counters and rings, by CPU.
pub const RINGS: usize = 1;
/// Faults, trace state variables, the number of records.
pub const STATE: usize = 2;
/// The map that this probe's entry program fills, if it has one; then the map of its counts by keys, if it has one.
pub const ENTRIES: usize = 3;

/// Bytes of counters per probe and CPU: hits, passed, lost, keys without room, keys that could not be read, calls.
pub const CELL: u32 = 64;
/// Offset in a cell: calls of the function whose returns are hits.
const CALLS: i16 = 40;
/// Bytes of the state per probe: faults of its condition, faults of its values.
pub const PROBE_STATE: u32 = 256;
/// Offset in a probe's state: hits whose condition was true, counted if some are to be skipped.
pub const HELD: u32 = 192;
/// Offset in a probe's state: faults of the values kept for GDB, reported as the values' faults.
const HIDDEN_FAULTS: u32 = 208;

/// Maximum size of trace state variables, bytes.
pub const VARS_END: u32 = 8 * 1024;

pub(crate) const RECORD: i16 = -504;
pub(crate) const CELL_AT: i16 = -496;
const PID_TGID: i16 = -488;
/// Stack offset of the address of a string that is read twice.
const ADDRESS: i16 = -480;

/// Settings and sizes common to all probes of a session.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Number of probes.
    pub probes: u32,
    /// Layout of the counters and rings.
    pub rings: cpu_ring::Layout,
    /// If given, everyone's hits count but this process's; else only those of the processes in the map.
    pub all_but: Option<u32>,
    /// Maximum of records; then recording ends.
    pub stop_after: Option<u32>,
    /// Number of trace state variables.
    pub vars: u32,
    /// Bytes of counts per probe and CPU, without keys.
    pub tally: u32,
    /// Bytes of counts per combination of keys.
    pub keyed: u32,
    /// True if programs may sleep until memory is paged in.
    pub sleeps: bool,
    /// Offset of the kernel's addresses from those at which it is linked.
    pub slide: u64,
}

impl Layout {
    /// The layout for these probes, with everyone's hits.
    ///
    /// # Errors
    /// The counters and records are larger than a program can address.
    pub fn of(plans: &[Plan], cpus: u32, ring_bytes: u32) -> Result<Self, Error> {
        let cells = |keyed: bool| {
            let wanted = plans.iter().filter(|plan| plan.actions.keys.is_empty() != keyed);
            wanted.filter_map(|plan| Some(plan.probe.tally.as_ref()?.cell_bytes())).max().unwrap_or(0)
        };
        let (probes, tally) = (plans.len() as u32, cells(false));
        let all = plans.iter().flat_map(|plan| [Some(plan), plan.instead.as_deref()]).flatten();
        let longest = all.map(|plan| plan.probe.record_bytes).max().unwrap_or(0);
        let counters = probes.saturating_mul(CELL.saturating_add(tally));
        Ok(Self {
            probes,
            rings: cpu_ring::Layout::fitting(cpus, counters, ring_bytes, longest)?,
            all_but: None,
            stop_after: None,
            vars: 0,
            tally,
            keyed: cells(true),
            sleeps: false,
            slide: 0,
        })
    }

    /// Size of the state, bytes.
    pub fn state_bytes(&self) -> u32 {
        self.zeros_at() + self.keyed
    }

    /// Offset in the state: number of records.
    pub fn stop_at(&self) -> u32 {
        self.probes * PROBE_STATE
    }

    /// Offset in the state: whether the recording is on; [`PAUSED`], [`RUNNING`], [`ENDED`], or [`NOT_YET`].
    pub fn switch_at(&self) -> u32 {
        self.stop_at() + 8
    }

    /// Offset in the state of the trace state variables.
    pub fn vars_at(&self) -> u32 {
        self.stop_at() + 16
    }

    /// Offset in the state of zeros, the initial value of counts for new keys.
    pub fn zeros_at(&self) -> u32 {
        self.vars_at() + 8 * self.vars
    }

    /// Offset of a probe's counts without keys among one CPU's counters.
    pub fn tally_at(&self, number: u32) -> u32 {
        self.probes * CELL + number * self.tally
    }
}

/// The recording waits for a start.
pub const PAUSED: u64 = 0;
/// The recording is on.
pub const RUNNING: u64 = 1;
/// The recording is over.
pub const ENDED: u64 = 2;
/// Not all probes are attached yet. Hits do not count before they are.
pub const NOT_YET: u64 = 3;

/// Jumps to `out` unless the hit is from a selected process. Stores the context in its place.
fn ours(asm: &mut Asm, layout: &Layout, out: Label) {
    asm.store(B8, R10, CONTEXT, R1).note("whose hit is it?");
    // The process is the upper half.
    asm.call(Helper::CurrentPidTgid).store(B8, R10, PID_TGID, R0).alu_imm(Alu::Rsh, R0, 32);
    match layout.all_but {
        Some(own) => asm.branch_imm(Cond::Eq, R0, own.cast_signed(), out),
        None => {
            wanted::load(asm, TASKS, R0, R1);
            asm.branch_imm(Cond::Ne, R1, TRACED.into(), out)
        }
    };
}

/// Jumps to `out` unless the recording is on. It switches at the same moment for all probes.
fn is_on(asm: &mut Asm, part: Part, layout: &Layout, out: Label) {
    asm.note("is it on?").map_value(R1, STATE, layout.switch_at()).load(B8, R0, R1, 0);
    match part {
        Part::Start => asm.branch_imm(Cond::Gt, R0, RUNNING as i32, out),
        _ => asm.branch_imm(Cond::Ne, R0, RUNNING as i32, out),
    };
}

/// Assembles the program of a probe.
pub fn probe(plan: &Plan, number: u32, layout: &Layout) -> Result<Code, Error> {
    let size = plan.probe.record_bytes;
    let mut asm = Asm::new();
    let (out, lost) = (asm.label(), asm.label());
    let state = number * PROBE_STATE;
    ours(&mut asm, layout, out);

    is_on(&mut asm, plan.probe.part, layout, out);
    let cell = number * CELL;
    asm.note("this CPU's counters");
    cpu_ring::counter(&mut asm, &layout.rings, RINGS, cell, out);
    asm.store(B8, R10, CELL_AT, R1);
    count(&mut asm, 0);

    if let Some(guard) = &plan.guard {
        asm.note("is the stack as it should be?");
        let value = insert(&mut asm, guard, state, layout, out)?;
        let fine = asm.label();
        asm.bind(value).branch_imm(Cond::Ne, R0, 0, fine);
        fault(&mut asm, state, Fault::NoEntry);
        asm.goto(out).bind(fine);
    }
    if let Some(condition) = &plan.condition {
        asm.note("condition");
        let value = insert(&mut asm, condition, state, layout, out)?;
        asm.bind(value).branch_imm(Cond::Eq, R0, 0, out);
    }
    if plan.actions.leaves_out() {
        leave_out(&mut asm, &plan.actions, state - plan.after_first * PROBE_STATE + HELD, out);
    }
    switch(&mut asm, plan.probe.part, layout, out);
    if let Some(most) = layout.stop_after {
        asm.note("no more than asked for").map_value(R1, STATE, layout.stop_at()).mov_imm(R0, 1);
        asm.put(insn::fetch_add(R1, 0, R0));
        asm.mov_imm(R1, most.cast_signed()).branch(Cond::Ge, R0, R1, out);
    }
    asm.load(B8, R1, R10, CELL_AT);
    count(&mut asm, 8);
    for segment in &plan.actions.set {
        asm.note(segment.text.clone());
        let failed = asm.label();
        let done = insert(&mut asm, segment, state + PROBE_STATE / 2, layout, failed)?;
        asm.bind(done).bind(failed);
    }
    if let Some(tally) = &plan.probe.tally {
        count::tally(&mut asm, plan, tally, number, layout)?;
    }
    if size == 0 {
        asm.bind(lost).bind(out).end();
        return Ok(asm.finish().map_err(kprism_bpf::Error::from)?);
    }
    if !plan.actions.set.is_empty() || plan.probe.tally.is_some() {
        asm.load(B8, R1, R10, CELL_AT);
    }
    let room = cpu_ring::reserve(&mut asm, &layout.rings, cell, size, lost);
    // The time is taken after room is reserved. So the reader knows that records reserved later have later times.
    asm.note("record").store(B8, R10, RECORD, R1).call(Helper::KtimeGetNs);
    asm.load(B8, R1, R10, RECORD).store(B8, R1, 8, R0);
    asm.load(B8, R2, R10, PID_TGID).store(B8, R1, 16, R2).store_imm(B4, R1, 4, number as i32);
    for slot in &plan.slots {
        fill(&mut asm, plan, slot, state + PROBE_STATE / 2, layout)?;
    }
    for slot in &plan.hidden {
        fill(&mut asm, plan, slot, state + HIDDEN_FAULTS, layout)?;
    }
    asm.note("submit").load(B8, R1, R10, RECORD);
    cpu_ring::submit(&mut asm, size);
    asm.bind(out).end();
    room.retries(&mut asm);
    asm.bind(lost).load(B8, R1, R10, CELL_AT);
    count(&mut asm, 16);
    asm.goto(out);
    Ok(asm.finish().map_err(kprism_bpf::Error::from)?)
}

/// Returns true if calls of the probe's function are counted beside its returns. The kernel silently gives up on
/// returns of calls nested more than 64 deep (`MAX_URETPROBE_DEPTH`).
pub fn counts_calls(plan: &Plan) -> bool {
    matches!(plan.site, Site::User { at_return: true, .. })
}

/// Assembles the program at the entry of the probe's function.
pub fn entry(plan: &Plan, number: u32, layout: &Layout) -> Result<Code, Error> {
    let mut asm = Asm::new();
    let out = asm.label();
    ours(&mut asm, layout, out);
    if counts_calls(plan) {
        let off = asm.label();
        is_on(&mut asm, plan.probe.part, layout, off);
        cpu_ring::counter(&mut asm, &layout.rings, RINGS, number * CELL, out);
        count(&mut asm, CALLS);
        asm.bind(off);
    }
    if plan.kept.is_empty() {
        asm.bind(out).end();
        return Ok(asm.finish().map_err(kprism_bpf::Error::from)?);
    }
    let program = emit::entry(&plan.kept, plan.site.has_registers());
    let segment = Segment { text: "entry".into(), program };
    let done = insert(&mut asm, &segment, 0, layout, out)?;
    asm.bind(done).bind(out).end();
    Ok(asm.finish().map_err(kprism_bpf::Error::from)?)
}

/// Skips the first hits, and jumps to `out` once the pass limit is reached.
fn leave_out(asm: &mut Asm, actions: &CompiledActions, held: u32, out: Label) {
    asm.note("is its turn over?").map_value(R1, STATE, held).mov_imm(R0, 1);
    asm.put(insn::fetch_add(R1, 0, R0));
    if actions.skip > 0 {
        asm.mov_u64(R1, actions.skip).branch(Cond::Lt, R0, R1, out);
    }
    if let Some(pass) = actions.pass {
        asm.mov_u64(R1, actions.skip.saturating_add(pass)).branch(Cond::Ge, R0, R1, out);
    }
}

/// The helper that copies memory of a program (`user`) or of the kernel. For a program that may sleep it also pages in.
fn reads(user: bool, sleeps: bool) -> Helper {
    match (user, sleeps) {
        (true, true) => Helper::CopyFromUser,
        (true, false) => Helper::ProbeReadUser,
        (false, _) => Helper::ProbeReadKernel,
    }
}

/// Switches the recording. Of several hits at the same time only one ends it, and an ended recording stays ended.
fn switch(asm: &mut Asm, part: Part, layout: &Layout, out: Label) {
    let (from, to) = match part {
        Part::Record => return,
        Part::Start => (PAUSED, RUNNING),
        Part::Pause => (RUNNING, PAUSED),
        Part::Stop => (RUNNING, ENDED),
    };
    asm.note("switch").map_value(R2, STATE, layout.switch_at()).mov_u64(R1, to).mov_u64(R0, from);
    asm.put(insn::compare_exchange(R2, 0, R1));
    asm.branch_imm(Cond::Ne, R0, from as i32, out);
}

/// Increments the counter at this offset from `R1`.
pub(crate) fn count(asm: &mut Asm, at: i16) {
    asm.mov_imm(R0, 1).put(insn::atomic_add(R1, at, R0));
}

/// Inserts a segment with this probe's maps.
pub(crate) fn insert(
    asm: &mut Asm,
    segment: &Segment,
    state: u32,
    layout: &Layout,
    fault: Label,
) -> Result<Label, Error> {
    let find = |reloc| {
        Some(match reloc {
            Reloc::Map(Map::Entries) => Operand::Map(ENTRIES),
            Reloc::Map(_) => return None,
            Reloc::MapValue(_, offset) => match offset.checked_sub(emit::VARS) {
                Some(var @ 0..) => Operand::Memory(STATE, layout.vars_at() + var.cast_unsigned()),
                _ => Operand::Memory(STATE, state + offset.cast_unsigned()),
            },
            Reloc::Address(link) => Operand::Address(link.wrapping_add(layout.slide)),
        })
    };
    segment::insert(asm, &segment.program, &find, fault, layout.sleeps)
        .map_err(|what| Error::Cannot(format!("`{}`: {what}", segment.text)))
}

/// Fills the place of one value in the record.
pub(crate) fn fill(
    asm: &mut Asm,
    plan: &Plan,
    slot: &Slot,
    state: u32,
    layout: &Layout,
) -> Result<(), Error> {
    let at = slot.at as i16;
    let (failed, done) = (asm.label(), asm.label());
    let user = plan.space == Space::User;
    debug_assert!(slot.at as usize >= HEADER);
    match &slot.fill {
        Fill::Value(segment) => {
            asm.note(segment.text.clone());
            let value = insert(asm, segment, state, layout, failed)?;
            asm.bind(value).load(B8, R1, R10, RECORD).store(B8, R1, at, R0).goto(done);
        }
        Fill::Text(segment, _, most) => {
            asm.note(segment.text.clone());
            let address = insert(asm, segment, state, layout, failed)?;
            asm.bind(address);
            target(asm, at + 8);
            asm.mov_imm(R2, most.cast_signed()).mov(R3, R0);
            let (read, fine) = (asm.label(), asm.label());
            if user && layout.sleeps {
                // No helper both sleeps and ends at the NUL. If the string is not in memory, it is paged in and read
                // again.
                asm.store(B8, R10, ADDRESS, R0).call(Helper::ProbeReadUserStr);
                asm.branch_imm(Cond::SGe, R0, 0, fine);
                target(asm, at + 8);
                asm.mov_imm(R2, most.cast_signed()).load(B8, R3, R10, ADDRESS).call(Helper::CopyFromUser);
                target(asm, at + 8);
                asm.mov_imm(R2, most.cast_signed()).load(B8, R3, R10, ADDRESS);
                asm.call(Helper::ProbeReadUserStr);
            } else if user {
                asm.call(Helper::ProbeReadUserStr);
            } else {
                // A system call's strings belong to its caller: addresses of the lower half.
                let (of_user, done) = (asm.label(), asm.label());
                asm.branch_imm(Cond::SGe, R3, 0, of_user).call(Helper::ProbeReadKernelStr).goto(done);
                asm.bind(of_user).call(Helper::ProbeReadUserStr).bind(done);
            }
            asm.branch_imm(Cond::SGe, R0, 0, fine).goto(read);
            asm.bind(fine).load(B8, R1, R10, RECORD).store(B8, R1, at, R0).goto(done).bind(read);
            fault(asm, state, Fault::Read);
            asm.goto(failed);
        }
        Fill::Memory(segment, size) => {
            asm.note(segment.text.clone());
            let address = insert(asm, segment, state, layout, failed)?;
            asm.bind(address);
            target(asm, at);
            asm.mov_imm(R2, size.cast_signed()).mov(R3, R0);
            asm.call(reads(user, layout.sleeps));
            asm.branch_imm(Cond::Eq, R0, 0, done);
            fault(asm, state, Fault::Read);
        }
        Fill::Elements { address, count, stride, most } => {
            asm.note(count.text.clone());
            let counted = insert(asm, count, state, layout, failed)?;
            asm.bind(counted).load(B8, R1, R10, RECORD).store(B8, R1, at, R0);
            // If there are no elements, the address may be invalid.
            asm.branch_imm(Cond::Eq, R0, 0, done);
            let first = insert(asm, address, state, layout, failed)?;
            asm.bind(first).mov(R3, R0);
            target(asm, at + 8);
            let fits = asm.label();
            asm.load(B8, R2, R1, -8).branch_imm(Cond::Le, R2, most.cast_signed(), fits);
            asm.mov_imm(R2, most.cast_signed()).bind(fits).alu_imm(Alu::Mul, R2, stride.cast_signed());
            asm.call(reads(user, layout.sleeps));
            asm.branch_imm(Cond::Eq, R0, 0, done);
            fault(asm, state, Fault::Read);
        }
        Fill::Comm => {
            asm.note("$comm").load(B8, R1, R10, RECORD).store_imm(B8, R1, at, 16);
            target(asm, at + 8);
            asm.mov_imm(R2, 16).call(Helper::CurrentComm).goto(done);
        }
        Fill::Stack { user, room } => {
            const USER_STACK: u64 = 1 << 8;
            asm.note("stack").load(B8, R1, R10, CONTEXT).load(B8, R2, R10, RECORD);
            asm.alu_imm(Alu::Add, R2, i32::from(at) + 8).mov_imm(R3, room.cast_signed());
            asm.mov_u64(Reg::R4, if *user { USER_STACK } else { 0 }).call(Helper::GetStack);
            let fine = asm.label();
            asm.branch_imm(Cond::SGe, R0, 0, fine);
            fault(asm, state, Fault::Read);
            asm.goto(failed);
            asm.bind(fine).load(B8, R1, R10, RECORD).store(B8, R1, at, R0).goto(done);
        }
        Fill::Registers => {
            asm.note("$regs").load(B8, R1, R10, RECORD).load(B8, R2, R10, CONTEXT);
            for (n, reg) in regs::ALL.iter().enumerate() {
                asm.load(B8, R0, R2, reg.pt_regs_offset());
                // In a kprobe's program the instruction pointer is after the breakpoint.
                if *reg == regs::Reg::Rip && matches!(plan.site, Site::Kernel { at_return: false, .. }) {
                    asm.alu_imm(Alu::Sub, R0, 1);
                }
                asm.store(B8, R1, at + 8 * n as i16, R0);
            }
            asm.goto(done);
        }
    }
    asm.bind(failed).note("not readable").load(B8, R1, R10, RECORD);
    asm.load(B8, R0, R1, 24).mov_u64(R2, 1 << slot.number).alu(Alu::Or, R0, R2).store(B8, R1, 24, R0);
    asm.bind(done);
    Ok(())
}

/// Sets r1 to this offset in the record.
fn target(asm: &mut Asm, at: i16) {
    asm.load(B8, R1, R10, RECORD).alu_imm(Alu::Add, R1, i32::from(at));
}

fn fault(asm: &mut Asm, state: u32, fault: Fault) {
    let at = FAULTS.iter().position(|f| *f == fault).unwrap_or(0) as i16;
    asm.map_value(R1, STATE, state).mov_imm(R0, 1).put(insn::atomic_add(R1, 8 * at, R0));
}
