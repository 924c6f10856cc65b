// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hand-made BTF with every important kind, and a function that calls every lookup.

use kprism_btf::{Btf, Kind};

#[derive(Default)]
struct Maker {
    types: Vec<u8>,
    strings: Vec<u8>,
    first_string: u32,
}

impl Maker {
    fn name(&mut self, name: &str) -> u32 {
        if name.is_empty() {
            return 0;
        }
        let at = self.first_string + self.strings.len() as u32;
        self.strings.extend(name.bytes().chain([0]));
        at
    }

    fn ty(&mut self, name: &str, kind: Kind, flag: bool, vlen: u32, size: u32, extra: &[u32]) {
        let name = self.name(name);
        let info = vlen | (kind as u32) << 24 | u32::from(flag) << 31;
        for word in [name, info, size].iter().chain(extra) {
            self.types.extend(word.to_le_bytes());
        }
    }

    fn finish(self) -> Vec<u8> {
        let (types, strings) = (self.types.len() as u32, self.strings.len() as u32);
        let mut out = vec![0x9f, 0xeb, 1, 0];
        for word in [24, 0, types, types, strings] {
            out.extend(u32::to_le_bytes(word));
        }
        out.extend(self.types);
        out.extend(self.strings);
        out
    }
}

/// `struct file { long flags; union { long inner; }; unsigned mode:3; }`, `void open(const struct file *, ...)`,
/// `enum state { OFF, BAD = -1 }`, `long table[4]`.
pub fn kernel() -> Vec<u8> {
    let mut make = Maker { strings: vec![0], ..Maker::default() };
    make.ty("long", Kind::Int, false, 0, 8, &[1 << 24 | 64]); // 1
    let inner = make.name("inner");
    make.ty("", Kind::Union, false, 1, 8, &[inner, 1, 0]); // 2
    let (flags, mode) = (make.name("flags"), make.name("mode"));
    make.ty("file", Kind::Struct, true, 3, 24, &[flags, 1, 0, 0, 2, 64, mode, 1, 128 | 3 << 24]); // 3
    make.ty("", Kind::Const, false, 0, 3, &[]); // 4
    make.ty("", Kind::Ptr, false, 0, 4, &[]); // 5
    let f = make.name("f");
    make.ty("", Kind::FuncProto, false, 2, 0, &[f, 5, 0, 0]); // 6
    make.ty("open", Kind::Func, false, 1, 6, &[]); // 7
    let (off, bad) = (make.name("OFF"), make.name("BAD"));
    make.ty("state", Kind::Enum, true, 2, 4, &[off, 0, bad, u32::MAX]); // 8
    make.ty("", Kind::Array, false, 0, 0, &[1, 1, 4]); // 9
    make.ty("table", Kind::Typedef, false, 0, 9, &[]); // 10
    make.ty("", Kind::Ptr, false, 0, 3, &[]); // 11
    make.finish()
}

/// Returns the size in bytes of [`kernel`]'s strings.
pub fn kernel_strings() -> u32 {
    let bytes = kernel();
    u32::from_le_bytes([bytes[20], bytes[21], bytes[22], bytes[23]])
}

/// `struct private { struct file *file; }`. Its member has type 11 of the kernel.
pub fn module(_end: u32, first_string: u32) -> Vec<u8> {
    let mut make = Maker { first_string, ..Maker::default() };
    let file = make.name("file");
    make.ty("private", Kind::Struct, false, 1, 8, &[file, 11, 0]);
    make.finish()
}

/// Calls every lookup. None may panic, hang or use much memory.
pub fn ask_everything(btf: &Btf) {
    for ty in btf.types() {
        assert!(btf.type_name(ty.id).len() < 1 << 20);
        let _ = (btf.size_of(ty.id), btf.resolve(ty.id), btf.array(ty), btf.integer(ty), btf.as_function(ty));
        let _ = btf.enumerators(ty).count();
        for member in btf.members(ty) {
            let _ = btf.member(ty.id, member.name);
        }
        let _ = btf.member(ty.id, "no such member");
        if !ty.name.is_empty() {
            let found = btf.find(ty.kind, ty.name).expect("a type that is there");
            assert_eq!((found.kind, found.name), (ty.kind, ty.name));
        }
    }
}

/// `count` types of one kind, all with the name `same`; and their number.
pub fn all_of_one_name(count: u32) -> (Vec<u8>, u32) {
    let mut make = Maker { strings: vec![0], ..Maker::default() };
    let name = make.name("same");
    for _ in 0..count {
        [name, (Kind::Fwd as u32) << 24, 0].iter().for_each(|word| make.types.extend(word.to_le_bytes()));
    }
    (make.finish(), count)
}
