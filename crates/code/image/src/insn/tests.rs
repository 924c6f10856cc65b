// SPDX-License-Identifier: MIT OR Apache-2.0
//! The short way against the full decoder.

use super::*;
use proptest::prelude::*;

fn check(bytes: &[u8], taken: &mut usize) {
    let ip = 0xffff_ffff_8100_0000;
    if let Some(insn) = quick::classify(bytes, ip) {
        *taken += 1;
        assert_eq!(classify_fully(bytes, ip, Mode::Bits64), Ok(insn), "{bytes:02x?}");
    }
    if let (1, len) = plain_run(bytes, 1) {
        let insn = Insn { kind: Kind::Other, len: len as u8 };
        assert_eq!(classify_fully(bytes, ip, Mode::Bits64), Ok(insn), "{bytes:02x?}");
    }
}

#[test]
fn every_opcode_prefix_and_modrm() {
    let prefixes: [&[u8]; 14] = [
        &[],
        &[0x66],
        &[0xf2],
        &[0xf3],
        &[0x2e],
        &[0x64],
        &[0x48],
        &[0x41],
        &[0x66, 0x48],
        &[0xf3, 0x48],
        &[0xf2, 0x4f],
        &[0x3e, 0x66],
        &[0xf2, 0xf3],
        &[0x66, 0xf3, 0x44],
    ];
    let mut taken = 0;
    for prefix in prefixes {
        for two in [false, true] {
            for op in 0..=255 {
                for modrm in 0..=255 {
                    for sib in [0x05, 0x24] {
                        let mut bytes = prefix.to_vec();
                        if two {
                            bytes.push(0x0f);
                        }
                        bytes.extend([op, modrm, sib, 0x12, 0x80, 0x34, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
                        check(&bytes, &mut taken);
                    }
                }
            }
        }
    }
    assert!(taken > 1_000_000, "{taken}");
}

proptest! {
    #[test]
    fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        check(&bytes, &mut 0);
    }
}
