// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the reader with another one on the running kernel's BTF, and feeds it generated and damaged input.

use std::sync::Arc;

use kprism_btf::{Btf, Kind};
use kprism_test::{BTF, needs, test};
use proptest::prelude::*;

mod synthetic;

const RUNNING: &str = "/sys/kernel/btf/vmlinux";

/// Returns the running kernel's BTF; the test is ignored if it has none.
fn running() -> Vec<u8> {
    needs(&[BTF]);
    std::fs::read(RUNNING).unwrap()
}

#[test]
fn another_reader_finds_the_same() {
    let bytes = running();
    let judge = btfparse::TypeInformation::new(&Judged(bytes.clone()));
    let ours = Btf::parse(RUNNING, bytes, None).unwrap();
    let Ok(judge) = judge else { panic!("btfparse reads what the kernel has") };
    let mut compared = 0;
    for ty in ours.types().filter(|ty| ty.kind == Kind::Struct && !ty.name.is_empty()) {
        let Some(size) = ours.size_of(ty.id) else { panic!("struct {} has no size", ty.name) };
        let Ok(theirs) = judge.size_of(ty.id) else { continue };
        assert_eq!(size, theirs as u64, "struct {}", ty.name);
        compared += 1;
    }
    assert!(compared > 1000, "{compared} structs compared");
    for path in ["pid", "tgid", "comm", "se.sum_exec_runtime", "mm", "parent"] {
        let id = judge.id_of("task_struct").expect("task_struct");
        let theirs = judge.offset_of(id, path).expect("a member");
        let theirs = match theirs.1 {
            btfparse::Offset::ByteOffset(bytes) => i64::from(bytes),
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(i64::from(ours.offset("task_struct", path).unwrap()), theirs, "{path}");
    }
}

struct Judged(Vec<u8>);

impl btfparse::Readable for Judged {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> btfparse::Result<()> {
        let from = offset as usize;
        let beyond = || btfparse::Error::new(btfparse::ErrorKind::IOError, "beyond the end");
        buffer.copy_from_slice(self.0.get(from..from + buffer.len()).ok_or_else(beyond)?);
        Ok(())
    }
}

#[test]
fn functions_of_the_running_kernel() {
    let bytes = running();
    let btf = Btf::parse(RUNNING, bytes, None).unwrap();
    let read = btf.function("vfs_read").unwrap();
    let names: Vec<&str> = read.parameters.iter().map(|p| p.name).collect();
    assert_eq!(names, ["file", "buf", "count", "pos"]);
    let types: Vec<String> = read.parameters.iter().map(|p| btf.type_name(p.ty)).collect();
    assert_eq!(types, ["struct file *", "char *", "size_t", "loff_t *"]);
    assert_eq!(btf.type_name(read.result), "ssize_t");
    assert!(!read.variadic);
    assert!(
        btf.function("no_such_function").unwrap_err().to_string().contains("no function no_such_function")
    );
    let missing = btf.offset("task_struct", "no_such_member").unwrap_err().to_string();
    assert!(missing.contains("no member no_such_member in struct task_struct"), "{missing}");
}

/// Each type of the kernel is found by its kind and name: of several with the same, the one with the lowest number. Names
/// that are only a part of a string of the table are not found.
#[test]
fn every_name_of_the_running_kernel() {
    let btf = Btf::parse(RUNNING, running(), None).unwrap();
    let mut first = std::collections::BTreeMap::new();
    for ty in btf.types().filter(|ty| !ty.name.is_empty()) {
        first.entry((ty.kind, ty.name)).or_insert(ty.id);
    }
    assert!(first.len() > 10_000, "{} names", first.len());
    for (&(kind, name), &id) in &first {
        assert_eq!(btf.find(kind, name).map(|ty| ty.id), Some(id), "{kind:?} {name}");
        let cut = &name[1..];
        assert_eq!(btf.find(kind, cut).map(|ty| ty.id), first.get(&(kind, cut)).copied(), "{kind:?} {cut}");
    }
}

/// Many types with one name: the search does not go through all of them each time.
#[test]
fn one_name_for_all() {
    let (bytes, count) = synthetic::all_of_one_name(200_000);
    let btf = Btf::parse("made", bytes, None).unwrap();
    assert_eq!(btf.end_id(), count + 1);
    assert_eq!(btf.find(Kind::Fwd, "same").map(|ty| ty.id), Some(1));
    assert!(btf.find(Kind::Struct, "same").is_none());
}

#[test]
fn made_up_types() {
    let btf = Btf::parse("made", synthetic::kernel(), None).unwrap();
    let file = btf.structure("file").unwrap();
    let names: Vec<&str> = btf.members(file).map(|m| m.name).collect();
    assert_eq!(names, ["flags", "", "mode"]);
    // A member of the anonymous union, which begins at bit 64.
    assert_eq!(btf.member(file.id, "inner").unwrap().bit_offset, 64);
    let mode = btf.member(file.id, "mode").unwrap();
    assert_eq!((mode.bit_offset, mode.bits), (128, Some(3)));
    assert_eq!(btf.size_of(file.id), Some(24));
    let open = btf.function("open").unwrap();
    assert_eq!(btf.type_name(open.parameters[0].ty), "const struct file *");
    assert!(open.variadic);
    assert_eq!(open.parameters.len(), 1);
    let states = btf.find(Kind::Enum, "state").unwrap();
    assert_eq!(btf.enumerators(states).collect::<Vec<_>>(), [("OFF", 0), ("BAD", -1)]);

    // A module's type numbers continue the kernel's.
    let base = Arc::new(btf);
    let end = base.end_id();
    let module =
        Btf::parse("module", synthetic::module(end, synthetic::kernel_strings()), Some(base)).unwrap();
    assert_eq!(module.structure("private").unwrap().id, end);
    assert_eq!(module.type_name(module.member(end, "file").unwrap().ty), "struct file *");
    assert_eq!(module.structure("file").unwrap().id, file_id(&module));
}

fn file_id(btf: &Btf) -> u32 {
    btf.structure("file").unwrap().id
}

#[test]
fn errors_name_the_place() {
    let whole = synthetic::kernel();
    let error = |bytes: &[u8]| Btf::parse("made", bytes.to_vec(), None).unwrap_err().to_string();
    assert_eq!(error(&[]), "made: offset 0x0: expected a header of 24 bytes");
    assert_eq!(error(&[0; 24]), "made: offset 0x0: expected the magic number 0xeb9f");
    assert_eq!(error(&whole[..whole.len() - 1]), "made: offset 0x10: expected strings within the file");
    let mut kind = whole.clone();
    kind[24 + 7] = 31;
    assert_eq!(error(&kind), "made: offset 0x1c: expected a kind from 1 to 19, not 31");
    let mut name = whole.clone();
    name[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(error(&name).starts_with("made: offset 0x18: expected a name within the strings"));
}

proptest! {
    #[test]
    fn any_change_gives_a_value_or_an_error(at in 0usize..400, byte: u8, cut in 0usize..400) {
        let mut bytes = synthetic::kernel();
        let len = bytes.len();
        bytes[at % len] = byte;
        bytes.truncate(len - cut % len / 4);
        if let Ok(btf) = Btf::parse("made", bytes, None) {
            synthetic::ask_everything(&btf);
        }
    }
}

kprism_test::main!();
