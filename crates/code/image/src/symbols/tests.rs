// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the functions of a run, over this test's own program as a mapped file.

use super::*;
use crate::sideband::{Ksymbol, Mmap};

fn mmap(asid: u64, start: u64, path: &str) -> Record {
    let end = start + 0x10_0000_0000;
    let path = path.to_owned();
    Record::Mmap(Mmap { t: 0, cpu: 0, pid: 1, tgid: 1, asid, start, end, pgoff: 0, exec: true, path })
}

#[inline(never)]
fn landmark(n: u64) -> u64 {
    std::hint::black_box(n) + 2
}

/// The same library at two addresses gives one function. Kernel addresses ignore the address space.
#[test]
fn one_function_for_all_processes() {
    assert_eq!(landmark(1), 3);
    let exe = std::env::current_exe().unwrap();
    let path = exe.to_str().unwrap();
    let records = [mmap(0x1000, 0x5000_0000_0000, path), mmap(0x2000, 0x6000_0000_0000, path)];
    let symbols = Symbols::load(b"ffffffff81000000 T startup_64\n", &records, Some(Path::new("/"))).unwrap();
    let me = (0..symbols.len() as u32)
        .map(FunctionId)
        .find(|&id| symbols.function(id).name.ends_with("symbols::tests::landmark"))
        .unwrap();
    // The file is loaded at 0, so file offset and link-time address differ only by the segment's offset.
    let bytes = std::fs::read(&exe).unwrap();
    let elf = elf::parse(&bytes, "me").unwrap();
    let start = symbols.function(me).start;
    let offset = (0..bytes.len() as u64).find(|&o| elf.address_of(o) == Some(start)).unwrap();
    let a = symbols.locate(0x1000, 0x5000_0000_0000 + offset, 1).unwrap();
    let b = symbols.locate(0x2000, 0x6000_0000_0000 + offset, 1).unwrap();
    assert_eq!((a.func, b.func), (me, me));
    assert_eq!(a.start, 0x5000_0000_0000 + offset);
    assert_eq!(b.start - a.start, 0x1000_0000_0000);
    assert!(symbols.locate(7, 0xffff_ffff_8100_0001, 1).is_some());
    assert!(symbols.missing().is_empty());
}

#[test]
fn files_without_symbols_are_one_function() {
    let records = [mmap(0x1000, 0x10000, "/no/such/file"), mmap(0x2000, 0x20_0000_0000, "[vdso]")];
    let symbols = Symbols::load(b"", &records, Some(Path::new("/"))).unwrap();
    let at = symbols.locate(0x1000, 0x10400, 1).unwrap();
    assert_eq!(symbols.function(at.func).module, "/no/such/file");
    assert_eq!(symbols.function(at.func).name, "[unknown]");
    assert_eq!(at.start, 0x10000);
    let vdso = symbols.locate(0x2000, 0x20_0000_0010, 1).unwrap();
    assert_eq!(symbols.function(vdso.func).name, "[vdso]");
    assert_eq!(symbols.missing().len(), 2);
    assert!(symbols.locate(0x9000, 0x1, 1).is_none());
    let nowhere = symbols.function_at(0x9000, 0x1, 1);
    assert!(!nowhere.known);
    assert_eq!(symbols.describe(nowhere.id).name, "[unknown]");
    let kernel = symbols.function_at(0, u64::MAX, 1);
    assert!(symbols.describe(kernel.id).kernel);
    // 0x3000 would be the program's own tables beside 0x2000.
    let spaces: Vec<u64> = symbols.changes().iter().map(|change| change.asid).collect();
    assert_eq!(spaces, [0x1000, 0x2000, 0x3000]);
}

#[test]
fn a_file_that_is_there_and_no_elf_is_told_from_one_that_is_not_there() {
    let root = std::env::temp_dir().join(format!("kprism-damaged-{}", std::process::id()));
    std::fs::create_dir_all(root.join("bin")).unwrap();
    std::fs::write(root.join("bin/program"), "garbage").unwrap();
    let records = [mmap(0x1000, 0x10000, "/bin/program (deleted)"), mmap(0x2000, 0x10000, "/bin/other")];
    let symbols = Symbols::load(b"", &records, Some(&root)).unwrap();
    let damaged: Vec<bool> = symbols.missing().iter().map(|file| file.damaged).collect();
    assert_eq!(damaged, [true, false]);
    assert!(symbols.missing()[0].reason.contains("bin/program"), "{:?}", symbols.missing());
    std::fs::remove_dir_all(root).unwrap();
}

#[test]
fn guest_paths_cannot_leave_the_root() {
    assert_eq!(under_root(Path::new("/r"), "/a/b"), Some(PathBuf::from("/r/a/b")));
    assert_eq!(under_root(Path::new("/r"), "/../etc/passwd"), None);
}

/// The path in a file system that is mounted somewhere is another file's path in the whole.
#[test]
fn a_path_whose_mount_is_not_known_names_no_file() {
    assert_eq!(under_root(Path::new("/r"), "…/a/b"), None);
    let exe = std::env::current_exe().unwrap();
    let path = format!("…{}", exe.display());
    let symbols = Symbols::load(b"", &[mmap(0x1000, 0x10000, &path)], Some(Path::new("/"))).unwrap();
    let at = symbols.locate(0x1000, 0x10400, 1).unwrap();
    assert_eq!((symbols.function(at.func).name.as_str(), at.known), ("[unknown]", false));
    assert_eq!(symbols.function(at.func).module, path);
    assert!(symbols.missing()[0].reason.contains("mounted"), "{:?}", symbols.missing());
}

/// Two processes have files of one path mapped; one of them is the file that is there.
#[test]
fn code_of_another_file_has_no_names_of_this_one() {
    let exe = std::env::current_exe().unwrap();
    let path = exe.to_str().unwrap();
    let (one, other) = (0x5000_0000_0000, 0x6000_0000_0000);
    let records = [mmap(0x1000, one, path), mmap(0x2000, other, path), mmap(0x4000, one, path)];
    let mut symbols = Symbols::load(b"", &records, Some(Path::new("/"))).unwrap();
    let bytes = std::fs::read(&exe).unwrap();
    let elf = elf::parse(&bytes, "me").unwrap();
    let function = elf.table.functions().iter().find(|f| f.name.ends_with("symbols::tests::landmark"));
    let start = function.unwrap().start;
    let offset = (0..bytes.len() as u64).find(|&o| elf.address_of(o) == Some(start)).unwrap();
    let code = &bytes[offset as usize..][..64];
    let changed: Vec<u8> = code.iter().map(|byte| !byte).collect();
    let mut stopped = code.to_vec();
    stopped[0] = 0xcc;
    let ran = [
        (0x1000, one + offset, code),
        (0x2000, other + offset, &changed[..]),
        // A breakpoint; and the program's own tables of the same address space.
        (0x4000, one + offset, &stopped[..]),
        (0x3000, other + offset, &changed[..]),
    ];
    let Checked { others, not_compared } = symbols.check(ran);
    assert_eq!(others, [format!("{path} at {other:#x} of address space 0x2000")]);
    assert!(not_compared.is_empty(), "{not_compared:?}");
    let name = |asid, va| {
        let function = symbols.function(symbols.locate(asid, va, 1).unwrap().func);
        (function.name.clone(), function.module.clone())
    };
    for asid in [0x1000, 0x4000] {
        assert!(name(asid, one + offset).0.ends_with("symbols::tests::landmark"), "{asid:#x}");
    }
    for asid in [0x2000, 0x3000] {
        assert_eq!(name(asid, other + offset), ("[unknown]".into(), format!("{path} (other code)")));
    }
}

/// A process maps a library where it had another one before: which of them ran is a question of time.
#[test]
fn code_where_several_files_were_is_told_as_not_compared() {
    let exe = std::env::current_exe().unwrap();
    let path = exe.to_str().unwrap();
    let (here, there) = (0x5000_0000_0000, 0x6000_0000_0000);
    let records = [mmap(0x1000, here, path), mmap(0x1000, here, "/no/such/file"), mmap(0x1000, there, path)];
    let mut symbols = Symbols::load(b"", &records, Some(Path::new("/"))).unwrap();
    let bytes = std::fs::read(&exe).unwrap();
    let changed: Vec<u8> = bytes[..64].iter().map(|byte| !byte).collect();
    let told = symbols.check([(0x1000, here, &changed[..]), (0x1000, there, &bytes[..64])]);
    // The file without symbols has no names that could be wrong.
    let place = format!("{path} at {here:#x} of address space 0x1000");
    let not_compared = vec![format!("{place}: several files were mapped there, one after the other")];
    assert_eq!(told, Checked { others: vec![], not_compared });
    let behind = [(0x1000, there + (1 << 35), &changed[..])];
    let told = symbols.check(behind);
    let place = format!("{path} at {there:#x} of address space 0x1000");
    assert_eq!(told.not_compared, [format!("{place}: the file ends before its code")]);
}

/// A BPF program takes the place of another one; kallsyms was read when there was a third.
#[test]
fn names_of_kernel_code_hold_in_time() {
    let first = 0xffff_ffff_c002_2000;
    let record = |t, gone, name: &str| {
        let (name, module) = (name.to_owned(), "[bpf]".to_owned());
        Record::Ksymbol(Ksymbol { t, cpu: 0, start: first, end: first + 64, gone, name, module, entry: None })
    };
    let records = [record(10, false, "one"), record(20, true, "one"), record(30, false, "two")];
    let kallsyms = b"ffffffffc0021ff0 t before\t[bpf]\nffffffffc0022000 t third\t[bpf]\n";
    let symbols = Symbols::load(kallsyms, &records, None).unwrap();
    let name = |va, ns| {
        let at = symbols.function_at(0, va, ns);
        assert!(at.start <= va && va < at.end);
        symbols.describe(at.id).name
    };
    assert_eq!([5, 15, 25, 35].map(|ns| name(first + 8, ns)), ["third", "one", "[unknown]", "two"]);
    let times: Vec<u64> = symbols.changes().iter().map(|change| change.at_ns).collect();
    assert_eq!(times, [10, 20, 30]);
    // Who reads the code of one of them has no time.
    let all: Vec<FunctionId> = symbols.kernel_functions(first + 8).iter().map(|at| at.func).collect();
    let names: Vec<&str> = all.iter().map(|&id| symbols.function(id).name.as_str()).collect();
    assert_eq!(names, ["third", "one", "two"]);
    for id in all {
        assert_eq!(symbols.locate_from(id, first + 8).map(|at| at.func), Some(id));
    }
    let before = symbols.kernel_functions(first - 1)[0].func;
    assert_eq!(
        symbols.locate_from(before, first + 8).map(|at| at.func),
        Some(symbols.locate(0, first, 35).unwrap().func)
    );
    // Behind the program is what kallsyms has there, and its range has nothing of the program's.
    let behind = symbols.function_at(0, first + 64, 15);
    assert_eq!((symbols.describe(behind.id).name.as_str(), behind.start), ("third", first + 64));
    assert_eq!(name(first - 1, 15), "before");
}

/// A module that is loaded, and one that stays, whose functions are in kallsyms too.
#[test]
fn functions_of_modules_are_named_while_they_are_there() {
    let first = 0xffff_ffff_c002_2000;
    let record = |t, gone, at: (u64, u64), entry: u64, name: &str, module: &str| {
        let (start, end) = (first + at.0, first + at.1);
        let (name, module, entry) = (name.to_owned(), module.to_owned(), Some(first + entry));
        Record::Ksymbol(Ksymbol { t, cpu: 0, start, end, gone, name, module, entry })
    };
    let records = [
        record(10, false, (0, 64), 0, "work", "[gone]"),
        record(10, false, (256, 272), 0, "work", "[gone]"),
        record(20, true, (0, 64), 0, "work", "[gone]"),
        record(20, true, (256, 272), 0, "work", "[gone]"),
        record(30, false, (0, 48), 0, "stay", "[stays]"),
        record(30, false, (48, 64), 48, "other_name", "[stays]"),
        record(30, false, (4096, 4112), 4096, "begin", "[stays]"),
        record(40, true, (4096, 4112), 4096, "begin", "[stays]"),
        record(50, false, (4096, 4112), 4096, "begin", "[gone]"),
    ];
    let kallsyms = b"ffffffffc0022000 t stay\t[stays]\nffffffffc0022030 t its\t[stays]\n\
        ffffffffc0022030 t other_name\t[stays]\n";
    let symbols = Symbols::load(kallsyms, &records, None).unwrap();
    let at = |va, ns| symbols.function_at(0, first + va, ns);
    let name = |va, ns| symbols.describe(at(va, ns).id).name;
    assert_eq!([15, 25, 35].map(|ns| name(8, ns)), ["work", "[unknown]", "stay"]);
    // The part that was moved away is the function's, and no entry of it.
    let (whole, part) = (at(8, 15), at(260, 15));
    assert_eq!((part.id, part.entry, part.start), (whole.id, first, first + 256));
    assert_eq!(symbols.describe(whole.id).module, "[gone]");
    // Of kallsyms and of a record, under each name: one function.
    for va in [8, 50] {
        assert_eq!(at(va, 35).id, symbols.kernel_functions(first + va)[0].func.0);
    }
    assert_eq!(
        ["stay", "its"].map(|name| symbols.functions.iter().filter(|f| f.name == name).count()),
        [1, 1]
    );
    assert!(symbols.functions.iter().all(|function| function.name != "other_name"));
    // It comes back to other addresses, where it stays: its functions are the same. Two static functions of one name are two.
    let again = [
        record(10, false, (0, 64), 0, "work", "[gone]"),
        record(10, false, (64, 80), 64, "twin", "[gone]"),
        record(10, false, (80, 96), 80, "twin", "[gone]"),
        record(20, true, (0, 64), 0, "work", "[gone]"),
        record(30, false, (8192, 8256), 8192, "work", "[gone]"),
    ];
    let kept = Symbols::load(b"ffffffffc0024000 t work\t[gone]\n", &again, None).unwrap();
    let (old, new) = (kept.function_at(0, first + 8, 15), kept.function_at(0, first + 8200, 35));
    assert_eq!((old.id, old.entry, new.entry), (new.id, first, first + 8192));
    assert_eq!(kept.functions.iter().filter(|function| function.name == "work").count(), 1);
    assert_eq!(kept.functions.iter().filter(|function| function.name == "twin").count(), 2);
    // A BPF program came where a module was: no record says so, but kallsyms has it.
    let bpf = b"ffffffffc0022000 t bpf_prog_1\t[bpf]\n";
    let later = Symbols::load(bpf, &records[..4], None).unwrap();
    let name_later = |ns| later.describe(later.function_at(0, first + 8, ns).id).name;
    assert_eq!([15, 25].map(name_later), ["work", "bpf_prog_1"]);
    // Its init is freed, though the module stays.
    assert_eq!([35, 45, 55].map(|ns| name(4100, ns)), ["begin", "[unknown]", "begin"]);
    let modules = [35, 55].map(|ns| symbols.describe(at(4100, ns).id).module);
    assert_eq!(modules, ["[stays]", "[gone]"], "all modules have an init_module");
}

/// A mapping covers the end of a function of an older one.
#[test]
fn a_function_does_not_reach_into_a_later_mapping() {
    let exe = std::env::current_exe().unwrap();
    let path = exe.to_str().unwrap();
    let base = 0x5000_0000_0000;
    let one = [mmap(0x1000, base, path)];
    let symbols = Symbols::load(b"", &one, Some(Path::new("/"))).unwrap();
    let bytes = std::fs::read(&exe).unwrap();
    let elf = elf::parse(&bytes, "me").unwrap();
    let long = elf.table.ranges().iter().find(|range| range.end - range.start >= 64).unwrap().start;
    let offset = (0..bytes.len() as u64).find(|&o| elf.address_of(o) == Some(long)).unwrap();
    let at = symbols.function_at(0x1000, base + offset, 1);
    assert!(at.known && at.end - at.start >= 64);
    let middle = at.start + 32;
    let Record::Mmap(over) = mmap(0x1000, middle, "/no/such/file") else { panic!("a mapping") };
    let both = [one[0].clone(), Record::Mmap(Mmap { t: 10, ..over })];
    let symbols = Symbols::load(b"", &both, Some(Path::new("/"))).unwrap();
    let before = symbols.function_at(0x1000, base + offset, 9);
    assert_eq!((before.start, before.end), (at.start, at.end));
    let after = symbols.function_at(0x1000, base + offset, 10);
    assert_eq!((after.id, after.start, after.end), (at.id, at.start, middle));
    assert!(!symbols.function_at(0x1000, middle, 10).known);
}
