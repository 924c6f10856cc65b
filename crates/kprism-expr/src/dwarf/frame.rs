// SPDX-License-Identifier: MIT OR Apache-2.0
//! The canonical frame address at an instruction, from `.debug_frame` or `.eh_frame`.

use std::rc::Rc;

use gimli::{BaseAddresses, CfaRule, EndianSlice, LittleEndian, UnwindContext, UnwindSection};

use crate::regs::Reg;
use crate::scope::Sym;

use super::{Debug, R};

impl<'d> Debug<'d> {
    /// How to compute the frame address at this instruction.
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
