// SPDX-License-Identifier: MIT OR Apache-2.0
//! Computes the canonical frame address at an instruction, from `.debug_frame` or `.eh_frame`.

use std::collections::BTreeMap;
use std::rc::Rc;

use gimli::{BaseAddresses, CfaRule, EndianSlice, LittleEndian, RegisterRule, UnwindContext, UnwindSection};

use crate::ir::Space;
use crate::regs::Reg;
use crate::scope::{Callers, ProbePoint, Sym};

use super::{Debug, R};

impl<'d> Debug<'d> {
    /// Returns the frame address at a position in a function. `pc` is the instruction.
    pub(super) fn frame_at(&self, moment: ProbePoint, pc: u64) -> Result<Rc<Sym>, String> {
        match moment {
            ProbePoint::Entry => Ok(Rc::new(Sym::Reg(Reg::Rsp)).plus(8)),
            // The return instruction has popped the return address.
            ProbePoint::Return => Ok(Rc::new(Sym::Reg(Reg::Rsp))),
            ProbePoint::Inside => self.cfa(pc),
        }
    }

    /// Returns how the callers of a position are found. `pc` is the instruction.
    pub(super) fn callers_at(&self, space: Space, moment: ProbePoint, pc: u64) -> Callers {
        match space {
            Space::Kernel => Callers::of_registers(moment),
            Space::User => Callers::in_program(moment, self.frame_at(moment, pc).ok()),
        }
    }

    /// Returns the code of a function, if it is this program's; the kernel's is known to the kernel alone.
    pub(super) fn code_in(&self, space: Space, function: &str) -> Result<Option<Vec<(u64, u32)>>, String> {
        match space {
            Space::Kernel => Ok(None),
            Space::User => self.code_of(function).map(Some),
        }
    }

    /// Returns the expression for the frame address at this instruction.
    pub(crate) fn cfa(&self, pc: u64) -> Result<Rc<Sym>, String> {
        let image = self.image;
        let bases = bases(image);
        let (debug, eh) = sections(image);
        if let Some(found) = cfa_in(&debug, &bases, pc).or_else(|| cfa_in(&eh, &bases, pc)) {
            return found;
        }
        Err(format!("nothing says where the frame is at {pc:#x} (.debug_frame, .eh_frame)"))
    }
}

/// The frame address at an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct CfaRow {
    register: Reg,
    offset: i64,
    start: u64,
    end: u64,
}

impl Debug<'_> {
    /// Returns the distance from this register's value in the function's body to the frame address, in bytes. DWARF's
    /// frame base and locations relative to the stack pointer mean the register as it is there: not before the prologue
    /// has set it, and not while arguments are pushed. `None` if the frame address is never found by this register.
    pub(crate) fn cfa_distance(&self, register: Reg, function: u64) -> Option<i64> {
        let mut rows = self.cfa_rows(function);
        rows.retain(|row| row.register == register);
        // Behind the entry and before the return nothing but the return address is on the stack.
        if rows.iter().any(|row| row.offset > 8) {
            rows.retain(|row| row.offset > 8);
        }
        let mut bytes: BTreeMap<i64, u64> = BTreeMap::new();
        rows.iter()
            .for_each(|row| *bytes.entry(row.offset).or_default() += row.end.saturating_sub(row.start));
        bytes.into_iter().max_by_key(|(_, n)| *n).map(|(offset, _)| offset)
    }

    /// Returns the register by which the frame address is found at an instruction, and the distance to it in bytes.
    pub(crate) fn cfa_by(&self, pc: u64) -> Option<(Reg, i64)> {
        let row = self.cfa_rows(pc).into_iter().find(|row| (row.start..row.end).contains(&pc))?;
        Some((row.register, row.offset))
    }

    /// Returns the instructions of the function around an address at which the frame address is at a distance from a
    /// register.
    fn cfa_rows(&self, function: u64) -> Vec<CfaRow> {
        let image = self.image;
        let bases = bases(image);
        let (debug, eh) = sections(image);
        let found = cfa_rows_in(&debug, &bases, function);
        if found.is_empty() { cfa_rows_in(&eh, &bases, function) } else { found }
    }
}

fn bases(image: &kprism_debuginfo::Image) -> BaseAddresses {
    BaseAddresses::default()
        .set_eh_frame(image.section_address(".eh_frame"))
        .set_text(image.section_address(".text"))
        .set_got(image.section_address(".got"))
}

fn sections(image: &kprism_debuginfo::Image) -> (gimli::DebugFrame<R<'_>>, gimli::EhFrame<R<'_>>) {
    let mut debug = gimli::DebugFrame::new(image.section(".debug_frame"), LittleEndian);
    debug.set_address_size(8);
    let mut eh = gimli::EhFrame::new(image.section(".eh_frame"), LittleEndian);
    eh.set_address_size(8);
    (debug, eh)
}

fn cfa_rows_in<'d, S: UnwindSection<R<'d>>>(section: &S, bases: &BaseAddresses, function: u64) -> Vec<CfaRow>
where
    S::Offset: gimli::UnwindOffset<usize>,
{
    let mut found = Vec::new();
    let Ok(fde) = section.fde_for_address(bases, function, S::cie_from_offset) else { return found };
    let mut context = UnwindContext::new();
    let Ok(mut rows) = fde.rows(section, bases, &mut context) else { return found };
    while let Ok(Some(row)) = rows.next_row() {
        let CfaRule::RegisterAndOffset { register, offset } = *row.cfa() else { continue };
        let Some(register) = Reg::from_dwarf(register.0) else { continue };
        found.push(CfaRow { register, offset, start: row.start_address(), end: row.end_address() });
    }
    found
}

/// A function's stack frame after its prologue.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Distance from the stack pointer to the frame address, in bytes.
    pub size: u64,
    /// Saved registers, with their distance from the frame address in bytes.
    pub saved: BTreeMap<Reg, i64>,
    /// An instruction at which this layout holds.
    pub pc: u64,
}

impl Debug<'_> {
    /// Returns the largest frame of the function at this address: its layout while it calls other functions.
    pub(crate) fn deepest(&self, function: u64) -> Result<Frame, String> {
        let image = self.image;
        let none = || format!("nothing describes the frame of the function at {function:#x}");
        let bases = BaseAddresses::default();
        let mut section = gimli::DebugFrame::new(image.section(".debug_frame"), LittleEndian);
        section.set_address_size(8);
        let find = gimli::DebugFrame::cie_from_offset;
        let fde = section.fde_for_address(&bases, function, find).map_err(|_| none())?;
        let mut context = UnwindContext::new();
        let mut rows = fde.rows(&section, &bases, &mut context).map_err(|_| none())?;
        let mut best = Frame::default();
        while let Some(row) = rows.next_row().map_err(|e| e.to_string())? {
            let CfaRule::RegisterAndOffset { register, offset } = row.cfa() else { continue };
            let size = u64::try_from(*offset).unwrap_or(0);
            if Reg::from_dwarf(register.0) != Some(Reg::Rsp) || size <= best.size {
                continue;
            }
            let kept = row.registers().filter_map(|(register, rule)| match rule {
                RegisterRule::Offset(at) => Some((Reg::from_dwarf(register.0)?, *at)),
                _ => None,
            });
            best = Frame { size, saved: kept.collect(), pc: row.start_address() };
        }
        best.saved.remove(&Reg::Rip);
        if best.size == 0 { Err(none()) } else { Ok(best) }
    }
}

fn cfa_in<'d, S: UnwindSection<R<'d>>>(
    section: &S,
    bases: &BaseAddresses,
    pc: u64,
) -> Option<Result<Rc<Sym>, String>>
where
    S::Offset: gimli::UnwindOffset<usize>,
{
    let mut context = UnwindContext::new();
    let row = section.unwind_info_for_address(bases, &mut context, pc, S::cie_from_offset).ok()?;
    Some(match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => match Reg::from_dwarf(register.0) {
            Some(reg) => Ok(Rc::new(Sym::Reg(reg)).plus(*offset as u64)),
            None => Err(format!("the frame is found through {}", Reg::dwarf_name(register.0))),
        },
        CfaRule::Expression(expression) => {
            let expression: Result<gimli::Expression<EndianSlice<'d, LittleEndian>>, _> =
                expression.get(section);
            match expression {
                Ok(_) => Err(format!("the frame at {pc:#x} is computed by an expression (as in a PLT)")),
                Err(e) => Err(format!("the frame at {pc:#x}: {e}")),
            }
        }
    })
}
