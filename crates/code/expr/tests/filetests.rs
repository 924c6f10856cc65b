// SPDX-License-Identifier: MIT OR Apache-2.0
//! File tests: an expression, its IR and its eBPF in one file. `KPRISM_BLESS=1` rewrites the expected output; read the
//! diff before committing it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use kprism_expr::emit::{self, Cpu, Output};
use kprism_expr::ir::Space;
use kprism_expr::lower::{self, Env};
use kprism_expr::opt;
use kprism_expr::scope::Bare;

/// Compiles the expression in a file's first lines.
fn render(header: &str) -> String {
    let mut out = header.to_owned();
    let (mut vars, mut value, mut cpu, mut source) = (Vec::new(), false, Cpu::V3, "");
    for line in header.lines() {
        match line.split_once(": ") {
            Some(("var", name)) => vars.push(name.to_owned()),
            Some(("value", text)) => (value, source) = (true, text),
            Some(("if", text)) => source = text,
            Some(("cpu", "v4")) => cpu = Cpu::V4,
            _ => {}
        }
    }
    let env = Env { scope: &Bare(Space::Kernel), vars: &vars };
    let compile = if value { lower::value } else { lower::condition };
    match compile(source, env) {
        Err(error) => writeln!(out, "\n{}", error.render(source)).expect("to a string"),
        Ok(lowered) => {
            let mut func = lowered.func;
            opt::optimise(&mut func);
            let output = if value { Output::State } else { Output::Verdict };
            let program = emit::program(&func, cpu, output).expect("a small program");
            write!(out, "\n{func}\n{}", program.listing()).expect("to a string");
        }
    }
    out
}

#[test]
fn files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/filetests");
    let mut files: Vec<_> =
        fs::read_dir(&folder).expect("the folder").map(|e| e.expect("an entry").path()).collect();
    files.sort();
    assert!(files.len() >= 10);
    let mut wrong = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        let header: String =
            text.lines().take_while(|l| !l.is_empty()).fold(String::new(), |all, l| all + l + "\n");
        let made = render(&header);
        if made != text && std::env::var_os("KPRISM_BLESS").is_some() {
            fs::write(&file, &made).expect("to be writable");
        } else if made != text {
            wrong.push(format!("{}:\n{made}", file.display()));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
