// SPDX-License-Identifier: MIT OR Apache-2.0
//! A compiled expression as text and JSON: GDB's bytecode, if it is that, the names that it reads, its IR, its eBPF.

use kprism_expr::emit::Cpu;
use kprism_expr::explained::Explained;
use kprism_expr::lower::Use;
use serde_json::{Value, json};

/// The text. `plain`: with the IR before it was optimised.
pub fn to_text(of: &Explained, plain: bool) -> String {
    let Explained { place, lowered, program, .. } = of;
    let mut out = match of.address {
        Some(pc) => format!("at {place}, {pc:#x}\n"),
        None => format!("at {place}\n"),
    };
    if !of.bytecode.is_empty() {
        out += "\nGDB's bytecode\n";
        out.extend(of.bytecode.iter().map(|step| format!("  {step}\n")));
    }
    if !lowered.uses.is_empty() {
        out += "\nnames\n";
        let width = |f: fn(&Use) -> &str| lowered.uses.iter().map(|u| f(u).len()).max().unwrap_or(0);
        let (a, b, c) = (width(|u| &u.name), width(|u| u.role), width(|u| &u.ty));
        for u in &lowered.uses {
            out += &format!("  {:a$}  {:b$}  {:c$}  {}\n", u.name, u.role, u.ty, u.place);
        }
    }
    let kept = kept(of);
    if !kept.is_empty() {
        out += &format!("\nneeds a probe at the function's entry that keeps: {}\n", kept.join(", "));
    }
    if plain {
        out += &format!("\nIR as written\n{}\n", indent(&of.plain));
    }
    out += &format!("\nIR, value of type {}\n{}\n", lowered.ty, indent(&lowered.func.to_string()));
    let version = if of.cpu == Cpu::V3 { "v3" } else { "v4" };
    out += &format!("eBPF {version}\n{}\n", indent(&program.listing()));
    out + &format!(
        "{} instructions, at most {} run; {} bytes of stack\n",
        program.insns.len(),
        program.longest(),
        program.stack
    )
}

/// The same as JSON, with the eBPF's bytes.
pub fn to_json(of: &Explained) -> Value {
    let Explained { place, lowered, program, .. } = of;
    let name = |u: &Use| json!({"name": u.name, "kind": u.role, "type": u.ty, "place": u.place});
    let code: String = program.bytes().iter().map(|b| format!("{b:02x}")).collect();
    json!({
        "place": place, "address": of.address.map(|pc| format!("{pc:#x}")), "type": lowered.ty,
        "bytecode": of.bytecode.iter().map(|step| json!({"offset": step.at, "text": step.text})).collect::<Vec<_>>(),
        "names": lowered.uses.iter().map(name).collect::<Vec<_>>(), "entry_probe_keeps": kept(of),
        "ir": lowered.func.to_string().lines().collect::<Vec<_>>(),
        "ebpf": program.listing().lines().collect::<Vec<_>>(), "code": code,
        "instructions": program.insns.len(), "longest_path": program.longest(), "stack": program.stack,
    })
}

/// Values that a probe at the function's entry has to keep.
fn kept(of: &Explained) -> Vec<String> {
    of.lowered.func.kept().iter().map(ToString::to_string).collect()
}

fn indent(text: &str) -> String {
    text.lines().map(|l| format!("  {l}\n")).collect()
}
