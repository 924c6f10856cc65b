// SPDX-License-Identifier: MIT OR Apache-2.0
//! An agent expression's opcodes in GDB's words, as `maint agent-eval` prints them. Any bytes in, lines out.

use std::fmt;

use super::big_endian;

/// An opcode with its operand, or a byte that is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Its offset in the expression, bytes.
    pub at: usize,
    /// Its name, and its operand in decimal.
    pub text: String,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:3}  {}", self.at, self.text)
    }
}

/// Lists an expression to its last byte. A byte that is no opcode, and an operand that is cut off, are lines too.
pub fn list(code: &[u8]) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut at = 0;
    while let Some(&opcode) = code.get(at) {
        let (text, len) = one(opcode, &code[at + 1..]);
        steps.push(Step { at, text });
        at += 1 + len;
    }
    steps
}

/// The text of an opcode, and the bytes of its operand, which `rest` begins with.
fn one(opcode: u8, rest: &[u8]) -> (String, usize) {
    let Some((name, size)) = opcode_name(opcode) else { return (format!("invalid {opcode:#04x}"), 0) };
    let Some(operand) = rest.get(..size) else {
        return (format!("{name}, and {} of {size} bytes of its operand", rest.len()), rest.len());
    };
    match operand {
        [] => (name.to_owned(), 0),
        [count, length @ ..] if opcode == PRINTF => {
            let length = big_endian(length) as usize;
            let text = rest.get(size..size + length).unwrap_or(&rest[size..]);
            let format = String::from_utf8_lossy(text);
            let format = format.trim_end_matches('\0').escape_debug();
            (format!("{name} \"{format}\", {count} args"), size + text.len())
        }
        _ => (format!("{name} {}", big_endian(operand)), size),
    }
}

const PRINTF: u8 = 0x34;

/// The name of an opcode, and the bytes of its operand, of `printf` without its format (GDB manual, appendix F.2; `gdbsupport/ax.def`).
fn opcode_name(opcode: u8) -> Option<(&'static str, usize)> {
    Some(match opcode {
        0x01 => ("float", 0),
        0x02 => ("add", 0),
        0x03 => ("sub", 0),
        0x04 => ("mul", 0),
        0x05 => ("div_signed", 0),
        0x06 => ("div_unsigned", 0),
        0x07 => ("rem_signed", 0),
        0x08 => ("rem_unsigned", 0),
        0x09 => ("lsh", 0),
        0x0a => ("rsh_signed", 0),
        0x0b => ("rsh_unsigned", 0),
        0x0c => ("trace", 0),
        0x0d => ("trace_quick", 1),
        0x0e => ("log_not", 0),
        0x0f => ("bit_and", 0),
        0x10 => ("bit_or", 0),
        0x11 => ("bit_xor", 0),
        0x12 => ("bit_not", 0),
        0x13 => ("equal", 0),
        0x14 => ("less_signed", 0),
        0x15 => ("less_unsigned", 0),
        0x16 => ("ext", 1),
        0x17 => ("ref8", 0),
        0x18 => ("ref16", 0),
        0x19 => ("ref32", 0),
        0x1a => ("ref64", 0),
        0x1b => ("ref_float", 0),
        0x1c => ("ref_double", 0),
        0x1d => ("ref_long_double", 0),
        0x1e => ("l_to_d", 0),
        0x1f => ("d_to_l", 0),
        0x20 => ("if_goto", 2),
        0x21 => ("goto", 2),
        0x22 => ("const8", 1),
        0x23 => ("const16", 2),
        0x24 => ("const32", 4),
        0x25 => ("const64", 8),
        0x26 => ("reg", 2),
        0x27 => ("end", 0),
        0x28 => ("dup", 0),
        0x29 => ("pop", 0),
        0x2a => ("zero_ext", 1),
        0x2b => ("swap", 0),
        0x2c => ("getv", 2),
        0x2d => ("setv", 2),
        0x2e => ("tracev", 2),
        0x2f => ("tracenz", 0),
        0x30 => ("trace16", 2),
        0x32 => ("pick", 1),
        0x33 => ("rot", 0),
        PRINTF => ("printf", 3),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_cut_off_or_no_opcode_is_a_line() {
        let text = |code: &[u8]| list(code).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(&[0x22, 7, 0x31, 0x02]), ["  0  const8 7", "  2  invalid 0x31", "  3  add"]);
        assert_eq!(text(&[0x25, 1, 2]), ["  0  const64, and 2 of 8 bytes of its operand"]);
        assert_eq!(text(&[0x34, 1, 0, 9, b'a', b'\n']), ["  0  printf \"a\\n\", 1 args"]);
        assert!(text(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes(code in proptest::collection::vec(any::<u8>(), 0..64)) {
            let steps = list(&code);
            prop_assert!(steps.iter().all(|step| step.at < code.len()));
        }
    }
}
