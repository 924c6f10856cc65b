// SPDX-License-Identifier: MIT OR Apache-2.0
//! Locations of parameters by clang at the first instruction of optimised functions, and functions that only assembler has.

use std::fs;
use std::path::Path;
use std::process::Command;

use kprism_expr::dwarf::{Debug, Image, Places};
use kprism_expr::ir::Space;
use kprism_expr::scope::{Location, Scope as _, Storage};
use kprism_test::{GCC, needs, skip, test};

/// Nine parameters: the last ones are in the caller's frame, relative to a stack pointer that the prologue moves.
const MANY: &str = r#"
struct big { long v[4]; };
__attribute__((noinline)) long many(int a, int b, int c, int d, int e, int f, int g, long h, struct big s) { long arr[8] = { a, b, c, d, e, f, g, h }; __asm__ volatile("" :: "r"(arr) : "memory"); return arr[(a + g) & 7] + s.v[1]; }
int main(void) { struct big s = { { 90, 91, 92, 93 } }; return (int)many(1, 2, 3, 4, 5, 6, 77, 88, s); }
"#;

fn built(compiler: &str, folder: &Path, files: &[(&str, &str)], flags: &[&str]) -> std::path::PathBuf {
    let program = folder.join("made");
    let mut command = Command::new(compiler);
    command.args(flags).args(["-g", "-no-pie", "-o"]).arg(&program);
    for (name, text) in files {
        fs::write(folder.join(name), text).expect("a file");
        command.arg(folder.join(name));
    }
    match command.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(_) => skip(format!("no {compiler} here: install it")),
    }
    program
}

fn text(location: &Location) -> String {
    match location {
        Location::Whole(Storage::Memory(at)) => at.to_string(),
        other => other.to_string(),
    }
}

#[test]
fn the_stack_pointer_of_the_body_is_not_that_of_the_prologue() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = built("clang", folder.path(), &[("many.c", MANY)], &["-O2"]);
    let image = Image::open(&program).expect("debug information");
    let debug = Debug::new(&image).expect("debug information");
    for spec in ["many", "many+0", "many.c:3"] {
        let found = Places::of(&debug, spec, Space::User).expect("a place");
        let place = &found.places[0];
        let location =
            |name: &str| text(&place.variable(name).expect("known").expect("a parameter").location);
        assert_eq!(place.pc, place.entry, "{spec}");
        // The first stack argument is above the return address.
        assert_eq!(
            [location("g"), location("h"), location("s")],
            ["rsp + 8", "rsp + 16", "rsp + 24"],
            "{spec}"
        );
        assert_eq!(location("a"), "rdi", "{spec}");
    }
}

#[test]
fn what_the_prologue_has_not_stored_is_refused() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().expect("a folder");
    let source = "volatile int sink;\n__attribute__((noinline)) int work(int n, int m) {\n\tsink = n;\n\treturn m;\n}\nint main(void) { return work(1, 2); }\n";
    let program = built("gcc", folder.path(), &[("work.c", source)], &["-O0"]);
    let image = Image::open(&program).expect("debug information");
    let debug = Debug::new(&image).expect("debug information");
    let at = |spec: &str| {
        let found = Places::of(&debug, spec, Space::User).expect("a place");
        text(&found.places[0].variable("m").expect("known").expect("a parameter").location)
    };
    // `push %rbp` has one byte.
    assert!(at("work+1").contains("not stored yet"), "{}", at("work+1"));
    assert_eq!(at("work"), "rsi");
    assert_eq!(at("work.c:2"), at("work.c:3"));
    // Behind the prologue, for those who asked for a parameter.
    let found = Places::of(&debug, "work", Space::User).expect("a place");
    let place = &found.places[0];
    assert!(place.in_body().expect("lines").is_none());
    place.variable("m").expect("known");
    let (pc, body) = place.in_body().expect("lines").expect("behind the prologue");
    assert!(pc > place.entry && body.at_entry());
    assert_eq!(text(&body.variable("m").expect("known").expect("a parameter").location), at("work.c:3"));
}

#[test]
fn functions_of_assembler_need_no_type() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().expect("a folder");
    let code = "\t.text\n\t.globl twice\ntwice:\n\tlea (%rdi,%rdi), %eax\n\tret\n\t.section .note.GNU-stack,\"\",@progbits\n";
    let source = "int twice(int);\nint main(void) { return twice(21); }\n";
    let program = built("gcc", folder.path(), &[("twice.S", code), ("main.c", source)], &["-O1"]);
    let image = Image::open(&program).expect("debug information");
    let debug = Debug::new(&image).expect("debug information");
    let found = Places::of(&debug, "twice", Space::User).expect("a place");
    assert_eq!((found.places.len(), found.symbols.len()), (0, 1));
    assert!(found.symbols[0].describe().starts_with("twice, at entry"));
}

kprism_test::main!();
