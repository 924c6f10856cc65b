// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names of blocks of values, and of the values in them (SDM vol. 3, "Block Item Packet", and "PEBS via Intel PT").

/// The name of a block, by its type in BBP.
pub(crate) fn block(typ: u8) -> &'static str {
    match typ {
        0x01 => "general registers",
        0x04 => "PEBS basic",
        0x05 => "PEBS memory",
        0x08..=0x0a => "LBR",
        0x10 => "XMM registers",
        _ => "of unknown type",
    }
}

/// The name of a value, by the block's type and the number in BIP.
pub(crate) fn item(typ: u8, id: u8) -> String {
    const REGISTERS: [&str; 18] = [
        "RFLAGS", "RIP", "RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI", "R8", "R9", "R10", "R11",
        "R12", "R13", "R14", "R15",
    ];
    const BASIC: [&str; 3] = ["IP", "applicable counters", "timestamp"];
    const MEMORY: [&str; 4] = ["address", "auxiliary", "latency", "TSX"];
    let named: &[&str] = match typ {
        0x01 => &REGISTERS,
        0x04 => &BASIC,
        0x05 => &MEMORY,
        0x10 => return format!("XMM{}.{}", id / 2, if id.is_multiple_of(2) { "low" } else { "high" }),
        _ => &[],
    };
    match named.get(usize::from(id)) {
        Some(name) => (*name).to_owned(),
        None => format!("item {id:#x} of type {typ:#x}"),
    }
}
