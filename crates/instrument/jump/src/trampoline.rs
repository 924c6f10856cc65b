// SPDX-License-Identifier: MIT OR Apache-2.0
//! A condition and the instructions that a jump replaces → the bytes of a trampoline.

use iced_x86::IcedError;
use iced_x86::code_asm::{CodeAssembler, dword_ptr, qword_ptr, rax, rcx, rdx, rsp};

use crate::displace::{Displaced, JUMP};
use crate::native::{Exits, Native, RED_ZONE, Saved};

/// Number of counters of a trampoline, a power of two. Threads count in different ones: their stacks are apart.
pub const COUNTERS: usize = 64;
/// Distance from a counter to the next, bytes: a cache line.
pub const APART: usize = 64;

/// Addresses of a trampoline in the process, and of the words that it reads and writes there.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// The place in the code.
    pub place: u64,
    /// The trampoline's first byte.
    pub code: u64,
    /// The first of [`COUNTERS`] counters of hits whose condition was false.
    pub counters: u64,
    /// A word that is 0 as long as hits do not count.
    pub on: u64,
}

/// A trampoline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trampoline {
    /// Its code.
    pub code: Vec<u8>,
    /// Offset of the no-op for the uprobe, reached when the condition is true. One byte: the kernel replaces a no-op of five bytes
    /// by a call, which would overwrite the red zone.
    pub nop: usize,
}

/// Assembles a trampoline.
///
/// # Errors
/// The reason why the instructions cannot be moved there.
pub fn trampoline(native: &Native<'_>, displaced: &Displaced, at: Addresses) -> Result<Trampoline, String> {
    assemble(native, displaced, at).map_err(|error| format!("the instructions cannot be moved: {error}"))
}

fn assemble(native: &Native<'_>, displaced: &Displaced, at: Addresses) -> Result<Trampoline, IcedError> {
    let mut asm = CodeAssembler::new(64)?;
    let mut no = asm.create_label();
    let mut slow = asm.create_label();
    let mut back = asm.create_label();
    let mut off = asm.create_label();
    let values = native.stack();
    const RED: i32 = RED_ZONE as i32;
    // Not `sub`: the flags are not saved yet.
    asm.lea(rsp, qword_ptr(rsp - RED))?;
    asm.pushfq()?;
    asm.push(rax)?;
    asm.push(rcx)?;
    asm.push(rdx)?;
    asm.mov(rax, at.on)?;
    asm.cmp(dword_ptr(rax), 0)?;
    asm.lea(rsp, qword_ptr(rsp - values))?;
    asm.je(off)?;
    let saved = Saved { registers: values, rsp: values + 4 * 8 + RED };
    native.emit(&mut asm, saved, Exits { no, slow })?;
    let restore = |asm: &mut CodeAssembler| {
        asm.lea(rsp, qword_ptr(rsp + values))?;
        asm.pop(rdx)?;
        asm.pop(rcx)?;
        asm.pop(rax)?;
        asm.popfq()?;
        asm.lea(rsp, qword_ptr(rsp + RED))
    };
    asm.set_label(&mut no)?;
    // Threads that share a counter lose no hit for it: the addition is locked.
    asm.lea(rax, qword_ptr(rsp + saved.rsp))?;
    asm.shr(rax, 12)?;
    asm.and(rax, COUNTERS as i32 - 1)?;
    asm.shl(rax, APART.trailing_zeros())?;
    asm.mov(rcx, at.counters)?;
    asm.lock().inc(qword_ptr(rcx + rax))?;
    asm.set_label(&mut off)?;
    restore(&mut asm)?;
    asm.jmp(back)?;
    asm.set_label(&mut slow)?;
    restore(&mut asm)?;
    let nop = asm.instructions().len();
    asm.nop()?;
    asm.set_label(&mut back)?;
    for insn in &displaced.instructions {
        asm.add_instruction(*insn)?;
    }
    // Not needed after a return or a jump, and harmless.
    asm.jmp(at.place + displaced.len as u64)?;
    let options = iced_x86::BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
    let made = asm.assemble_options(at.code, options)?;
    Ok(Trampoline { nop: made.inner.new_instruction_offsets[nop] as usize, code: made.inner.code_buffer })
}

/// The jump from the place to the trampoline; `None` if that is too far.
pub fn jump(place: u64, trampoline: u64) -> Option<[u8; JUMP]> {
    let distance = trampoline.wrapping_sub(place.wrapping_add(JUMP as u64)).cast_signed();
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xe9, a, b, c, d])
}
