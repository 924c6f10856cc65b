// SPDX-License-Identifier: MIT OR Apache-2.0
//! Joins many programs into one, so that the kernel verifies and compiles them at once. The programs run one after the
//! other, and each stores its result in a state of its own. A slow machine can then run a million: packs are generated
//! on a fast one, together with the interpreter's results, and passed in a file.

use std::io::{self, Read, Write};

use kprism_expr::emit::{self, Cpu, Insn, Map, Output, Program, Reloc, program};
use kprism_expr::ir::{FAULTS, Func};
use kprism_expr::opt;

use crate::machine::Kernel;
use crate::support::text::{VARIABLES, compiled};
use crate::support::{self, Bytes, World, interpret};

/// A random number generator without dependencies (splitmix64).
pub fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn bytes(seed: u64, number: u64, length: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0xd6e8_feb8_6659_fd93) ^ number;
    let length = length + random(&mut state) % (5 * length);
    (0..length).map(|_| random(&mut state) as u8).collect()
}

/// A generated program.
pub struct Case {
    /// Number of the program.
    pub number: u64,
    /// Source text, if it was generated as C.
    pub text: Option<String>,
    /// The IR, not optimised.
    pub func: Func,
}

/// Generates the program of this number: half of them as IR, half as C expressions.
pub fn case(seed: u64, number: u64) -> Case {
    let bytes = bytes(seed, number, 30);
    let mut source = Bytes(&bytes);
    if number % 2 == 1
        && let Some((text, func)) = compiled(&mut source, true)
    {
        return Case { number, text: Some(text), func };
    }
    Case { number, text: None, func: support::program(&mut source, true) }
}

/// Generates the inputs of this number's pack in this round.
pub fn world(seed: u64, number: u64, round: u64) -> World {
    let bytes = bytes(!seed, number.wrapping_mul(31).wrapping_add(round), 120);
    World::new(&mut Bytes(&bytes))
}

/// Compiles a program for v3 and for v4, one of them optimised, alternating.
fn ways(case: &Case) -> [Program; 2] {
    let mut better = case.func.clone();
    opt::optimise(&mut better);
    let made = |func, cpu| program(func, cpu, Output::State).expect("small");
    match case.number / 2 % 2 {
        0 => [made(&better, Cpu::V3), made(&case.func, Cpu::V4)],
        _ => [made(&case.func, Cpu::V3), made(&better, Cpu::V4)],
    }
}

/// Size of each program's state in bytes.
const STRIDE: i32 = emit::VARS + 8 * VARIABLES.len() as i32;
/// Offset of the program's return value in its state.
const ANSWER: i32 = 96;
/// Programs joined one after another.
struct Pack {
    code: Program,
    count: i32,
    /// Stack offset of the saved context: just below the programs' own stack, because the verifier compares and copies
    /// the whole stack at each branch.
    context: i16,
}

impl Pack {
    fn new(stack: u32) -> Self {
        let context = -(stack.next_multiple_of(8) as i16) - 8;
        let mut pack = Self { code: Program::default(), count: 0, context };
        pack.push(0x7b, 10, 1, context, 0);
        pack
    }

    fn push(&mut self, code: u8, dst: u8, src: u8, off: i16, imm: i32) {
        self.code.insns.push(Insn { code, dst, src, off, imm });
    }

    fn add(&mut self, program: &Program) {
        const EXIT: u8 = 0x95;
        const GOTO: u8 = 0x05;
        let state = self.count * STRIDE;
        self.count += 1;
        // r1 = the context.
        self.push(0x79, 1, 10, self.context, 0);
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

/// Statistics of a run.
#[derive(Debug, Default, Clone, Copy)]
pub struct Tried {
    /// Number of programs.
    pub programs: u64,
    /// Programs generated as C.
    pub expressions: u64,
    /// Runs: each program is compiled in two ways and run on several worlds.
    pub runs: u64,
    /// Runs that ended with a fault.
    pub faults: u64,
    /// Instructions that the kernel verified.
    pub insns: u64,
}

/// Joined programs with the interpreter's results.
pub struct Packed {
    seed: u64,
    first: u64,
    rounds: u64,
    /// Programs generated as C.
    expressions: u64,
    /// Members of the pack, as `number << 1 | way`. A program that uses the whole stack is left out, for lack of space
    /// for the context.
    members: Vec<u64>,
    insns: Vec<u64>,
    /// By round and case: 0 or the fault's number, value, variables.
    expected: Vec<[u64; 2 + VARIABLES.len()]>,
}

/// Generates the programs `first..first + count`, with their results on `rounds` worlds.
pub fn packed(seed: u64, first: u64, count: u64, rounds: u64) -> Packed {
    let cases: Vec<Case> = (first..first + count).map(|number| case(seed, number)).collect();
    let mut all = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let both = ways(case).into_iter().enumerate();
        all.extend(both.map(|(way, program)| ((n << 1 | way) as u64, program)));
    }
    all.retain(|(_, program)| program.stack <= 504);
    let mut pack = Pack::new(all.iter().map(|(_, program)| program.stack).max().unwrap_or(0));
    all.iter().for_each(|(_, program)| pack.add(program));
    let insns = pack.finish().insns.iter().map(|i| u64::from_le_bytes(i.bytes())).collect();
    let mut expected = Vec::new();
    for round in 0..rounds {
        let world = world(seed, first, round);
        expected.extend(cases.iter().map(|case| words(interpret(&case.func, &world))));
    }
    let expressions = cases.iter().filter(|case| case.text.is_some()).count() as u64;
    Packed {
        seed,
        first,
        rounds,
        expressions,
        members: all.iter().map(|(member, _)| *member).collect(),
        insns,
        expected,
    }
}

fn words((result, vars): support::Ended) -> [u64; 2 + VARIABLES.len()] {
    let fault = |f| 1 + FAULTS.iter().position(|known| *known == f).unwrap_or(0) as u64;
    let (fault, value) = result.map_or_else(|f| (fault(f), 0), |value| (0, value));
    [fault, value, vars[0], vars[1]]
}

impl Packed {
    /// Writes the pack as 64-bit words.
    pub fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let sizes = [self.members.len(), self.insns.len(), self.expected.len()].map(|n| n as u64);
        let head = [&[self.seed, self.first, self.rounds, self.expressions][..], &sizes].concat();
        for word in head.iter().chain(&self.members).chain(&self.insns).chain(self.expected.iter().flatten())
        {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(())
    }

    /// Reads the next pack of a file; None at the end.
    pub fn read(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut words = |n: u64| -> io::Result<Vec<u64>> {
            let mut bytes = vec![0; 8 * n as usize];
            from.read_exact(&mut bytes)?;
            Ok(bytes.chunks(8).map(|b| u64::from_le_bytes(b.try_into().expect("8 bytes"))).collect())
        };
        let head = match words(7) {
            Ok(head) => head,
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        };
        let (members, insns) = (words(head[4])?, words(head[5])?);
        let expected = words(head[6] * 4)?;
        let expected = expected.chunks(4).map(|c| c.try_into().expect("4 words")).collect();
        Ok(Some(Self {
            seed: head[0],
            first: head[1],
            rounds: head[2],
            expressions: head[3],
            members,
            insns,
            expected,
        }))
    }

    /// Runs the pack in the kernel. Panics at a difference.
    pub fn compare(&self, kernel: &Kernel, tried: &mut Tried) {
        const WORDS: usize = STRIDE as usize / 8;
        let loaded = kernel.load_words(&self.insns).unwrap_or_else(|e| {
            panic!("programs from {}, seed {}: {e}", self.first, self.seed);
        });
        let count = self.expected.len() / self.rounds as usize;
        tried.programs += count as u64;
        tried.expressions += self.expressions;
        tried.insns += self.insns.len() as u64;
        for (round, expected) in (0..).zip(self.expected.chunks(count)) {
            let world = world(self.seed, self.first, round);
            let states = kernel.run(&loaded, &world, self.members.len(), WORDS);
            for (member, state) in self.members.iter().zip(states.chunks(WORDS)) {
                let expected = expected[(member >> 1) as usize];
                let found = words(support::ended(state[ANSWER as usize / 8], state));
                tried.runs += 1;
                tried.faults += u64::from(found[0] != 0);
                if found != expected {
                    self.differs(*member, &world, found, expected);
                }
            }
        }
    }

    fn differs(&self, member: u64, world: &World, found: [u64; 4], expected: [u64; 4]) {
        let case = case(self.seed, self.first + (member >> 1));
        panic!(
            "seed {}, program {}: fault, value, variables: the kernel {found:x?}, the interpreter {expected:x?}\n{}\n{}{}{:x?}",
            self.seed,
            case.number,
            case.text.as_deref().unwrap_or("of IR"),
            case.func,
            ways(&case)[(member & 1) as usize].listing(),
            world.args,
        );
    }
}
