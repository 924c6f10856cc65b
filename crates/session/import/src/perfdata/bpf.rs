// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the code of loaded BPF programs from perf's feature section BPF_PROG_INFO.
//!
//! The section has a count, and for each program `struct perf_bpil` (tools/perf/util/bpf-utils.h): length of the
//! kernel's `struct bpf_prog_info`, length of the arrays, a bit mask of the arrays; that struct, with pointers replaced
//! by offsets into the arrays; the arrays. The translated code of a program's functions is contiguous there. Their
//! addresses and lengths are in separate arrays.

use kprism_image::is_kernel;

use super::bytes::Fields;
use crate::Region;

/// Bits of the mask of arrays.
const INSNS: u64 = 1;
const ADDRESSES: u64 = 1 << 3;
const LENGTHS: u64 = 1 << 4;
/// Offsets in `struct bpf_prog_info`.
const PROG_LEN: usize = 16;
const PROG_INSNS: usize = 24;
const NR_ADDRESSES: usize = 104;
const NR_LENGTHS: usize = 108;
const ADDRESSES_AT: usize = 112;
const LENGTHS_AT: usize = 120;

/// The functions of all programs, at their addresses, up to the point where the section is truncated.
pub(crate) fn programs(section: &[u8]) -> Vec<Region> {
    let mut f = Fields(section);
    let count = f.u32().unwrap_or(0);
    let mut regions = Vec::new();
    for _ in 0..count {
        let Some((which, info, arrays)) = program(&mut f) else { break };
        if which & (INSNS | ADDRESSES | LENGTHS) == INSNS | ADDRESSES | LENGTHS {
            functions(info, arrays, &mut regions);
        }
    }
    regions
}

fn program<'a>(f: &mut Fields<'a>) -> Option<(u64, &'a [u8], &'a [u8])> {
    let (info_len, arrays_len, which) = (f.u32()?, f.u32()?, f.u64()?);
    Some((which, f.take(info_len as usize)?, f.take(arrays_len as usize)?))
}

/// Adds a program's functions. `None` at the first one that is not inside the arrays.
fn functions(info: &[u8], arrays: &[u8], regions: &mut Vec<Region>) -> Option<()> {
    let word = |at: usize| Fields(info.get(at..)?).u32();
    let array = |at: usize| arrays.get(usize::try_from(Fields(info.get(at..)?).u64()?).ok()?..);
    let mut code = Fields(Fields(array(PROG_INSNS)?).take(word(PROG_LEN)? as usize)?);
    let (mut addresses, mut lengths) = (Fields(array(ADDRESSES_AT)?), Fields(array(LENGTHS_AT)?));
    for _ in 0..word(NR_ADDRESSES)?.min(word(NR_LENGTHS)?) {
        let (va, len) = (addresses.u64()?, lengths.u32()?);
        let bytes = code.take(len as usize)?;
        // Without the permission to read them, addresses are 0.
        if is_kernel(va) && !bytes.is_empty() {
            regions.push(Region { va, bytes: bytes.to_vec() });
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Recorded by perf 6.1: one program, `return 42`.
    const RECORDED: &[u8] = include_bytes!("../../tests/data/bpf_prog_info.bin");

    #[test]
    fn a_program_as_perf_recorded_it() {
        let regions = programs(RECORDED);
        let [answer] = &regions[..] else { panic!("one function: {regions:x?}") };
        assert_eq!((answer.va, answer.bytes.len()), (0xffff_ffff_c002_2050, 23));
        // mov $42, %eax.
        assert!(answer.bytes.windows(5).any(|w| w == [0xb8, 42, 0, 0, 0]), "{:x?}", answer.bytes);
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
                let total: usize = programs(&bytes).iter().map(|r| r.bytes.len()).sum();
                assert!(total <= bytes.len());
            }
        }
    }
}
