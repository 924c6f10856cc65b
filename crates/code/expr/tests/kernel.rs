// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs generated programs in this machine's kernel. The verifier must accept each, in both instruction set versions,
//! and the results must equal the interpreter's. `KPRISM_EXPR_PROGRAMS` sets the number of programs.

#[path = "support/kernel.rs"]
mod machine;
#[path = "support/pack.rs"]
mod pack;
mod support;

use kprism_expr::emit::{self, Cpu, Output, program};
use kprism_test::{BPF, needs, test};
use machine::Kernel;
use pack::{Packed, Tried, packed};

#[test]
fn the_kernel_takes_programs_and_agrees() {
    needs(&[BPF]);
    let kernel = Kernel::new().expect("maps and memory");
    verify(&kernel);
    agree(&kernel);
}

/// Runs several programs at once, as in the guest, where a million are run (`make test-expr-kernel`).
fn agree(kernel: &Kernel) {
    let count = std::env::var("KPRISM_EXPR_PROGRAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(6000);
    let mut tried = Tried::default();
    let mut file = Vec::new();
    for first in (0..count).step_by(8) {
        packed(1, first, 8, 2).write(&mut file).expect("to memory");
    }
    let mut file = &file[..];
    while let Some(pack) = Packed::read(&mut file).expect("what was written") {
        pack.compare(kernel, &mut tried);
    }
    println!("{tried:?}");
    assert!(tried.expressions > count / 3 && tried.faults > tried.runs / 10);
}

/// Programs that read registers or output records cannot be run this way, but they must load.
fn verify(kernel: &Kernel) {
    use kprism_expr::ir::{Builder, Input, Kept, Op, Record, Space, Term, Width};
    use kprism_expr::regs::Reg;
    let mut b = Builder::new();
    let w = Width::W64;
    let rdi = b.push(Op::Input(Input::Reg(Reg::Rdi)), w);
    let rsi = b.push(Op::Input(Input::Reg(Reg::Rsi)), w);
    for text in [false, true] {
        b.push(Op::Record(Record::Memory { space: Space::User, addr: rdi, len: rsi, text }), w);
    }
    b.push(Op::Record(Record::Var(1)), w);
    b.push(Op::Record(Record::Format(0, vec![rsi, rdi, rsi])), w);
    let sp = b.push(Op::Input(Input::Reg(Reg::Rsp)), w);
    let then = b.push(Op::Entry(Kept::Time, sp), w);
    let was = b.push(Op::Entry(Kept::Reg(Reg::Rdi), sp), w);
    let now = b.push(Op::Input(Input::Time), w);
    let id = b.push(Op::Input(Input::PidTgid), w);
    let cpu = b.push(Op::Input(Input::Cpu), w);
    let comm = b.push(Op::TextEq(kprism_expr::ir::Text::Comm, (*b"kprism").into()), Width::W32);
    let comm = b.ext(comm, 32, false, w);
    let sum =
        [was, now, id, cpu, comm].into_iter().fold(then, |a, v| b.bin(kprism_expr::ir::BinOp::Add, a, v));
    b.end(Term::Return(sum));
    let mut func = b.finish();
    for _ in 0..2 {
        for cpu in [Cpu::V3, Cpu::V4] {
            let code = program(&func, cpu, Output::Verdict).expect("small");
            kernel.load(&code, true).unwrap_or_else(|e| panic!("{e}"));
            kernel.load(&emit::entry(&code.kept, true), true).unwrap_or_else(|e| panic!("entry: {e}"));
        }
        kprism_expr::opt::optimise(&mut func);
    }
}

kprism_test::main!();
