// SPDX-License-Identifier: MIT OR Apache-2.0
//! Places in inlined helpers, as a compiler makes them of a kernel's static tracepoints: GDB sees the locals of the
//! function around at the address beside them.

use std::path::Path;
use std::process::Command;

use kprism_debuginfo::Image;
use kprism_debuginfo::beside::{Beside, Wanted, Why, code_sections, of_file};
use kprism_test::{GCC, GDB, needs, test};

const SOURCE: &str = r#"
#define inlined static inline __attribute__((always_inline))
#define PLACE(name)                                                       \
    inlined int key_##name(void)                                          \
    {                                                                     \
        asm goto(".globl " #name "\n" #name ": .byte 0x66, 0x90\n"        \
                 ".pushsection .table,\"aw\"\n.quad %l0\n.popsection"     \
                 : : : : yes);                                            \
        return 0;                                                         \
    yes:                                                                  \
        return 1;                                                         \
    }                                                                     \
    inlined void trace_##name(int a, int b)                               \
    {                                                                     \
        if (key_##name())                                                 \
            called(a, b);                                                 \
    }
#define NOINLINE __attribute__((noinline, noclone))

void called(int a, int b);
int given(void);
int counter;

PLACE(last)
PLACE(amid)
PLACE(deep)

/* What is behind the no-op is a return, which belongs to the helper. */
NOINLINE void around_last(int one, int two)
{
    counter++;
    trace_last(one, two);
}

/* The local moves before the place. */
NOINLINE int around_amid(int first)
{
    int value = given();
    trace_amid(value, first);
    counter += value;
    return given() + value;
}

inlined int inner(int given_to_inner)
{
    int square = given_to_inner * given_to_inner;
    trace_deep(square, given_to_inner);
    return square + counter;
}

/* The function around the place is inlined itself. */
NOINLINE int around_deep(int outer)
{
    return inner(outer + counter) * outer;
}

void called(int a, int b) { counter += a * b; }
NOINLINE int given(void) { asm volatile(""); return counter; }
int main(void)
{
    around_last(1, 2);
    return around_amid(3) + around_deep(4);
}
"#;

fn built(folder: &Path, more: &[&str]) -> std::path::PathBuf {
    let (source, program) = (folder.join("places.c"), folder.join("places"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-g", "-no-pie", "-fno-asynchronous-unwind-tables", "-fno-pic", "-o"]).arg(&program);
    let output = gcc.args(more).arg(&source).output().expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn beside(program: &Path, name: &str) -> (u64, Result<Beside, Why>) {
    let address = Image::map(program).unwrap().symbol(name).expect("the place");
    let helpers = vec![format!("key_{name}"), format!("trace_{name}")];
    let found = of_file(program, &[], &[Wanted { address, helpers }]).unwrap().expect("debug information");
    (address, found[0].clone())
}

/// GDB's words on the scope at an address.
fn scope(program: &Path, address: u64) -> String {
    let scope = format!("info scope *{address:#x}");
    let gdb = Command::new("gdb").args(["-nx", "-batch", "-ex", &scope]).arg(program).output();
    String::from_utf8(gdb.expect("GDB runs").stdout).unwrap()
}

#[test]
fn gdb_sees_the_locals_beside_the_place() {
    needs(&[GCC, GDB]);
    let folder = tempfile::tempdir().unwrap();
    let program = built(folder.path(), &[]);
    let all = [
        ("last", "around_last", ["one", "two"]),
        ("amid", "around_amid", ["first", "value"]),
        ("deep", "inner", ["given_to_inner", "square"]),
    ];
    for (name, function, seen) in all {
        let (place, found) = beside(&program, name);
        let found = found.unwrap_or_else(|why| panic!("{name}: {why:?}"));
        assert_eq!(found.function, function, "{found:x?}");
        // Of the inlined function GCC computes `square` behind all code of its own.
        let unknown = if name == "deep" { &["square"][..] } else { &[] };
        assert_eq!(found.missing, unknown, "{name}: {found:x?}");
        assert!(
            !found.pieces.iter().any(|(start, end)| (*start..*end).contains(&place)),
            "{name} {found:x?}"
        );
        let told = scope(&program, found.pieces[0].0);
        for local in seen {
            assert!(told.contains(&format!("Symbol {local} is ")), "{name}: {local} at {found:x?}: {told}");
        }
        // At the place itself GDB knows none of them.
        let there = scope(&program, place);
        assert!(!seen.iter().any(|local| there.contains(&format!("Symbol {local} is "))), "{name}: {there}");
    }
}

#[test]
fn what_nothing_describes() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().unwrap();
    let program = built(folder.path(), &[]);
    let place = |address| vec![Wanted { address, helpers: Vec::new() }];
    assert_eq!(of_file(&program, &[], &place(0x10)).unwrap(), Some(vec![Err(Why::Undescribed)]));
    let text = code_sections(&program).unwrap().into_iter().find(|section| section.name == ".text").unwrap();
    let (address, _) = beside(&program, "last");
    assert!((text.start..text.start + text.size).contains(&address));
    let bare = built(folder.path(), &["-g0"]);
    assert_eq!(of_file(&bare, &[], &place(address)).unwrap(), None);
    assert!(of_file(Path::new("/nonexistent"), &[], &[]).is_err());
    assert!(code_sections(Path::new("/proc/self/cmdline")).is_err());
}

kprism_test::main!();
