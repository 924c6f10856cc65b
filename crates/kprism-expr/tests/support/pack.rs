// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many programs as one, which the kernel verifies and compiles at once: each runs after the other, and leaves its
//! result in a state of its own. So a slow machine can try a million.

use kprism_expr::emit::{self, Cpu, Insn, Map, Output, Program, Reloc, program};
use kprism_expr::ir::{Func, Input, Op, Space};
use kprism_expr::lower::{self, Env};
use kprism_expr::opt;
use kprism_expr::regs::Reg;
use kprism_expr::scope::Bare;

use super::machine::Kernel;
use super::text::{REGISTERS, VARIABLES, expression};
use super::{Bytes, World, interpret};

/// A generator that needs nothing (splitmix64).
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn bytes(seed: u64, number: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ number;
    let length = length + random(&mut state) % (3 * length);
    (0..length).map(|_| random(&mut state) as u8).collect()
}

/// A program, by its number.
pub struct Case {
    /// As C, if it was made so.
    pub text: Option<String>,
    /// What the front end made.
    pub func: Func,
}

/// The program of this number: one half are of IR, one half of C's expressions.
pub fn case(seed: u64, number: u64) -> Case {
    let bytes = bytes(seed, number, 60);
    let mut source = Bytes(&bytes);
    if number % 2 == 1 {
        let vars = VARIABLES.map(str::to_owned);
        for depth in [5, 4, 3] {
            let text = expression(&mut source, depth);
            // Some are no C: two pointers are not multiplied.
            if let Ok(lowered) = lower::value(&text, Env { scope: &Bare(Space::User), vars: &vars }) {
                return Case { text: Some(text), func: with_arguments(lowered.func) };
            }
        }
    }
    Case { text: None, func: super::program(&mut source, true) }
}

/// A raw tracepoint has arguments, no registers.
fn with_arguments(mut func: Func) -> Func {
    for def in &mut func.vals {
        if let Op::Input(Input::Reg(reg)) = def.op {
            let at = REGISTERS.iter().position(|name| Reg::by_name(name) == Some(reg));
            def.op = Op::Input(Input::Arg(at.expect("only these are used") as u8));
        }
    }
    func
}

/// What the programs of this number's pack run on, in this round.
pub fn world(seed: u64, number: u64, round: u64) -> World {
    let bytes = bytes(!seed, number.wrapping_mul(31).wrapping_add(round), 120);
    World::new(&mut Bytes(&bytes))
}

/// How each is compiled: as it is, and optimised.
fn compiled(func: &Func) -> [Program; 3] {
    let mut better = func.clone();
    opt::optimise(&mut better);
    let made = |func, cpu| program(func, cpu, Output::State).expect("small");
    [made(func, Cpu::V3), made(&better, Cpu::V3), made(&better, Cpu::V4)]
}

/// Bytes of state that each has.
const STRIDE: i32 = emit::VARS + 8 * VARIABLES.len() as i32;
/// Where in it the program's answer goes.
const ANSWER: i32 = 96;
/// Where on the stack the context is kept.
const CONTEXT: i16 = -512;

/// Programs one after another: instructions, and the maps they name.
#[derive(Default)]
struct Pack {
    code: Program,
    count: i32,
}

impl Pack {
    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.code.insns.push(Insn { code, dst, src, off, imm });
    }

    fn add(&mut self, program: &Program) {
        const EXIT: u8 = 0x95;
        const GOTO: u8 = 0x05;
        let state = self.count * STRIDE;
        self.count += 1;
        // r1 = the context.
        self.push(0x79, 1, 10, CONTEXT, 0);
        let at = self.code.insns.len();
        let end = program.insns.len();
        for (n, insn) in program.insns.iter().enumerate() {
            let mut insn = *insn;
            if insn.code == EXIT {
                insn = Insn { code: GOTO, off: (end - n - 1) as i16, ..Insn::default() };
            }
            self.code.insns.push(insn);
        }
        for (n, reloc) in &program.relocs {
            let Reloc::MapValue(map, offset) = reloc else { unreachable!("only the state is named") };
            self.relocate(at + n, *map, state + offset);
        }
        let at = self.code.insns.len();
        self.push(0x18, 5, 2, 0, 0);
        self.push(0, 0, 0, 0, 0);
        self.relocate(at, Map::State, state + ANSWER);
        self.push(0x7b, 5, 0, 0, 0);
    }

    fn relocate(&mut self, at: usize, map: Map, offset: i32) {
        self.code.insns[at + 1].imm = offset;
        self.code.relocs.push((at, Reloc::MapValue(map, offset)));
    }

    fn finish(mut self) -> Program {
        self.push(0xb7, 0, 0, 0, 0);
        self.push(0x95, 0, 0, 0, 0);
        self.code
    }
}

/// What was tried.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tried {
    /// Programs.
    pub programs: u64,
    /// Of these, made of C.
    pub expressions: u64,
    /// Each is compiled in three ways and run on some worlds.
    pub runs: u64,
    /// Of these, ended by a fault.
    pub faults: u64,
    /// Instructions that were verified.
    pub insns: u64,
}

/// Runs programs `first..first + count` in the interpreter and in the kernel, on `rounds` worlds: a difference panics.
pub fn compare(kernel: &Kernel, seed: u64, first: u64, count: u64, rounds: u64, tried: &mut Tried) {
    let cases: Vec<Case> = (first..first + count).map(|number| case(seed, number)).collect();
    let mut pack = Pack::default();
    pack.push(0x7b, 10, 1, CONTEXT, 0);
    let mut alone = Vec::new();
    let mut ways = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        tried.programs += 1;
        tried.expressions += u64::from(case.text.is_some());
        for (way, program) in compiled(&case.func).into_iter().enumerate() {
            tried.insns += program.insns.len() as u64;
            // One that uses the whole stack leaves no place for the context.
            if program.stack > 504 {
                alone.push((n, way, program));
            } else {
                pack.add(&program);
                ways.push((n, way));
            }
        }
    }
    let whole = pack.finish();
    let loaded =
        kernel.load(&whole, false).unwrap_or_else(|e| panic!("programs from {first}, seed {seed}: {e}"));
    for round in 0..rounds {
        let world = world(seed, first, round);
        let expected: Vec<_> = cases.iter().map(|case| interpret(&case.func, &world)).collect();
        tried.runs += ways.len() as u64;
        tried.faults += ways.iter().filter(|(n, _)| expected[*n].0.is_err()).count() as u64;
        let states = kernel.run_pack(&loaded, &world, ways.len(), STRIDE as usize / 8);
        for ((n, way), state) in ways.iter().zip(states.chunks(STRIDE as usize / 8)) {
            let found = super::ended(state[ANSWER as usize / 8], state);
            differs(&cases[*n], (seed, first + *n as u64, *way), &world, found, expected[*n]);
        }
        for (n, way, program) in &alone {
            let loaded = kernel.load(program, false).unwrap_or_else(|e| panic!("program {n}: {e}"));
            tried.runs += 1;
            let found = kernel.run(&loaded, &world);
            differs(&cases[*n], (seed, first + *n as u64, *way), &world, found, expected[*n]);
        }
    }
}

fn differs(
    case: &Case,
    which: (u64, u64, usize),
    world: &World,
    found: super::Ended,
    expected: super::Ended,
) {
    if found == expected {
        return;
    }
    let code = &compiled(&case.func)[which.2];
    panic!(
        "seed {}, program {}, way {}: the kernel {found:?}, the interpreter {expected:?}\n{}\n{}{}arguments {:x?}",
        which.0,
        which.1,
        which.2,
        case.text.as_deref().unwrap_or("of IR"),
        case.func,
        code.listing(),
        world.args,
    );
}
