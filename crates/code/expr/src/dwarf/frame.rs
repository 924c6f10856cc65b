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
        let bases = BaseAddresses::default()
            .set_eh_frame(image.section_address(".eh_frame"))
            .set_text(image.section_address(".text"))
            .set_got(image.section_address(".got"));
        let mut debug = gimli::DebugFrame::new(image.section(".debug_frame"), LittleEndian);
        debug.set_address_size(8);
        let mut eh = gimli::EhFrame::new(image.section(".eh_frame"), LittleEndian);
        eh.set_address_size(8);
        if let Some(found) = cfa_in(&debug, &bases, pc).or_else(|| cfa_in(&eh, &bases, pc)) {
            return found;
        }
        Err(format!("nothing says where the frame is at {pc:#x} (.debug_frame, .eh_frame)"))
    }
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
