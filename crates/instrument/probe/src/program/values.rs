// SPDX-License-Identifier: MIT OR Apache-2.0
//! Segments in a probe's program: inserted with its maps, their values written into the record.

use kprism_ebpf::asm::{Asm, Label};
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};
use kprism_ebpf::opcode;
use kprism_expr::emit::{self, Map, Reloc};
use kprism_expr::ir::{FAULTS, Fault, Space};
use kprism_expr::regs;

use super::memory::{ADDRESS, Counter, Layout, PLACE_AT, RECORD, STATE};
use crate::Error;
use crate::plan::{Fill, Plan, Segment, Site, Slot};
use crate::stream::HEADER;
use kprism_bpf::segment::{self, CONTEXT, Operand};

use Reg::{R0, R1, R2, R3, R10};
use Width::B8;

/// Inserts a segment with this probe's maps.
pub(super) fn insert_with_maps(
    asm: &mut Asm,
    segment: &Segment,
    state: u32,
    layout: &Layout,
    fault: Label,
) -> Result<Label, Error> {
    let find = |reloc| {
        Some(match reloc {
            Reloc::Map(Map::Entries) => Operand::Map(layout.entries_map()),
            // What is named in the kernel was filled in before.
            Reloc::Map(_) | Reloc::Bound(..) => return None,
            // From `VARS` on: trace state variables. Below: the fault counters of this probe.
            Reloc::MapValue(_, offset) => match offset.checked_sub(emit::VARS) {
                Some(var @ 0..) => layout.var_at(var.cast_unsigned()),
                _ => Operand::Memory(STATE, state + offset.cast_unsigned()),
            },
            Reloc::Address(link) => Operand::Address(link.wrapping_add(layout.slide)),
        })
    };
    let mut moved;
    let program = match layout.place {
        None => &segment.program,
        Some(_) => {
            moved = segment.program.clone();
            at_place(&mut moved);
            &moved
        }
    };
    segment::insert(asm, program, &find, fault, layout.sleeps)
        .map_err(|what| Error::Cannot(format!("`{}`: {what}", segment.text)))
}

/// Lets a segment read the instruction pointer where the program keeps that of the place.
fn at_place(segment: &mut emit::Program) {
    let offset = regs::Reg::Rip.pt_regs_offset();
    for insn in &mut segment.insns {
        if insn.code == opcode::LDX | 0x18 && insn.off == offset && insn.src != R10 as u8 {
            (insn.src, insn.off) = (R10 as u8, PLACE_AT);
        }
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

/// Fills the place of one value in the record.
pub(super) fn fill(
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
            let value = insert_with_maps(asm, segment, state, layout, failed)?;
            asm.bind(value).load(B8, R1, R10, RECORD).store(B8, R1, at, R0).goto(done);
        }
        Fill::Text(segment, _, most) => {
            asm.note(segment.text.clone());
            let address = insert_with_maps(asm, segment, state, layout, failed)?;
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
            let address = insert_with_maps(asm, segment, state, layout, failed)?;
            asm.bind(address);
            target(asm, at);
            asm.mov_imm(R2, size.cast_signed()).mov(R3, R0);
            asm.call(reads(user, layout.sleeps));
            asm.branch_imm(Cond::Eq, R0, 0, done);
            fault(asm, state, Fault::Read);
        }
        Fill::Elements { address, count, stride, most } => {
            asm.note(count.text.clone());
            let counted = insert_with_maps(asm, count, state, layout, failed)?;
            asm.bind(counted).load(B8, R1, R10, RECORD).store(B8, R1, at, R0);
            // If there are no elements, the address may be invalid.
            asm.branch_imm(Cond::Eq, R0, 0, done);
            let first = insert_with_maps(asm, address, state, layout, failed)?;
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
        Fill::Stack { user, skip, room } => {
            const USER_STACK: u64 = 1 << 8;
            asm.note("stack").load(B8, R1, R10, CONTEXT).load(B8, R2, R10, RECORD);
            asm.alu_imm(Alu::Add, R2, i32::from(at) + 8).mov_imm(R3, room.cast_signed());
            asm.mov_u64(Reg::R4, u64::from(*skip) | if *user { USER_STACK } else { 0 })
                .call(Helper::GetStack);
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

/// Counts a fault.
pub(super) fn fault(asm: &mut Asm, state: u32, fault: Fault) {
    let at = FAULTS.iter().position(|f| *f == fault).unwrap_or(0) as i16;
    asm.map_value(R1, STATE, state).mov_imm(R0, 1).put(insn::atomic_add(R1, 8 * at, R0));
}

/// Increments a counter of the cell at `R1`.
pub(super) fn increment(asm: &mut Asm, counter: Counter) {
    asm.mov_imm(R0, 1).put(insn::atomic_add(R1, counter.at() as i16, R0));
}
