// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which instructions a jump at a place would replace, and whether it may.
//!
//! The rules are those of the kernel's optimised kprobes (`can_optimize()` in `arch/x86/kernel/kprobes/opt.c`): an instruction of
//! 5 bytes or more can be replaced alone, since nobody jumps into its middle. Of several shorter ones nobody may jump to the second
//! or a later one, and that must be known: the function has no indirect jump, and no branch anywhere in the object goes there.

use std::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction};

/// Length of a jump with a 32-bit distance, bytes.
pub const JUMP: usize = 5;

/// Distance from which a short branch may come, bytes, with the longest instructions.
pub const SHORT: u64 = 128 + 32;

/// The code around a place, at the addresses where the process has it.
#[derive(Debug, Clone)]
pub struct Around<'a> {
    /// Bytes of the object's segment that contains the place, as they are in its file.
    pub segment: &'a [u8],
    /// Address of the segment's first byte.
    pub at: u64,
    /// The function's addresses, if a symbol tells its size.
    pub function: Option<Range<u64>>,
    /// Functions within [`SHORT`] of the place: where their instructions begin is known.
    pub others: Vec<Range<u64>>,
    /// True if code may be entered where no branch shows it: an exception's landing pad, a runtime that interrupts goroutines.
    pub hidden_entries: bool,
}

/// The instructions that a jump replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Displaced {
    /// The instructions, in order.
    pub instructions: Vec<Instruction>,
    /// Their length, bytes: 5 or more.
    pub len: usize,
}

impl Displaced {
    /// Code behind the first instruction that is overwritten too, for a jump at `place`: threads must not be there. None if one
    /// instruction alone is.
    pub fn middle(&self, place: u64) -> Option<Range<u64>> {
        (self.instructions.len() > 1).then(|| place + 1..place + self.len as u64)
    }
}

/// Finds the instructions that a jump at `place` replaces.
///
/// # Errors
/// The reason why there can be no jump.
pub fn displaced(around: &Around<'_>, place: u64) -> Result<Displaced, String> {
    let within = |range: &Range<u64>| {
        let from = usize::try_from(range.start.checked_sub(around.at)?).ok()?;
        let to = usize::try_from(range.end.checked_sub(around.at)?).ok()?;
        around.segment.get(from..to)
    };
    let end = around.at.saturating_add(around.segment.len() as u64);
    let code = within(&(place..end)).ok_or("the place is not in its segment")?;
    let mut decoder = Decoder::with_ip(64, code, place, DecoderOptions::NONE);
    let (mut instructions, mut len) = (Vec::new(), 0);
    while len < JUMP {
        let insn = decoder.decode();
        can_move(&insn, len == 0)?;
        len += insn.len();
        instructions.push(insn);
        let ends = matches!(insn.flow_control(), FlowControl::UnconditionalBranch | FlowControl::Return);
        if ends && len < JUMP {
            return Err("the code ends before the jump would".to_owned());
        }
        if len < JUMP && insn.flow_control() != FlowControl::Next {
            return Err("a branch is among the instructions that the jump would replace".to_owned());
        }
    }
    let displaced = Displaced { instructions, len };
    let Some(middle) = displaced.middle(place) else { return Ok(displaced) };
    if around.hidden_entries {
        return Err("several instructions would be replaced, and code here can be entered without a branch (exceptions, Go)".into());
    }
    let function = around
        .function
        .as_ref()
        .ok_or("several instructions would be replaced, and no symbol tells where the function ends")?;
    if !function.contains(&place) || place + len as u64 > function.end {
        return Err("the function ends before the jump would".to_owned());
    }
    let code = within(function).ok_or("the function is not in one segment")?;
    no_branch_to(&middle, function.start, code, true)?;
    no_branch_from_outside(&middle, around, function)?;
    Ok(displaced)
}

/// Whether an instruction means the same elsewhere.
fn can_move(insn: &Instruction, first: bool) -> Result<(), String> {
    if insn.is_invalid() {
        return Err("an instruction at the place is unknown".to_owned());
    }
    if !first && insn.code() == Code::Endbr64 {
        return Err("an indirect branch may go to the second instruction (endbr64)".to_owned());
    }
    match insn.flow_control() {
        FlowControl::Next
        | FlowControl::ConditionalBranch
        | FlowControl::UnconditionalBranch
        | FlowControl::Return => Ok(()),
        FlowControl::Call | FlowControl::IndirectCall => {
            Err("a call or a system call is among the instructions that the jump would replace".to_owned())
        }
        other => Err(format!("an instruction at the place cannot be moved ({other:?})")),
    }
}

/// Decodes a function, and refuses branches to `middle`; of the place's own function (`own`) those too whose target is not known.
fn no_branch_to(middle: &Range<u64>, start: u64, code: &[u8], own: bool) -> Result<(), String> {
    for insn in Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        if insn.is_invalid() {
            return Err(format!("the function cannot be decoded at {:#x}", insn.ip()));
        }
        match insn.flow_control() {
            FlowControl::IndirectBranch if own => {
                return Err(
                    "the function has an indirect jump, which may go behind the first instruction".to_owned()
                );
            }
            FlowControl::ConditionalBranch
            | FlowControl::UnconditionalBranch
            | FlowControl::Call
            | FlowControl::XbeginXabortXend
                if middle.contains(&insn.near_branch_target()) =>
            {
                return Err(format!("{:#x} jumps behind the first instruction", insn.ip()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses code outside of the function, such as its cold part, that may jump to `middle`. Any four bytes that would be the
/// distance count as such behind the code of a long branch, wherever it begins: code between functions need not be decoded for it.
/// Two bytes are seldom enough for that, so functions nearby are decoded for short branches.
fn no_branch_from_outside(
    middle: &Range<u64>,
    around: &Around<'_>,
    function: &Range<u64>,
) -> Result<(), String> {
    let refuse =
        |ip: u64| Err(format!("{ip:#x}, outside of the function, may jump behind the first instruction"));
    let far = |at: usize| {
        let distance = i32::from_le_bytes(around.segment.get(at..at + 4)?.try_into().ok()?);
        Some((around.at + at as u64 + 4).wrapping_add_signed(distance.into()))
    };
    let whole = |range: &&Range<u64>| range.start >= around.at && !function.contains(&range.start);
    for other in around.others.iter().filter(whole) {
        let code = around.segment.get((other.start - around.at) as usize..).unwrap_or_default();
        let code = &code[..code.len().min((other.end - other.start) as usize)];
        no_branch_to(middle, other.start, code, false)?;
    }
    for (at, pair) in around.segment.windows(2).enumerate() {
        let ip = around.at + at as u64;
        if function.contains(&ip) {
            continue;
        }
        let is_decoded = || around.others.iter().any(|other| other.contains(&ip));
        let target = match pair {
            [0xe8 | 0xe9, _] => far(at + 1),
            [0x0f, 0x80..=0x8f] => far(at + 2),
            [0xeb | 0x70..=0x7f | 0xe0..=0xe3, distance]
                if ip.abs_diff(middle.start) < SHORT && !is_decoded() =>
            {
                Some((ip + 2).wrapping_add_signed((*distance).cast_signed().into()))
            }
            _ => continue,
        };
        if target.is_some_and(|target| middle.contains(&target)) {
            return refuse(ip);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x40_1000;

    fn find(code: &[u8], place: u64, function: Option<Range<u64>>) -> Result<Displaced, String> {
        displaced(
            &Around { segment: code, at: AT, function, others: Vec::new(), hidden_entries: false },
            place,
        )
    }

    #[test]
    fn one_long_instruction_needs_nothing() {
        // mov eax, 1; jmp rax
        let code = [0xb8, 1, 0, 0, 0, 0xff, 0xe0];
        assert_eq!(find(&code, AT, None).unwrap().len, 5);
        // The indirect jump itself cannot.
        assert!(find(&code, AT + 5, None).unwrap_err().contains("cannot be moved"));
    }

    #[test]
    fn several_need_the_whole_function() {
        // push rbp; mov rbp, rsp; sub rsp, 16; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10, 0xc3];
        let all = Some(AT..AT + 9);
        let found = find(&code, AT, all.clone()).unwrap();
        assert_eq!((found.len, found.instructions.len()), (8, 3));
        assert!(find(&code, AT, None).unwrap_err().contains("no symbol"));
        assert!(find(&code, AT, Some(AT..AT + 7)).unwrap_err().contains("ends before"));
        let hidden =
            Around { segment: &code, at: AT, function: all, others: Vec::new(), hidden_entries: true };
        assert!(displaced(&hidden, AT).unwrap_err().contains("exceptions"));
    }

    #[test]
    fn branches_into_the_middle_refuse() {
        // push rbp; mov rbp, rsp; nop; jne to the mov; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x75, 0xfa, 0xc3];
        assert!(find(&code, AT, Some(AT..AT + 8)).unwrap_err().contains("jumps behind"));
        // To the first instruction it may jump.
        let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0x75, 0xf9, 0xc3];
        assert_eq!(find(&code, AT, Some(AT..AT + 8)).unwrap().len, 5);
        // push rbp; mov rbp, rsp; nop; jmp rax
        let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0xff, 0xe0];
        assert!(find(&code, AT, Some(AT..AT + 7)).unwrap_err().contains("indirect jump"));
        // The cold part jumps back: jmp to the mov, from behind the function.
        let code = [0x55, 0x48, 0x89, 0xe5, 0x90, 0xc3, 0xe9, 0xf6, 0xff, 0xff, 0xff];
        assert!(find(&code, AT, Some(AT..AT + 6)).unwrap_err().contains("outside"));
    }

    #[test]
    fn calls_stay() {
        // call; syscall
        assert!(find(&[0xe8, 0, 0, 0, 0], AT, None).unwrap_err().contains("call"));
        assert!(find(&[0x0f, 0x05, 0x90, 0x90, 0x90], AT, Some(AT..AT + 5)).unwrap_err().contains("call"));
        assert!(
            find(&[0x90, 0xc3, 0x90, 0x90, 0x90], AT, Some(AT..AT + 5)).unwrap_err().contains("ends before")
        );
    }

    proptest::proptest! {
        #[test]
        fn any_bytes(code: Vec<u8>, place in AT..AT + 40, end in AT..AT + 40) {
            if let Ok(found) = find(&code, place, Some(AT..end)) {
                assert!((JUMP..JUMP + 15).contains(&found.len));
            }
        }
    }
}
