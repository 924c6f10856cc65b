// SPDX-License-Identifier: MIT OR Apache-2.0
//! Code that linkers and C libraries generate: entries of the PLT (x86-64 psABI 5.2), and `_start`.

const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Sections with PLT entries.
pub const PLT: [&str; 4] = [".plt", ".plt.sec", ".plt.got", ".iplt"];

/// Size of the entries of such a section, in bytes.
pub fn entry_size(section: &str, data: &[u8]) -> usize {
    // Entries of `.plt.got` have 8 bytes, or 16 if they begin with ENDBR64.
    if section == ".plt.got" && !data.starts_with(&ENDBR64) { 8 } else { 16 }
}

/// Address of the GOT slot through which a PLT entry jumps: `[endbr64] [bnd] jmp *disp32(%rip)`.
pub fn jump_slot(entry: &[u8], address: u64) -> Option<u64> {
    let mut i = if entry.starts_with(&ENDBR64) { 4 } else { 0 };
    if entry.get(i) == Some(&0xf2) {
        i += 1;
    }
    if entry.get(i..i + 2)? != [0xff, 0x25] {
        return None;
    }
    let displacement = i32::from_le_bytes(entry.get(i + 2..i + 6)?.try_into().ok()?);
    Some(address.wrapping_add(i as u64 + 6).wrapping_add_signed(i64::from(displacement)))
}

/// Address of `main`, from the code of `_start` at `entry`. It is the address in RDI when `_start` makes its call (psABI
/// 3.2.3; `_start` of glibc and musl loads it by `lea main(%rip), %rdi` or `mov $main, %rdi`).
pub fn main(code: &[u8], entry: u64) -> Option<u64> {
    let word = |at: usize| code.get(at..at + 4).map(|w| i32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    (0..code.len()).find_map(|i| match code.get(i..i + 3)? {
        [0x48, 0x8d, 0x3d] => Some((entry + i as u64 + 7).wrapping_add_signed(i64::from(word(i + 3)?))),
        [0x48, 0xc7, 0xc7] => Some(i64::from(word(i + 3)?) as u64),
        _ => None,
    })
}
