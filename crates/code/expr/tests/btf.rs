// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF: the running kernel's, if it has any, and arbitrary bytes.

use kprism_btf::Btf;
use kprism_expr::btf::Place;
use kprism_expr::ctype::{TypeRef, Types, name, size_of};
use kprism_expr::lower::{Env, condition};
use kprism_test::{BTF, needs, test};
use proptest::prelude::*;

#[test]
fn the_running_kernel() {
    needs(&[BTF]);
    let data = std::fs::read("/sys/kernel/btf/vmlinux").expect("readable for all");
    let btf = Btf::parse("vmlinux", data, None).expect("the kernel's own types");
    let place = Place::find(&btf, "vfs_read").expect("every kernel has it");
    let env = Env { scope: &place, vars: &[] };
    let lowered = condition("count > 4096 && file->f_inode->i_ino == 1", env).expect("of every kernel");
    let names: Vec<_> =
        lowered.uses.iter().map(|u| (u.name.as_str(), u.ty.as_str(), u.place.as_str())).collect();
    assert_eq!(names, [("count", "size_t", "argument 2"), ("file", "struct file *", "argument 0")]);
    let error = condition("file->flags", env).expect_err("there is none");
    assert_eq!(error.message, "no `flags` in `struct file`");
    assert_eq!(error.help.as_deref(), Some("did you mean `f_flags`?"));
    let place = Place::find(&btf, "vfs_read%return").expect("every kernel has it");
    let lowered = condition("$retval < 0", Env { scope: &place, vars: &[] }).expect("it returns a number");
    assert_eq!(lowered.uses[0].place, "argument 4");
    assert!(
        Place::find(&btf, "vfs_raed").expect_err("misspelt").to_string().contains("did you mean `vfs_read`?")
    );
}

/// Wraps arbitrary types and strings in a BTF header.
fn wrapped(types: &[u8], strings: &[u8]) -> Vec<u8> {
    let mut data = vec![0x9f, 0xeb, 1, 0];
    let (t, s) = (types.len() as u32, strings.len() as u32);
    for word in [24, 0, t, t, s] {
        data.extend(u32::to_le_bytes(word));
    }
    data.extend(types);
    data.extend(strings);
    data
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Types with small numbers refer to each other, also in cycles.
    #[test]
    fn any_types(words in proptest::collection::vec((0u32..8, 0u32..20, 0u32..4, any::<bool>(), 0u32..12), 0..20)) {
        let types: Vec<u8> = words
            .iter()
            .flat_map(|(name, kind, count, flag, value)| [*name, kind << 24 | count | u32::from(*flag) << 31, *value])
            .flat_map(u32::to_le_bytes)
            .collect();
        let data = wrapped(&types, b"\0a\0file\0x\0");
        if let Ok(btf) = Btf::parse("any", data, None) {
            for id in 0..20 {
                let _ = Types::get(&btf, TypeRef(id));
                let ty = kprism_expr::ctype::Ty::Ref(TypeRef(id));
                let _ = (size_of(&btf, &ty), name(&btf, &ty));
            }
            if let Ok(place) = Place::find(&btf, "a") {
                let _ = condition("file->x && x[1]", Env { scope: &place, vars: &[] });
            }
        }
    }
}

kprism_test::main!();
