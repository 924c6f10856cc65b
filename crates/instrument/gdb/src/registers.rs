// SPDX-License-Identifier: MIT OR Apache-2.0
//! GDB's numbering and layout of the registers, for `target.xml` and the `g` packet.

use kprism_expr::regs::Reg;

/// Bytes of the registers that a probe sees, `rax` to `ss`. They come first, and trace frames hold only these.
pub const SEEN: usize = 17 * 8 + 3 * 4;
/// Bytes of the `g` packet, and of trace files' blocks of registers.
pub const ALL: usize = 17 * 8 + 7 * 4 + 8 * 10 + 8 * 4 + 16 * 16 + 4 + 3 * 8;
/// Offset of `orig_rax` in the `g` packet.
const ORIG_RAX: usize = ALL - 24;

/// The registers that a probe sees, in the order of GDB's numbers.
const ORDER: [Reg; 20] = {
    use Reg::*;
    [Rax, Rbx, Rcx, Rdx, Rsi, Rdi, Rbp, Rsp, R8, R9, R10, R11, R12, R13, R14, R15, Rip, Eflags, Cs, Ss]
};

/// A task's registers, in the order of `struct pt_regs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registers(pub [u64; 21]);

impl Registers {
    /// The bytes that a trace frame holds.
    pub fn seen(&self) -> [u8; SEEN] {
        let mut out = [0; SEEN];
        for (n, reg) in ORDER.iter().enumerate() {
            let (at, size) = place(n);
            out[at..at + size].copy_from_slice(&self.0[*reg as usize].to_le_bytes()[..size]);
        }
        out
    }

    /// The `g` packet. Unknown registers are `x`.
    pub fn packet(&self) -> String {
        let original = kprism_rsp::hex::bytes(&self.0[Reg::OrigRax as usize].to_le_bytes());
        let mut text = packet(&self.seen(), u32::MAX);
        text.replace_range(2 * ORIG_RAX..2 * ORIG_RAX + 16, &original);
        text
    }
}

/// Offset and size of a register of [`ORDER`].
fn place(number: usize) -> (usize, usize) {
    if number < 17 { (8 * number, 8) } else { (17 * 8 + 4 * (number - 17), 4) }
}

/// GDB's number of a register.
pub fn number(reg: Reg) -> Option<usize> {
    ORDER.iter().position(|r| *r == reg)
}

/// The `g` packet for the registers in a trace frame. `known` has a bit for each known register.
pub fn packet(seen: &[u8], known: u32) -> String {
    let mut text = kprism_rsp::hex::bytes(&seen[..seen.len().min(SEEN)]);
    text.extend(std::iter::repeat_n('x', 2 * ALL - text.len()));
    for n in (0..ORDER.len()).filter(|n| known >> n & 1 == 0) {
        let (at, size) = place(n);
        text.replace_range(2 * at..2 * (at + size), &"x".repeat(2 * size));
    }
    text
}

/// The `g` packet if only the instruction pointer is known.
pub fn place_only(rip: u64) -> String {
    let mut text = "x".repeat(2 * ALL);
    text.replace_range(2 * 128..2 * 136, &kprism_rsp::hex::bytes(&rip.to_le_bytes()));
    text
}

/// The target description for GDB.
pub fn target_xml() -> String {
    let mut out = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target>\n\
         <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>\
         <feature name=\"org.gnu.gdb.i386.core\">\n",
    );
    let mut reg = |name: &str, bits: u32, ty: &str| {
        out += &format!("<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{ty}\"/>\n");
    };
    for name in ["rax", "rbx", "rcx", "rdx", "rsi", "rdi"] {
        reg(name, 64, "int64");
    }
    reg("rbp", 64, "data_ptr");
    reg("rsp", 64, "data_ptr");
    for n in 8..16 {
        reg(&format!("r{n}"), 64, "int64");
    }
    reg("rip", 64, "code_ptr");
    for name in ["eflags", "cs", "ss", "ds", "es", "fs", "gs"] {
        reg(name, 32, "int32");
    }
    for n in 0..8 {
        reg(&format!("st{n}"), 80, "i387_ext");
    }
    for name in ["fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop"] {
        reg(name, 32, "int");
    }
    out += "</feature><feature name=\"org.gnu.gdb.i386.sse\">\n";
    let mut reg = |name: &str, bits: u32, ty: &str| {
        out += &format!("<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{ty}\"/>\n");
    };
    for n in 0..16 {
        reg(&format!("xmm{n}"), 128, "uint128");
    }
    reg("mxcsr", 32, "int");
    out += "</feature><feature name=\"org.gnu.gdb.i386.linux\">\
            <reg name=\"orig_rax\" bitsize=\"64\" type=\"int\" group=\"system\"/></feature>\n\
            <feature name=\"org.gnu.gdb.i386.segments\">\
            <reg name=\"fs_base\" bitsize=\"64\" type=\"int\"/>\n<reg name=\"gs_base\" bitsize=\"64\" type=\"int\"/>\
            </feature></target>";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_in_the_packet() {
        let registers = Registers(std::array::from_fn(|n| 0x1111_1111_1111_1111 * (n as u64 % 16)));
        let text = registers.packet();
        assert_eq!(text.len(), 2 * ALL);
        assert!(text.starts_with(&"aa".repeat(8)), "rax is the tenth of pt_regs");
        assert_eq!(&text[2 * 128..2 * 136], "00".repeat(8), "rip is the sixteenth");
        assert_eq!(&text[2 * ORIG_RAX..2 * ORIG_RAX + 16], "ff".repeat(8));
        assert!(text.ends_with(&"x".repeat(32)));
        let some = packet(&registers.seen(), 1 << 16 | 1 << 18);
        assert_eq!((&some[2 * 128..2 * 136], &some[..4]), ("0000000000000000", "xxxx"));
        assert_eq!((&some[2 * 136..2 * 140], &some[2 * 140..2 * 144]), ("xxxxxxxx", "11111111"));
        assert_eq!(place_only(0x40)[2 * 128..2 * 136].to_owned(), "4000000000000000");
    }
}
