// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of instruction classes. The input is hand-assembled bytes and the output is checks of their classes, so that
//! the expected values do not come from the decoder itself.

use kprism_image::insn::{Far, InsnError, Kind, Mode, classify};

const IP: u64 = 0xffff_ffff_8100_0000;

fn kind(bytes: &[u8]) -> Kind {
    let insn = classify(bytes, IP, Mode::Bits64).unwrap();
    assert_eq!(insn.len as usize, bytes.len(), "{bytes:x?}");
    insn.kind
}

#[test]
fn near_branches() {
    assert_eq!(kind(&[0x75, 0x10]), Kind::CondJump { target: IP + 0x12 });
    assert_eq!(kind(&[0x0f, 0x84, 0, 1, 0, 0]), Kind::CondJump { target: IP + 0x106 });
    assert_eq!(kind(&[0xe3, 0xfe]), Kind::CondJump { target: IP });
    assert_eq!(kind(&[0xe2, 0xfe]), Kind::CondJump { target: IP });
    assert_eq!(kind(&[0xeb, 0xfe]), Kind::Jump { target: IP });
    assert_eq!(kind(&[0xe9, 0, 0, 0, 0]), Kind::Jump { target: IP + 5 });
    assert_eq!(kind(&[0xe8, 0, 0, 0, 0]), Kind::Call { target: IP + 5 });
    assert_eq!(kind(&[0xff, 0xe0]), Kind::IndirectJump);
    assert_eq!(kind(&[0x3e, 0xff, 0xe0]), Kind::IndirectJump);
    assert_eq!(kind(&[0xff, 0xd0]), Kind::IndirectCall);
    assert_eq!(kind(&[0xff, 0x15, 0, 0, 0, 0]), Kind::IndirectCall);
    assert_eq!(kind(&[0xc3]), Kind::Ret);
    assert_eq!(kind(&[0xf3, 0xc3]), Kind::Ret);
    assert_eq!(kind(&[0xc2, 8, 0]), Kind::Ret);
}

#[test]
fn jmpabs() {
    let bytes = [0xd5, 0x00, 0xa1, 0x0d, 0x10, 0, 0, 0, 0, 0, 0];
    assert_eq!(kind(&bytes), Kind::IndirectJump);
    for len in 1..bytes.len() {
        assert_eq!(classify(&bytes[..len], IP, Mode::Bits64), Err(InsnError::Truncated(len)));
    }
    // With W or in opcode map 1 it is another instruction. Before APX and in other modes, D5 is AAD.
    for payload in [0x08, 0x80] {
        let other = [&[0xd5, payload], &bytes[2..]].concat();
        assert_eq!(classify(&other, IP, Mode::Bits64), Err(InsnError::Invalid));
    }
    assert_eq!(
        classify(&bytes, 0x1000, Mode::Bits32).map(|insn| (insn.kind, insn.len)),
        Ok((Kind::Other, 2))
    );
}

#[test]
fn far_transfers() {
    assert_eq!(kind(&[0x0f, 0x05]), Kind::Far(Far::Syscall));
    assert_eq!(kind(&[0x48, 0x0f, 0x07]), Kind::Far(Far::Sysret));
    assert_eq!(kind(&[0x0f, 0x07]), Kind::Far(Far::Sysret));
    assert_eq!(kind(&[0x0f, 0x34]), Kind::Far(Far::Sysenter));
    assert_eq!(kind(&[0x48, 0x0f, 0x35]), Kind::Far(Far::Sysexit));
    assert_eq!(kind(&[0x48, 0xcf]), Kind::Far(Far::Iret));
    assert_eq!(kind(&[0xcf]), Kind::Far(Far::Iret));
    assert_eq!(kind(&[0xcd, 0x80]), Kind::Far(Far::Int));
    assert_eq!(kind(&[0xcc]), Kind::Far(Far::Int));
    assert_eq!(kind(&[0xf1]), Kind::Far(Far::Int));
    assert_eq!(kind(&[0xff, 0x18]), Kind::Far(Far::Segment)); // call far [rax]
    assert_eq!(kind(&[0xff, 0x28]), Kind::Far(Far::Segment)); // jmp far [rax]
    assert_eq!(kind(&[0x48, 0xff, 0x18]), Kind::Far(Far::Segment));
    assert_eq!(kind(&[0xcb]), Kind::Far(Far::Segment));
    assert_eq!(kind(&[0x0f, 0x01, 0xc1]), Kind::Far(Far::Vm)); // vmcall
    assert_eq!(kind(&[0x0f, 0x01, 0xc2]), Kind::Far(Far::Vm)); // vmlaunch
    assert_eq!(kind(&[0x0f, 0x01, 0xd9]), Kind::Far(Far::Vm)); // vmmcall
    assert_eq!(kind(&[0x0f, 0xaa]), Kind::Far(Far::Rsm));
    let far = classify(&[0x9a, 1, 2, 3, 4, 5, 6], 0x1000, Mode::Bits32).unwrap();
    assert_eq!(far.kind, Kind::Far(Far::Segment));
}

#[test]
fn markers_and_plain() {
    assert_eq!(kind(&[0x0f, 0x22, 0xd8]), Kind::MovCr3);
    assert_eq!(kind(&[0x0f, 0x22, 0xdf]), Kind::MovCr3);
    assert_eq!(kind(&[0x0f, 0x22, 0xc0]), Kind::Other); // mov cr0
    assert_eq!(kind(&[0x0f, 0x20, 0xd8]), Kind::Other); // from cr3
    assert_eq!(kind(&[0xf3, 0x48, 0x0f, 0xae, 0xe0]), Kind::Ptwrite);
    assert_eq!(kind(&[0xc7, 0xf8, 0, 0, 0, 0]), Kind::Xbegin { fallback: IP + 6 });
    assert_eq!(kind(&[0x0f, 0x01, 0xd5]), Kind::Xend);
    assert_eq!(kind(&[0xc6, 0xf8, 1]), Kind::Xabort);
    assert_eq!(kind(&[0xfa]), Kind::Cli);
    assert_eq!(kind(&[0xfb]), Kind::Sti);
    assert_eq!(kind(&[0x9d]), Kind::Popf);
    assert_eq!(kind(&[0x0f, 0x0b]), Kind::Other); // ud2: an exception, not a branch
    assert_eq!(kind(&[0x9c]), Kind::Pushf);
    assert_eq!(kind(&[0xf4]), Kind::Halt);
    assert_eq!(kind(&[0x0f, 0x01, 0xc9]), Kind::Halt); // mwait
    assert_eq!(kind(&[0xf3, 0xa4]), Kind::Repeat); // rep movsb
    assert_eq!(kind(&[0xf3, 0x48, 0xab]), Kind::Repeat); // rep stosq
    assert_eq!(kind(&[0xf2, 0xae]), Kind::Repeat); // repne scasb
    assert_eq!(kind(&[0xf3, 0x6c]), Kind::Repeat); // rep insb
    assert_eq!(kind(&[0x48, 0xab]), Kind::Other); // stosq
    assert_eq!(kind(&[0xf3, 0xaa]), classify(&[0xf3, 0xaa], IP, Mode::Bits32).unwrap().kind);
    assert_eq!(kind(&[0xf3, 0x90]), Kind::Other); // pause
    assert_eq!(kind(&[0xf3, 0xa8, 0]), Kind::Other); // test al, imm8
    assert_eq!(kind(&[0xf3, 0x0f, 0x1e, 0xfa]), Kind::Other); // endbr64
}

#[test]
fn modes() {
    let t = |b: &[u8], ip, m| classify(b, ip, m).unwrap().kind;
    assert_eq!(t(&[0xeb, 0xfe], 0x10, Mode::Bits16), Kind::Jump { target: 0x10 });
    // Linear addresses: the segment's base is not known.
    assert_eq!(t(&[0xe9, 0x00, 0x00], 0xfffd, Mode::Bits16), Kind::Jump { target: 0x1_0000 });
    assert_eq!(t(&[0xe8, 0xf0, 0xff], 0xf_e05b, Mode::Bits16), Kind::Call { target: 0xf_e04e });
    assert_eq!(t(&[0x66, 0xe9, 0, 0, 1, 0], 0xf_0000, Mode::Bits16), Kind::Jump { target: 0x10_0006 });
    assert_eq!(t(&[0xe9, 1, 0, 0, 0], 0xffff_fffb, Mode::Bits32), Kind::Jump { target: 1 });
    assert_eq!(t(&[0xce], 0, Mode::Bits32), Kind::Far(Far::Int));
    assert_eq!(Mode::from_cs(true, false), Mode::Bits64);
    assert_eq!(Mode::from_cs(false, true), Mode::Bits32);
    assert_eq!(Mode::from_cs(false, false), Mode::Bits16);
}

#[test]
fn bad_bytes() {
    assert_eq!(classify(&[], IP, Mode::Bits64), Err(InsnError::Truncated(0)));
    assert_eq!(classify(&[0xe8, 0], IP, Mode::Bits64), Err(InsnError::Truncated(2)));
    assert_eq!(classify(&[0x06, 0, 0, 0, 0, 0, 0, 0], IP, Mode::Bits64), Err(InsnError::Invalid));
    assert_eq!(classify(&[0x66; 20], IP, Mode::Bits64), Err(InsnError::Invalid));
}
