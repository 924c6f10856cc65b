// SPDX-License-Identifier: MIT OR Apache-2.0
//! Converts DWARF expressions to locations, without running them. The stack of the DWARF machine holds symbolic
//! expressions ([`Sym`]), which are compiled later.

use std::rc::Rc;

use gimli::{AttributeValue, Expression, Operation, Reader as _, UnitOffset};

use crate::ir::{BinOp, Cond};
use crate::regs::Reg;
use crate::scope::{Location, Piece, Storage, Sym};

use super::{Debug, R, Unit};

/// Limit of an expression's operations and of the stack's depth. The input may be damaged.
const LONGEST: usize = 1000;

/// Context in which an expression is evaluated.
pub(crate) struct Context<'c, 'd> {
    pub debug: &'c Debug<'d>,
    pub file: usize,
    pub unit: &'c Unit<'d>,
    /// Address of the instruction.
    pub pc: u64,
    /// Address of the function's first instruction.
    pub entry: u64,
    /// True if the instruction is the first of its function.
    pub at_entry: bool,
    /// DW_AT_frame_base of the function.
    pub base: Option<Expression<R<'d>>>,
}

/// A value and, if it is typed, its width in bits and whether it is signed.
type Typed = (Rc<Sym>, Option<(u8, bool)>);

fn missing(why: impl Into<String>) -> Storage {
    Storage::Missing(why.into(), None)
}

impl<'d> Context<'_, 'd> {
    /// Evaluates an expression to a location.
    pub fn location(&self, expression: Expression<R<'d>>) -> Location {
        if expression.0.is_empty() {
            return Location::Whole(missing("optimised out here"));
        }
        match self.pieces(expression, 0) {
            Ok((pieces, Some(rest))) if pieces.is_empty() => Location::Whole(rest),
            Ok((pieces, _)) => Location::Pieces(pieces),
            Err(why) => Location::Whole(missing(why)),
        }
    }

    fn reg(&self, register: u16) -> Result<Rc<Sym>, String> {
        let name = || format!("in {} here, which a probe cannot read", Reg::dwarf_name(register));
        Reg::from_dwarf(register).map(|r| Rc::new(Sym::Reg(r))).ok_or_else(name)
    }

    /// Width and signedness of a base type; None for the generic type.
    fn typed(&self, base: UnitOffset) -> Result<Option<(u8, bool)>, String> {
        if base.0 == 0 {
            return Ok(None);
        }
        let entry = self.unit.entry(base).map_err(|e| e.to_string())?;
        let size = entry.attr(gimli::DW_AT_byte_size).and_then(|a| a.udata_value()).unwrap_or(0);
        let signed = match entry.attr_value(gimli::DW_AT_encoding) {
            Some(AttributeValue::Encoding(gimli::DW_ATE_signed | gimli::DW_ATE_signed_char)) => true,
            Some(AttributeValue::Encoding(
                gimli::DW_ATE_unsigned | gimli::DW_ATE_unsigned_char | gimli::DW_ATE_boolean,
            )) => false,
            _ => return Err("computed with floating-point numbers here".to_owned()),
        };
        match size {
            1 | 2 | 4 | 8 => Ok(Some((size as u8 * 8, signed))),
            _ => Err(format!("computed with {size}-byte numbers here")),
        }
    }

    fn wrap((sym, ty): Typed) -> Typed {
        match ty {
            Some((bits, signed)) if bits < 64 => (Rc::new(Sym::Ext(sym, bits, signed)), ty),
            _ => (sym, ty),
        }
    }

    /// Evaluates an expression. Returns its pieces, and the location after the last piece if there is one.
    fn pieces(
        &self,
        expression: Expression<R<'d>>,
        depth: usize,
    ) -> Result<(Vec<Piece>, Option<Storage>), String> {
        let broken = |e: gimli::Error| format!("described by a broken expression: {e}");
        let mut stack: Vec<Typed> = Vec::new();
        let mut pieces = Vec::new();
        let mut done: Option<Storage> = None;
        let mut operations = expression.operations(self.unit.encoding());
        let mut steps = 0;
        while let Some(operation) = operations.next().map_err(broken)? {
            steps += 1;
            if steps > LONGEST {
                return Err("described by an expression too long to follow".to_owned());
            }
            match operation {
                Operation::Register { register } => {
                    done = Some(match self.reg(register.0) {
                        Ok(sym) => Storage::Value(sym),
                        Err(why) => missing(why),
                    });
                }
                Operation::StackValue => {
                    let (sym, _) = stack.pop().ok_or("described by an expression without a value")?;
                    done = Some(Storage::Value(sym));
                }
                Operation::ImplicitValue { data } => {
                    done = Some(Storage::Bytes(data.to_slice().map_err(broken)?.into_owned()));
                }
                Operation::ImplicitPointer { .. } => {
                    done = Some(missing("a pointer to something that is in no memory here"));
                }
                Operation::Piece { size_in_bits, bit_offset } => {
                    let at = match (done.take(), stack.pop()) {
                        (Some(spot), _) => spot,
                        (None, Some((sym, _))) => Storage::Memory(sym),
                        (None, None) => missing("optimised out here"),
                    };
                    pieces.push(Piece { bits: size_in_bits, offset: bit_offset.unwrap_or(0), at });
                }
                operation => self.step(operation, &mut stack, depth)?,
            }
        }
        let rest = done.or_else(|| stack.pop().map(|(sym, _)| Storage::Memory(sym)));
        Ok((pieces, rest))
    }

    /// Returns the frame or stack pointer, if it is the function's frame base.
    pub fn base_register(&self) -> Option<Reg> {
        let mut operations = self.base?.operations(self.unit.encoding());
        match (operations.next(), operations.next()) {
            (Ok(Some(Operation::Register { register })), Ok(None)) => {
                Reg::from_dwarf(register.0).filter(|reg| matches!(reg, Reg::Rbp | Reg::Rsp))
            }
            _ => None,
        }
    }

    /// Returns the value that a register has in the function's body. In the prologue and where arguments are pushed it
    /// follows from the frame address.
    fn in_body(&self, register: Reg) -> Result<Rc<Sym>, String> {
        let own = Rc::new(Sym::Reg(register));
        match self.debug.cfa_distance(register, self.entry) {
            Some(distance) if self.debug.cfa_by(self.pc) != Some((register, distance)) => {
                Ok(self.debug.cfa(self.pc)?.plus(distance.wrapping_neg() as u64))
            }
            _ => Ok(own),
        }
    }

    /// Returns an expression's distance from the frame address, if it begins with an offset in the frame. Not below 0, it
    /// is in the caller's frame: an argument on the stack, which is there before the first instruction.
    pub fn frame_address_distance(&self, expression: Expression<R<'d>>) -> Option<i64> {
        let Ok(Some(Operation::FrameOffset { offset })) = expression.operations(self.unit.encoding()).next()
        else {
            return None;
        };
        if let Some(register) = self.base_register() {
            return offset.checked_sub(self.debug.cfa_distance(register, self.entry)?);
        }
        let mut base = self.base?.operations(self.unit.encoding());
        matches!((base.next(), base.next()), (Ok(Some(Operation::CallFrameCFA)), Ok(None))).then_some(offset)
    }

    fn step(&self, operation: Operation<R<'d>>, stack: &mut Vec<Typed>, depth: usize) -> Result<(), String> {
        let empty = || "described by an expression that uses what it has not".to_owned();
        let constant = |n: u64| (Rc::new(Sym::Const(n)), None);
        let value = match operation {
            Operation::Nop | Operation::Uninitialized => return Ok(()),
            Operation::UnsignedConstant { value } => constant(value),
            Operation::SignedConstant { value } => constant(value as u64),
            Operation::Address { address } => (Rc::new(Sym::Address(address)), None),
            Operation::AddressIndex { index } | Operation::ConstantIndex { index } => {
                let dwarf = &self.debug.parts[self.file].dwarf;
                let address = dwarf.address(self.unit, index).map_err(|e| e.to_string())?;
                (Rc::new(Sym::Address(address)), None)
            }
            Operation::RegisterOffset { register, offset, base_type } => {
                let sym = self.reg(register.0)?.plus(offset as u64);
                Self::wrap((sym, self.typed(base_type)?))
            }
            Operation::FrameOffset { offset } => {
                let base = self.base.filter(|_| depth < 4).ok_or("in a frame that nothing describes")?;
                let frame = match self.base_register() {
                    Some(register) => self.in_body(register)?,
                    None => match self.pieces(base, depth + 1)?.1 {
                        Some(Storage::Memory(sym) | Storage::Value(sym)) => sym,
                        _ => return Err("in a frame that nothing describes".to_owned()),
                    },
                };
                (frame.plus(offset as u64), None)
            }
            Operation::CallFrameCFA => (self.debug.cfa(self.pc)?, None),
            Operation::PlusConstant { value } => {
                let (sym, ty) = stack.pop().ok_or_else(empty)?;
                Self::wrap((sym.plus(value), ty))
            }
            Operation::Deref { base_type, size, space: false } => {
                let (sym, _) = stack.pop().ok_or_else(empty)?;
                if !matches!(size, 1 | 2 | 4 | 8) {
                    return Err(format!("described through a number of {size} bytes"));
                }
                Self::wrap((Rc::new(Sym::Deref(sym, size)), self.typed(base_type)?))
            }
            Operation::Drop => {
                stack.pop().ok_or_else(empty)?;
                return Ok(());
            }
            Operation::Pick { index } => {
                let at = stack.len().checked_sub(usize::from(index) + 1).ok_or_else(empty)?;
                stack[at].clone()
            }
            Operation::Swap => {
                let (b, a) = (stack.pop().ok_or_else(empty)?, stack.pop().ok_or_else(empty)?);
                stack.push(b);
                a
            }
            Operation::Rot => {
                let at = stack.len().checked_sub(3).ok_or_else(empty)?;
                let top = stack.pop().ok_or_else(empty)?;
                stack.insert(at, top);
                return Ok(());
            }
            Operation::Abs => {
                let (a, ty) = stack.pop().ok_or_else(empty)?;
                let sign = Rc::new(Sym::Bin(BinOp::Sar, a.clone(), Rc::new(Sym::Const(63))));
                let flipped = Rc::new(Sym::Bin(BinOp::Xor, a, sign.clone()));
                Self::wrap((Rc::new(Sym::Bin(BinOp::Sub, flipped, sign)), ty))
            }
            Operation::Neg => {
                let (a, ty) = stack.pop().ok_or_else(empty)?;
                Self::wrap((Rc::new(Sym::Bin(BinOp::Sub, Rc::new(Sym::Const(0)), a)), ty))
            }
            Operation::Not => {
                let (a, ty) = stack.pop().ok_or_else(empty)?;
                Self::wrap((Rc::new(Sym::Bin(BinOp::Xor, a, Rc::new(Sym::Const(u64::MAX)))), ty))
            }
            Operation::Convert { base_type } | Operation::Reinterpret { base_type } => {
                let (a, _) = stack.pop().ok_or_else(empty)?;
                Self::wrap((a, self.typed(base_type)?))
            }
            Operation::TypedLiteral { base_type, value } => {
                let bytes = value.to_slice().map_err(|e| e.to_string())?;
                let mut number = [0; 8];
                let n = bytes.len().min(8);
                number[..n].copy_from_slice(&bytes[..n]);
                Self::wrap((Rc::new(Sym::Const(u64::from_le_bytes(number))), self.typed(base_type)?))
            }
            Operation::EntryValue { expression } => self.at_entry(Expression(expression))?,
            Operation::TLS => return Err("thread-local, which a probe cannot find".to_owned()),
            Operation::ParameterRef { .. } | Operation::Call { .. } | Operation::VariableValue { .. } => {
                return Err("described by the caller's debug information".to_owned());
            }
            Operation::Bra { .. } | Operation::Skip { .. } => {
                return Err("described by an expression with branches".to_owned());
            }
            operation => {
                let (b, a) = (stack.pop().ok_or_else(empty)?, stack.pop().ok_or_else(empty)?);
                Self::binary(operation, a, b)?
            }
        };
        if stack.len() > LONGEST {
            return Err("described by an expression too long to follow".to_owned());
        }
        stack.push(value);
        Ok(())
    }

    fn binary(operation: Operation<R<'d>>, (a, ty): Typed, (b, _): Typed) -> Result<Typed, String> {
        let signed = ty.is_none_or(|t| t.1);
        let (less, at_most) = if signed { (Cond::Slt, Cond::Sle) } else { (Cond::Ult, Cond::Ule) };
        let compared = |cond, a: Rc<Sym>, b: Rc<Sym>| Ok((Rc::new(Sym::Cmp(cond, a, b)), None));
        let op = match operation {
            Operation::Plus => BinOp::Add,
            Operation::Minus => BinOp::Sub,
            Operation::Mul => BinOp::Mul,
            Operation::Div if signed => BinOp::SDiv,
            Operation::Div => BinOp::UDiv,
            // For the generic type, remainders are unsigned and quotients are signed (DWARF 5, 2.5.1.4).
            Operation::Mod if ty.is_some_and(|t| t.1) => BinOp::SRem,
            Operation::Mod => BinOp::URem,
            Operation::And => BinOp::And,
            Operation::Or => BinOp::Or,
            Operation::Xor => BinOp::Xor,
            Operation::Shl => BinOp::Shl,
            Operation::Shr => {
                // A narrow number must be zero-extended before a logical shift.
                let a = match ty {
                    Some((bits, true)) if bits < 64 => Rc::new(Sym::Ext(a, bits, false)),
                    _ => a,
                };
                return Ok(Self::wrap((Rc::new(Sym::Bin(BinOp::Shr, a, b)), ty)));
            }
            Operation::Shra => BinOp::Sar,
            Operation::Eq => return compared(Cond::Eq, a, b),
            Operation::Ne => return compared(Cond::Ne, a, b),
            Operation::Lt => return compared(less, a, b),
            Operation::Le => return compared(at_most, a, b),
            Operation::Gt => return compared(less, b, a),
            Operation::Ge => return compared(at_most, b, a),
            _ => return Err("described in a way that a probe cannot follow".to_owned()),
        };
        if let (BinOp::Add, Sym::Const(n)) = (op, &*b) {
            return Ok(Self::wrap((a.plus(*n), ty)));
        }
        Ok(Self::wrap((Rc::new(Sym::Bin(op, a, b)), ty)))
    }

    /// Evaluates DW_OP_entry_value of a register. At the function's first instruction it is the register itself,
    /// elsewhere the value that a paired probe saved.
    fn at_entry(&self, expression: Expression<R<'d>>) -> Result<Typed, String> {
        let refused = "a value of the function's entry that no register had".to_owned();
        let mut operations = expression.operations(self.unit.encoding());
        match (operations.next(), operations.next()) {
            (Ok(Some(Operation::Register { register })), Ok(None)) => match Reg::from_dwarf(register.0) {
                Some(reg) if self.at_entry => Ok((Rc::new(Sym::Reg(reg)), None)),
                Some(reg) => Ok((Rc::new(Sym::Entry(reg)), None)),
                None => Err(refused),
            },
            _ => Err(refused),
        }
    }
}
