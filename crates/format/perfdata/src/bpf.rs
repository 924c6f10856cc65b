// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the code of loaded BPF programs from perf's feature section BPF_PROG_INFO.
//!
//! The section has a count, and for each program `struct perf_bpil` (tools/perf/util/bpf-utils.h): length of the
//! kernel's `struct bpf_prog_info`, length of the arrays, a bit mask of the arrays; that struct, with pointers replaced
//! by offsets into the arrays; the arrays. The translated code of a program's functions is contiguous there. Their
//! addresses and lengths are in separate arrays.

use crate::bytes::Fields;

/// Bits of the mask of arrays.
const INSNS: u64 = 1;
const ADDRESSES: u64 = 1 << 3;
const LENGTHS: u64 = 1 << 4;
const TAGS: u64 = 1 << 8;
/// Offsets in `struct bpf_prog_info`.
const PROG_LEN: usize = 16;
const PROG_INSNS: usize = 24;
const NR_ADDRESSES: usize = 104;
const NR_LENGTHS: usize = 108;
const ADDRESSES_AT: usize = 112;
const LENGTHS_AT: usize = 120;
const NR_TAGS: usize = 180;
const TAGS_AT: usize = 184;

/// A function of a program, as translated for the processor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Function {
    /// First address.
    pub va: u64,
    /// Its code.
    pub code: Vec<u8>,
    /// Hash of its instructions (`BPF_TAG_SIZE` bytes), which is in its name: see [`Function::is_named`]. `None` if it is not told.
    pub tag: Option<[u8; 8]>,
}

impl Function {
    /// Returns true if a symbol is this function's: `bpf_prog_`, the tag in hex, and the program's name
    /// (`bpf_prog_ksym_set_name` in kernel/bpf/core.c).
    #[must_use]
    pub fn is_named(&self, symbol: &str) -> bool {
        let rest = symbol.strip_prefix("bpf_prog_");
        let (Some(tag), Some((hex, rest))) = (self.tag, rest.and_then(|rest| rest.split_at_checked(16)))
        else {
            return false;
        };
        u64::from_str_radix(hex, 16) == Ok(u64::from_be_bytes(tag))
            && (rest.is_empty() || rest.starts_with('_'))
    }
}

/// The functions of all programs, at their addresses, up to the point where the section is truncated.
pub fn programs(section: &[u8]) -> Vec<Function> {
    let mut f = Fields(section);
    let count = f.u32().unwrap_or(0);
    let mut functions = Vec::new();
    for _ in 0..count {
        let Some((which, info, arrays)) = program(&mut f) else { break };
        if which & (INSNS | ADDRESSES | LENGTHS) == INSNS | ADDRESSES | LENGTHS {
            add_functions(which, info, arrays, &mut functions);
        }
    }
    functions
}

fn program<'a>(f: &mut Fields<'a>) -> Option<(u64, &'a [u8], &'a [u8])> {
    let (info_len, arrays_len, which) = (f.u32()?, f.u32()?, f.u64()?);
    Some((which, f.take(info_len as usize)?, f.take(arrays_len as usize)?))
}

/// Adds a program's functions. `None` at the first one that is not inside the arrays.
fn add_functions(which: u64, info: &[u8], arrays: &[u8], functions: &mut Vec<Function>) -> Option<()> {
    let word = |at: usize| Fields(info.get(at..)?).u32();
    let array = |at: usize| arrays.get(usize::try_from(Fields(info.get(at..)?).u64()?).ok()?..);
    let mut code = Fields(Fields(array(PROG_INSNS)?).take(word(PROG_LEN)? as usize)?);
    let (mut addresses, mut lengths) = (Fields(array(ADDRESSES_AT)?), Fields(array(LENGTHS_AT)?));
    // Kernels before 4.18 tell no tags of functions.
    let tags = array(TAGS_AT).filter(|_| which & TAGS != 0 && word(NR_TAGS) == word(NR_ADDRESSES));
    let mut tags = tags.unwrap_or_default().as_chunks::<8>().0.iter();
    for _ in 0..word(NR_ADDRESSES)?.min(word(NR_LENGTHS)?) {
        let tag = tags.next().copied();
        let (va, len) = (addresses.u64()?, lengths.u32()?);
        let bytes = code.take(len as usize)?;
        // Without the permission to read them, addresses are 0.
        if va >> 63 == 1 && !bytes.is_empty() {
            functions.push(Function { va, code: bytes.to_vec(), tag });
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded by perf 6.1: one program, `return 42`.
    const RECORDED: &[u8] = include_bytes!("../tests/data/bpf_prog_info.bin");

    #[test]
    fn a_program_as_perf_recorded_it() {
        let functions = programs(RECORDED);
        let [answer] = &functions[..] else { panic!("one function: {functions:x?}") };
        assert_eq!((answer.va, answer.code.len()), (0xffff_ffff_c002_2050, 23));
        // mov $42, %eax.
        assert!(answer.code.windows(5).any(|w| w == [0xb8, 42, 0, 0, 0]), "{:x?}", answer.code);
        assert_eq!(answer.tag, Some([0x76, 0xb7, 0x61, 0xcd, 0xf4, 0x20, 0x38, 0x94]));
        let is_named = |symbol| answer.is_named(symbol);
        assert!(is_named("bpf_prog_76b761cdf4203894_answer") && is_named("bpf_prog_76b761cdf4203894"));
        for other in
            ["bpf_prog_76b761cdf4203895_answer", "bpf_prog_76b761", "bpf_prog_76b761cdf42038945", "x", ""]
        {
            assert!(!is_named(other), "{other}");
        }
        assert!(!Function { tag: None, ..answer.clone() }.is_named("bpf_prog_76b761cdf4203894"));
    }

    #[test]
    fn cut_off_or_changed_anywhere() {
        for len in 0..RECORDED.len() {
            assert!(programs(&RECORDED[..len]).is_empty(), "{len} bytes");
        }
        for at in 0..RECORDED.len() {
            for flip in [0xff, 0x80, 1] {
                let mut bytes = RECORDED.to_vec();
                bytes[at] ^= flip;
                let total: usize = programs(&bytes).iter().map(|f| f.code.len()).sum();
                assert!(total <= bytes.len());
            }
        }
    }
}
