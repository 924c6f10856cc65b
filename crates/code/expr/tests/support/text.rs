// SPDX-License-Identifier: MIT OR Apache-2.0
//! Generates C expressions from bytes.

use kprism_expr::ir::{Func, Input, Op, Space};
use kprism_expr::lower::{self, Env};
use kprism_expr::regs::Reg;
use kprism_expr::scope::Bare;

use super::{BASE, Bytes};

const TYPES: [&str; 12] = [
    "char",
    "signed char",
    "unsigned char",
    "short",
    "unsigned short",
    "int",
    "unsigned",
    "long",
    "unsigned long",
    "long long",
    "_Bool",
    "int",
];
/// One register for each of a raw tracepoint's arguments, which replace them.
const REGISTERS: [&str; 12] =
    ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax", "rbx", "r10", "r11", "r12", "r13"];
/// Trace state variables.
pub const VARIABLES: [&str; super::VARIABLES] = ["v0", "v1"];
const BINARY: [&str; 18] =
    ["+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "<", "<=", ">", ">=", "==", "!=", "&&", "||"];

/// Generates an expression with at most this nesting depth.
fn expression(bytes: &mut Bytes<'_>, depth: u32, vars: bool) -> String {
    let choice = if depth == 0 { bytes.byte() % 4 } else { bytes.byte() % 20 };
    let inner = |bytes: &mut Bytes<'_>| expression(bytes, depth.saturating_sub(1), vars);
    match choice {
        0 | 4 => {
            let suffix = ["", "u", "l", "ul"][bytes.below(4)];
            match bytes.below(3) {
                0 => format!("{}{suffix}", bytes.byte()),
                1 => format!("{:#x}{suffix}", bytes.number() >> 1),
                _ => format!("'{}'", char::from(b'a' + bytes.byte() % 26)),
            }
        }
        1..=3 | 5 | 6 => format!("${}", REGISTERS[bytes.below(REGISTERS.len())]),
        7 | 8 => format!("({}){}", TYPES[bytes.below(TYPES.len())], inner(bytes)),
        9 => format!("{}({})", ["-", "~", "!", "+"][bytes.below(4)], inner(bytes)),
        10 => format!("({} ? {} : {})", inner(bytes), inner(bytes), inner(bytes)),
        11 | 12 => {
            let ty = TYPES[bytes.below(TYPES.len())];
            format!("*({ty} *)({BASE:#x} + (({}) & 0x{:x}))", inner(bytes), bytes.byte())
        }
        13 => format!("(({} *){})[{}]", TYPES[bytes.below(TYPES.len())], inner(bytes), bytes.byte() % 9),
        14 if vars => {
            let name = VARIABLES[bytes.below(VARIABLES.len())];
            match bytes.below(4) {
                0 => format!("${name}"),
                1 => format!("(${name} = {})", inner(bytes)),
                2 => format!("(${name} += {})", inner(bytes)),
                _ => format!("${name}++"),
            }
        }
        15 => {
            let text: String = (0..bytes.below(6)).map(|_| char::from(b'a' + bytes.byte() % 2)).collect();
            let equal = ["==", "!="][bytes.below(2)];
            format!("((char *)({BASE:#x} + {}) {equal} \"{text}\")", bytes.byte())
        }
        _ => format!("({} {} {})", inner(bytes), BINARY[bytes.below(BINARY.len())], inner(bytes)),
    }
}

/// Generates an expression and compiles it. None if the bytes give no valid one, such as a product of two pointers.
/// `vars` allows trace state variables.
pub fn compiled(bytes: &mut Bytes<'_>, vars: bool) -> Option<(String, Func)> {
    let names = VARIABLES.map(str::to_owned);
    let env = Env { scope: &Bare(Space::User), vars: &names };
    [4, 3, 2].into_iter().find_map(|depth| {
        let text = expression(bytes, depth, vars);
        let lowered = lower::value(&text, env).ok()?;
        Some((text, with_arguments(lowered.func)))
    })
}

/// Replaces registers by arguments: a raw tracepoint has no registers.
fn with_arguments(mut func: Func) -> Func {
    for def in &mut func.vals {
        if let Op::Input(Input::Reg(reg)) = def.op {
            let at = REGISTERS.iter().position(|name| Reg::by_name(name) == Some(reg));
            def.op = Op::Input(Input::Arg(at.expect("only these are used") as u8));
        }
    }
    func
}
