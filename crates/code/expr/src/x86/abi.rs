// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parameter and result passing in the System V calling convention of AMD64 (3.2.3).

use std::rc::Rc;

use crate::ctype::{Def, Member, Record, Ty, Types, resolve, size_of};
use crate::scope::{Location, Piece, Storage, Sym};
use crate::x86::regs::{ARGUMENTS, Reg};

/// Number of vector registers that hold arguments.
const VECTORS: usize = 8;

/// Largest object that is taken apart, in eightbytes: one vector of AVX-512.
const EIGHTBYTES: usize = 8;

/// Class of an eightbyte. Its register follows from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Padding, or an empty object.
    Nothing,
    /// In a general register.
    Integer,
    /// In the lowest part of a vector register.
    Sse,
    /// In the next part of the same vector register.
    SseUp,
    /// The mantissa of a `long double`.
    X87,
    /// The rest of a `long double`.
    X87Up,
    /// A `long double _Complex`.
    ComplexX87,
    /// In memory.
    Memory,
}

impl Class {
    /// Merges the classes of two fields in one eightbyte.
    fn merge(self, other: Class) -> Class {
        match (self, other) {
            (a, b) if a == b => a,
            (Class::Nothing, one) | (one, Class::Nothing) => one,
            (Class::Memory, _) | (_, Class::Memory) => Class::Memory,
            (Class::Integer, _) | (_, Class::Integer) => Class::Integer,
            (Class::X87 | Class::X87Up | Class::ComplexX87, _)
            | (_, Class::X87 | Class::X87Up | Class::ComplexX87) => Class::Memory,
            _ => Class::Sse,
        }
    }
}

/// Decides on the classes of an object of `size` bytes after its fields were merged. `None`: it is in memory.
fn settle(mut classes: Vec<Class>, size: u64) -> Option<Vec<Class>> {
    let is_vector = classes.first() == Some(&Class::Sse) && classes[1..].iter().all(|c| *c == Class::SseUp);
    if classes.contains(&Class::Memory) || (size > 16 && !is_vector) {
        return None;
    }
    for at in 0..classes.len() {
        let before = at.checked_sub(1).map(|before| classes[before]);
        match (classes[at], before) {
            (Class::X87Up, before) if before != Some(Class::X87) => return None,
            (Class::SseUp, before) if !matches!(before, Some(Class::Sse | Class::SseUp)) => {
                classes[at] = Class::Sse
            }
            _ => {}
        }
    }
    Some(classes)
}

/// The way in which an object is passed or returned, before it is known which registers are free.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Passing {
    /// An empty object: no register, no memory.
    Nothing,
    /// In the registers of these eightbytes' classes. On the stack it has the size and alignment.
    Registers { classes: Vec<Class>, size: u64, align: u64 },
    /// In memory.
    Memory { size: u64, align: u64 },
    /// By its address, in a general register.
    Reference,
}

/// A type that is no array, structure or union.
struct Scalar {
    classes: Vec<Class>,
    size: u64,
    align: u64,
}

impl Scalar {
    fn new(classes: &[Class], size: u64, align: u64) -> Self {
        Self { classes: classes.to_vec(), size, align }
    }
}

/// Returns the class of a number, pointer or vector. `Ok(None)`: the type has parts. The error is a reason why its class is
/// not known.
fn scalar(types: &dyn Types, ty: &Ty) -> Result<Option<Scalar>, String> {
    use Class::{ComplexX87, Integer, Sse, SseUp, X87, X87Up};
    if is_vector(types, ty)? {
        let size = size_of(types, ty)?.ok_or("a vector of unknown size")?;
        return match size {
            8 => Ok(Some(Scalar::new(&[Sse], 8, 8))),
            16 | 32 | 64 => {
                let mut classes = vec![SseUp; (size / 8) as usize];
                classes[0] = Sse;
                Ok(Some(Scalar { classes, size, align: size }))
            }
            _ => Err(format!("a vector of {size} bytes")),
        };
    }
    let def = resolve(types, ty)?;
    Ok(Some(match &def {
        Def::Plain(Ty::Int(int)) => Scalar::new(&[Integer], int.size.into(), int.size.into()),
        Def::Enum(of) => Scalar::new(&[Integer], of.int.size.into(), of.int.size.into()),
        // The only object of a type without a name for its contents is a null pointer of C++.
        Def::Plain(Ty::Ptr(_) | Ty::Void) | Def::Reference(_) => Scalar::new(&[Integer], 8, 8),
        Def::Float(_, size @ (2 | 4 | 8)) => Scalar::new(&[Sse], *size, *size),
        Def::Float(name, 16) if name == "long double" => Scalar::new(&[X87, X87Up], 16, 16),
        Def::Float(name, 16) if name.contains("128") => Scalar::new(&[Sse, SseUp], 16, 16),
        Def::Wide(name, size @ (4 | 8)) if name.starts_with("_Decimal") => Scalar::new(&[Sse], *size, *size),
        Def::Wide(name, 16) if name.starts_with("_Decimal") => Scalar::new(&[Sse, SseUp], 16, 16),
        Def::Wide(name, 8) if name.contains("member") => Scalar::new(&[Integer], 8, 8),
        Def::Wide(name, 16) if name.contains("member") => Scalar::new(&[Integer; 2], 16, 8),
        Def::Wide(name, 16) if is_int128(name) => Scalar::new(&[Integer; 2], 16, 16),
        Def::Wide(name, 8) if name.contains("omplex") => Scalar::new(&[Sse], 8, 4),
        Def::Wide(name, 16) if name.contains("omplex") && !name.contains("int") => {
            Scalar::new(&[Sse; 2], 16, 8)
        }
        Def::Wide(name, 32) if name.contains("omplex") && !name.contains("128") => {
            Scalar::new(&[ComplexX87, ComplexX87, ComplexX87, ComplexX87], 32, 16)
        }
        Def::Plain(Ty::Array(..)) | Def::Record(_) => return Ok(None),
        Def::Float(name, size) | Def::Wide(name, size) => return Err(format!("`{name}` of {size} bytes")),
        _ => return Err("a type whose description is not understood".to_owned()),
    }))
}

/// Returns true for the names that compilers give 128-bit integers.
fn is_int128(name: &str) -> bool {
    name.contains("__int128") || matches!(name, "i128" | "u128")
}

/// Returns true for a vector of SIMD numbers. Debug information describes it as an array.
fn is_vector(types: &dyn Types, ty: &Ty) -> Result<bool, String> {
    let mut ty = ty.clone();
    for _ in 0..64 {
        let Ty::Ref(r) = ty else { return Ok(false) };
        if types.is_vector(r) {
            return Ok(true);
        }
        match types.get(r)? {
            Def::Alias(_, to) => ty = to,
            _ => return Ok(false),
        }
    }
    Ok(false)
}

/// The eightbytes of an object, while its fields are merged.
struct Eightbytes<'t> {
    types: &'t dyn Types,
    classes: Vec<Class>,
    /// The strictest alignment of a field.
    align: u64,
    /// Number of fields that were seen; damaged debug information may have any.
    steps: usize,
}

impl Eightbytes<'_> {
    /// Merges an object at this offset, in bytes.
    fn add(&mut self, ty: &Ty, offset: u64, depth: usize) -> Result<(), String> {
        self.steps += 1;
        if depth > 16 || self.steps > 1000 {
            return Err("a type whose description is too long".to_owned());
        }
        if is_nothing(self.types, ty) {
            return Err("an object with a `nullptr_t`, which not all compilers pass in a register".to_owned());
        }
        if let Some(scalar) = scalar(self.types, ty)? {
            self.align = self.align.max(scalar.align);
            // An unaligned field puts the whole object in memory.
            if !offset.is_multiple_of(scalar.align) {
                return self.merge(offset, offset + scalar.size, |_| Class::Memory);
            }
            return self.merge(offset, offset + scalar.size, |at| scalar.classes[at]);
        }
        match resolve(self.types, ty)? {
            Def::Plain(Ty::Array(of, count)) => {
                let each = size_of(self.types, &of)?.ok_or("an array of objects of unknown size")?;
                // The last member of a structure may have any number of elements: none is part of the structure.
                for n in 0..count.unwrap_or(0) {
                    if each == 0 {
                        break;
                    }
                    self.add(&of, offset + n * each, depth + 1)?;
                }
                Ok(())
            }
            Def::Record(record) => self.record(&record, offset, depth),
            _ => Err("a type whose description is not understood".to_owned()),
        }
    }

    fn record(&mut self, record: &Record, offset: u64, depth: usize) -> Result<(), String> {
        if record.declared {
            return Err("an object of a type that is only declared here".to_owned());
        }
        if record.choice.is_some() {
            return Err("an enumeration with data".to_owned());
        }
        self.align = self.align.max(record.align.unwrap_or(1));
        for member in &record.members {
            self.member(member, offset, depth)?;
        }
        Ok(())
    }

    fn member(&mut self, member: &Member, offset: u64, depth: usize) -> Result<(), String> {
        match member.bits {
            None => self.add(&member.ty, offset.saturating_add(member.offset / 8), depth + 1),
            // A bit-field without a name is padding.
            Some(_) if member.name.is_none() => Ok(()),
            Some(bits) => {
                if let Some(scalar) = scalar(self.types, &member.ty)? {
                    self.align = self.align.max(scalar.align);
                }
                let first = offset.saturating_mul(8).saturating_add(member.offset);
                let end = first.saturating_add(bits.into()).div_ceil(8);
                self.merge(first / 8, end, |_| Class::Integer)
            }
        }
    }

    /// Merges the classes of the bytes from `start` to `end`.
    fn merge(&mut self, start: u64, end: u64, class: impl Fn(usize) -> Class) -> Result<(), String> {
        let first = (start / 8) as usize;
        for at in first..end.div_ceil(8) as usize {
            let own = self.classes.get_mut(at).ok_or("an object with a field outside of it")?;
            *own = own.merge(class(at - first));
        }
        Ok(())
    }
}

/// Returns the way in which an object of the type is passed. The error is a reason why it is not known.
fn passing(types: &dyn Types, ty: &Ty) -> Result<Passing, String> {
    if let Some(Scalar { classes, size, align }) = scalar(types, ty)? {
        return Ok(match classes[..] {
            [Class::X87 | Class::ComplexX87, ..] => Passing::Registers { classes, size, align },
            _ => match settle(classes, size) {
                Some(classes) => Passing::Registers { classes, size, align },
                None => Passing::Memory { size, align },
            },
        });
    }
    let Def::Record(record) = resolve(types, ty)? else {
        return Err("an array by value".to_owned());
    };
    if record.declared {
        return Err("an object of a type that is only declared here".to_owned());
    }
    if record.by_reference {
        return Ok(Passing::Reference);
    }
    let count = record.size.div_ceil(8) as usize;
    // Larger objects are in memory whatever their fields are; only the alignment follows from them.
    let counted = count.min(record.size.min(1 << 16).div_ceil(8) as usize);
    let mut all = Eightbytes { types, classes: vec![Class::Nothing; counted], align: 1, steps: 0 };
    let (size, whole) = (record.size, all.record(&record, 0, 0));
    if count > EIGHTBYTES {
        // A field may have been left out: then the alignment may be stricter than what was seen.
        return whole.map(|()| Passing::Memory { size, align: all.align });
    }
    whole?;
    let align = all.align;
    if all.classes.iter().all(|class| *class == Class::Nothing) {
        return match is_empty(types, &record, 0) {
            true => Ok(Passing::Nothing),
            false => Err("an object of padding alone".to_owned()),
        };
    }
    Ok(match settle(all.classes, size) {
        Some(classes) => Passing::Registers { classes, size, align },
        None => Passing::Memory { size, align },
    })
}

/// Returns true for an object without any data: in C++ it has a size of one byte, or more if it has several bases.
fn is_empty(types: &dyn Types, record: &Record, depth: usize) -> bool {
    depth < 16
        && record.members.iter().all(|member| match resolve(types, &member.ty) {
            Ok(Def::Record(inner)) => member.bits.is_none() && is_empty(types, &inner, depth + 1),
            _ => false,
        })
}

fn value(reg: Reg) -> Storage {
    Storage::Value(Rc::new(Sym::Reg(reg)))
}

fn unreadable(why: &str) -> Storage {
    Storage::Missing(why.to_owned(), None)
}

/// Returns the location of an object in registers. `general` are the general registers that its eightbytes take in order.
fn in_registers(classes: &[Class], general: &[Reg], vector: &str) -> Location {
    let mut general = general.iter();
    let mut spots: Vec<Storage> = classes
        .iter()
        .map(|class| match class {
            Class::Integer => general.next().map_or_else(|| unreadable("nowhere"), |reg| value(*reg)),
            Class::Nothing => unreadable("padding, which is nowhere"),
            Class::Sse | Class::SseUp => unreadable(vector),
            Class::X87 | Class::X87Up | Class::ComplexX87 | Class::Memory => {
                unreadable("in an x87 register, which a probe cannot read")
            }
        })
        .collect();
    let is_vector = classes.iter().all(|class| matches!(class, Class::Sse | Class::SseUp));
    let is_x87 = matches!(classes.first(), Some(Class::X87 | Class::ComplexX87));
    match spots.len() {
        1 => Location::Whole(spots.swap_remove(0)),
        _ if is_vector || is_x87 => Location::Whole(spots.swap_remove(0)),
        _ => Location::Pieces(spots.into_iter().map(|at| Piece { bits: 64, offset: 0, at }).collect()),
    }
}

fn count(classes: &[Class], wanted: Class) -> usize {
    classes.iter().filter(|class| **class == wanted).count()
}

/// Registers and bytes of the stack that the arguments so far have taken.
struct Taken {
    general: usize,
    vectors: usize,
    /// Null pointers of C++ (`nullptr_t`) among them.
    nulls: usize,
    /// Bytes on the stack; the error is a reason why they are not known.
    stack: Result<u64, String>,
}

impl Taken {
    /// Takes a place on the stack, and returns its address.
    fn on_stack(&mut self, size: u64, align: u64) -> Result<Rc<Sym>, String> {
        let taken = self.stack.clone()?;
        // The frame address has an alignment of 16 bytes. A stricter one moves the arguments by what cannot be known.
        if align > 16 {
            let why = format!("on the stack, as an object that is aligned to {align} bytes is");
            self.stack = Err(why.clone());
            return Err(why);
        }
        let at = taken.next_multiple_of(align.max(8));
        self.stack = Ok(at.saturating_add(size.div_ceil(8).saturating_mul(8)));
        // The first stack argument is above the return address.
        Ok(Rc::new(Sym::Reg(Reg::Rsp)).plus(at.saturating_add(8)))
    }

    /// Returns the reason why compilers pass an object in different ways.
    fn unlike(&self, passing: &Passing) -> Result<(), String> {
        let Passing::Registers { classes, align, .. } = passing else { return Ok(()) };
        let general = count(classes, Class::Integer);
        if self.general + general <= ARGUMENTS.len() {
            return Ok(());
        }
        // clang before 18 does not align it, and splits it between a register and the stack.
        if general == 2 && *align == 16 {
            return Err("a 128-bit number on the stack, which compilers align differently".to_owned());
        }
        // clang does not count the register of a null pointer, and splits the object likewise.
        if classes.len() > 1 && self.general + general <= ARGUMENTS.len() + self.nulls {
            return Err("an object behind a `nullptr_t`, whose register not all compilers count".to_owned());
        }
        Ok(())
    }

    fn pass(&mut self, passing: Passing) -> Result<Location, String> {
        const VECTOR: &str = "passed in a vector register, which a probe cannot read";
        let memory = |at| Location::Whole(Storage::Memory(at));
        match passing {
            Passing::Nothing => Ok(Location::Whole(unreadable("an empty object, which is passed nowhere"))),
            Passing::Reference if self.general < ARGUMENTS.len() => {
                self.general += 1;
                Ok(memory(Rc::new(Sym::Reg(ARGUMENTS[self.general - 1]))))
            }
            Passing::Reference => self.on_stack(8, 8).map(|at| memory(Rc::new(Sym::Deref(at, 8)))),
            Passing::Memory { size, align } => self.on_stack(size, align).map(memory),
            Passing::Registers { classes, size, align } => {
                let (general, vectors) = (count(&classes, Class::Integer), count(&classes, Class::Sse));
                if matches!(classes[0], Class::X87 | Class::ComplexX87) {
                    return self.on_stack(size, align).map(memory);
                }
                // Without AVX such a vector is on the stack, and debug information does not say which it is.
                if size > 16 {
                    self.stack = Err("on the stack, where a vector of AVX may be too".to_owned());
                    self.vectors += vectors;
                    return Ok(Location::Whole(unreadable(VECTOR)));
                }
                if self.general + general <= ARGUMENTS.len() && self.vectors + vectors <= VECTORS {
                    let regs = &ARGUMENTS[self.general..self.general + general];
                    self.general += general;
                    self.vectors += vectors;
                    return Ok(in_registers(&classes, regs, VECTOR));
                }
                self.on_stack(size, align).map(memory)
            }
        }
    }
}

/// Returns the location of each parameter at the function's first instruction. An error is a reason why it is not known.
pub(crate) fn parameters(types: &dyn Types, returned: &Ty, all: &[Ty]) -> Vec<Result<Location, String>> {
    // A result returned in memory takes the first argument register for its address.
    let hidden = match is_nothing(types, returned) {
        true => Ok(0),
        false => passing(types, returned).and_then(|passing| match passing {
            Passing::Memory { .. } | Passing::Reference => Ok(1),
            Passing::Registers { size, classes, .. } if size > 16 && classes[0] == Class::Sse => {
                Err("the result is a vector of AVX".to_owned())
            }
            Passing::Registers { .. } | Passing::Nothing => Ok(0),
        }),
    };
    let mut taken = hidden.map(|general| Taken { general, vectors: 0, nulls: 0, stack: Ok(0) });
    let mut out = Vec::new();
    for ty in all {
        let found = taken.as_mut().map_err(|why| why.clone()).and_then(|taken| {
            let passing = passing(types, ty)?;
            taken.unlike(&passing)?;
            taken.nulls += usize::from(is_nothing(types, ty));
            Ok(taken.pass(passing))
        });
        out.push(match found {
            Ok(found) => found,
            // The registers of all later parameters are unknown too.
            Err(why) => {
                taken = Err(why.clone());
                Err(why)
            }
        });
    }
    out
}

fn is_nothing(types: &dyn Types, ty: &Ty) -> bool {
    matches!(resolve(types, ty), Ok(Def::Plain(Ty::Void)))
}

/// Returns the location of the result after the function returned. The error is a reason why it is not known.
pub(crate) fn returned(types: &dyn Types, ty: &Ty) -> Result<Location, String> {
    Ok(match passing(types, ty)? {
        Passing::Registers { size, classes, .. } if size > 16 && classes[0] == Class::Sse => {
            Location::Whole(unreadable("returned in a vector register, which a probe cannot read"))
        }
        Passing::Registers { classes, .. } => in_registers(
            &classes,
            &[Reg::Rax, Reg::Rdx],
            "returned in a vector register, which a probe cannot read",
        ),
        Passing::Memory { .. } | Passing::Reference => {
            Location::Whole(Storage::Memory(Rc::new(Sym::Reg(Reg::Rax))))
        }
        Passing::Nothing => Location::Whole(unreadable("an empty object, which is returned nowhere")),
    })
}

/// Returns a location, or a missing one with the reason.
pub(crate) fn or_missing(found: Result<Location, String>, help: Option<String>) -> Location {
    let missing =
        |why| Location::Whole(Storage::Missing(format!("passed in a way that is not known: {why}"), help));
    found.unwrap_or_else(missing)
}

/// Returns the location of the object whose address is at `location`.
pub(crate) fn behind(location: Location) -> Location {
    let spot = match location {
        Location::Whole(Storage::Value(address)) => Storage::Memory(address),
        Location::Whole(Storage::Memory(at)) => Storage::Memory(Rc::new(Sym::Deref(at, 8))),
        other => return other,
    };
    Location::Whole(spot)
}

/// Returns true for types that take at most one register, general or vector. Languages with a calling convention of their own pass these
/// as C does.
pub(crate) fn is_single(types: &dyn Types, ty: &Ty) -> bool {
    matches!(
        resolve(types, ty),
        Ok(Def::Plain(Ty::Int(_) | Ty::Ptr(_) | Ty::Void)
            | Def::Enum(_)
            | Def::Reference(_)
            | Def::Float(_, 4 | 8))
    )
}

/// Converts a parameter's location at entry to its location after the return. Argument registers become the values that
/// a paired probe saved at entry.
pub(crate) fn after_return(location: Location) -> Location {
    let spot = |spot| match spot {
        Storage::Value(sym) => match *sym {
            Sym::Reg(reg) => Storage::Value(Rc::new(Sym::Entry(reg))),
            Sym::Const(_) => Storage::Value(sym),
            _ => Storage::Missing("known only where the function begins".to_owned(), None),
        },
        // An object passed by address exists for as long as the call.
        Storage::Memory(sym) if matches!(*sym, Sym::Reg(reg) if reg != Reg::Rsp) => match *sym {
            Sym::Reg(reg) => Storage::Memory(Rc::new(Sym::Entry(reg))),
            _ => Storage::Memory(sym),
        },
        Storage::Memory(_) => {
            Storage::Missing("passed in memory, which the function may have changed".to_owned(), None)
        }
        other => other,
    };
    match location {
        Location::Whole(at) => Location::Whole(spot(at)),
        Location::Pieces(mut pieces) => {
            for piece in &mut pieces {
                piece.at = spot(piece.at.clone());
            }
            Location::Pieces(pieces)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Class::{ComplexX87, Integer, Memory, Nothing, Sse, SseUp, X87, X87Up};
    use super::*;

    #[test]
    fn fields_of_one_eightbyte_are_merged() {
        let all = [Nothing, Integer, Sse, SseUp, X87, X87Up, ComplexX87, Memory];
        for class in all {
            assert_eq!(
                (class.merge(class), class.merge(Nothing), Nothing.merge(class)),
                (class, class, class)
            );
            assert_eq!((class.merge(Memory), Memory.merge(class)), (Memory, Memory));
        }
        for (a, b, merged) in [
            (Integer, Sse, Integer),
            (Integer, X87, Integer),
            (Sse, SseUp, Sse),
            (Sse, X87, Memory),
            (X87, X87Up, Memory),
            (SseUp, ComplexX87, Memory),
        ] {
            assert_eq!((a.merge(b), b.merge(a)), (merged, merged), "{a:?} {b:?}");
        }
    }

    #[test]
    fn objects_are_in_registers_or_in_memory() {
        for (classes, size, settled) in [
            (vec![Integer, Sse], 16, Some(vec![Integer, Sse])),
            (vec![Integer, Memory], 16, None),
            (vec![Integer, Integer, Integer], 24, None),
            (vec![Sse, SseUp, SseUp, SseUp], 32, Some(vec![Sse, SseUp, SseUp, SseUp])),
            (vec![Sse, Sse, Sse, Sse], 32, None),
            (vec![X87, X87Up], 16, Some(vec![X87, X87Up])),
            (vec![Integer, X87Up], 16, None),
            (vec![Integer, SseUp], 16, Some(vec![Integer, Sse])),
        ] {
            assert_eq!(settle(classes.clone(), size), settled, "{classes:?}");
        }
    }
}
