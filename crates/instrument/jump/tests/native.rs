// SPDX-License-Identifier: MIT OR Apache-2.0
//! Trampolines run in this process, judged by the compiler's interpreter: the same verdict for the same registers and memory, and
//! all registers, the flags and the red zone as before.

use std::collections::BTreeMap;

use iced_x86::code_asm::*;
use iced_x86::{Decoder, DecoderOptions};
use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Func, Input, Space};
use kprism_expr::regs::Reg;
use kprism_expr::scope::Bare;
use kprism_expr::{lower, opt};
use kprism_jump::displace::Displaced;
use kprism_jump::native::{Native, Where};
use kprism_jump::trampoline::{APART, Addresses, COUNTERS, trampoline};

const ORDER: [(Reg, AsmRegister64); 14] = [
    (Reg::R15, r15),
    (Reg::R14, r14),
    (Reg::R13, r13),
    (Reg::R12, r12),
    (Reg::Rbp, rbp),
    (Reg::Rbx, rbx),
    (Reg::R11, r11),
    (Reg::R10, r10),
    (Reg::R9, r9),
    (Reg::R8, r8),
    (Reg::Rax, rax),
    (Reg::Rcx, rcx),
    (Reg::Rdx, rdx),
    (Reg::Rsi, rsi),
];
/// Words of a state: the registers above, rdi, the flags, the red zone.
const WORDS: usize = 32;
const RDI: usize = 14;
const FLAGS: usize = 15;
const PAGE: u64 = 4096;

/// `fn(state, code)`: calls the code with the registers and the red zone of the state, and stores there what they are then.
fn harness() -> Vec<u8> {
    let mut asm = CodeAssembler::new(64).unwrap();
    let mut made = || {
        for register in [rbp, rbx, r12, r13, r14, r15, rdi, rsi] {
            asm.push(register)?;
        }
        for word in 0..16 {
            asm.mov(rax, qword_ptr(rdi + 128 + 8 * word))?;
            asm.mov(qword_ptr(rsp - 16 - 8 * word), rax)?;
        }
        asm.push(qword_ptr(rdi + 8 * FLAGS))?;
        asm.popfq()?;
        for (n, (_, register)) in ORDER.iter().enumerate() {
            asm.mov(*register, qword_ptr(rdi + 8 * n))?;
        }
        asm.mov(rdi, qword_ptr(rdi + 8 * RDI))?;
        asm.call(qword_ptr(rsp))?;
        asm.push(rdi)?;
        asm.mov(rdi, qword_ptr(rsp + 16))?;
        for (n, (_, register)) in ORDER.iter().enumerate() {
            asm.mov(qword_ptr(rdi + 8 * n), *register)?;
        }
        asm.pop(qword_ptr(rdi + 8 * RDI))?;
        asm.pushfq()?;
        asm.pop(qword_ptr(rdi + 8 * FLAGS))?;
        for word in 0..16 {
            asm.mov(rax, qword_ptr(rsp - 16 - 8 * word))?;
            asm.mov(qword_ptr(rdi + 128 + 8 * word), rax)?;
        }
        for register in [rsi, rdi, r15, r14, r13, r12, rbx, rbp] {
            asm.pop(register)?;
        }
        asm.ret()
    };
    made().unwrap();
    asm.assemble(0).unwrap()
}

/// Pages: the harness, the code, data, counters, whether hits count.
struct Memory(u64);

impl Memory {
    fn new() -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 5 << 12, rights, flags, -1, 0) };
        assert!(at != libc::MAP_FAILED);
        let this = Self(at.addr() as u64);
        this.put(this.0, &harness());
        let data: Vec<u8> = (0..PAGE as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        this.put(this.data(), &data);
        this.put(this.0 + 4 * PAGE, &1_u64.to_le_bytes());
        this
    }

    fn data(&self) -> u64 {
        self.0 + 2 * PAGE
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        assert!(at >= self.0 && at + bytes.len() as u64 <= self.0 + 5 * PAGE);
        // SAFETY: within the mapping, and no reference into it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
    }

    fn byte(&self, at: u64) -> u8 {
        assert!(at >= self.0 && at < self.0 + 5 * PAGE);
        // SAFETY: within the mapping.
        unsafe { (at as *const u8).read() }
    }

    fn counted(&self) -> u64 {
        let at = |number: usize| self.0 + 3 * PAGE + (number * APART) as u64;
        (0..COUNTERS)
            .map(|number| u64::from(self.byte(at(number))) + 256 * u64::from(self.byte(at(number) + 1)))
            .sum()
    }

    fn run(&self, state: &mut [u64; WORDS]) {
        // SAFETY: the code of `harness` is there, has this type, and keeps what the ABI says.
        let harness: extern "C" fn(*mut u64, u64) = unsafe { std::mem::transmute(self.0 as *const u8) };
        harness(state.as_mut_ptr(), self.0 + PAGE);
    }
}

struct Given<'a>(BTreeMap<Reg, u64>, &'a Memory);

impl Machine for Given<'_> {
    fn input(&mut self, input: Input) -> u64 {
        let Input::Reg(reg) = input else { return 0 };
        self.0[&reg]
    }
    fn read(&mut self, _: Space, at: u64, into: &mut [u8]) -> bool {
        let data = self.1.data();
        let fits = at >= data && at.saturating_add(into.len() as u64) <= data + PAGE;
        for (n, byte) in into.iter_mut().enumerate().filter(|_| fits) {
            *byte = self.1.byte(at + n as u64);
        }
        fits
    }
    fn var(&mut self, _: u16) -> &mut u64 {
        unreachable!("no variables")
    }
}

fn compiled(text: &str) -> Func {
    let env = lower::Env { scope: &Bare(Space::User), vars: &[] };
    let mut func = lower::condition(text, env).unwrap_or_else(|e| panic!("{}", e.render(text))).func;
    opt::optimise(&mut func);
    func
}

/// Writes the condition's trampoline into the memory, with a return as the displaced instruction.
fn put(func: &Func, memory: &Memory) -> Result<(), String> {
    let data = memory.data()..memory.data() + PAGE;
    let readable = std::slice::from_ref(&data);
    let place = memory.0 + 2 * PAGE - 64;
    let native = Native::new(func, Where { place, slide: 0, readable })?;
    let ret = Decoder::with_ip(64, &[0xc3], place, DecoderOptions::NONE).decode();
    let displaced = Displaced { instructions: vec![ret], len: 5 };
    let (code, counters, on) = (memory.0 + PAGE, memory.0 + 3 * PAGE, memory.0 + 4 * PAGE);
    let made = trampoline(&native, &displaced, Addresses { place, code, counters, on })?;
    assert_eq!(made.code[made.nop..][..2], [0x90, 0xc3]);
    memory.put(code, &made.code);
    Ok(())
}

/// Compares trampoline and interpreter for many registers. Returns how often the condition was false.
fn compare(text: &str, memory: &Memory) -> u64 {
    const SPECIAL: [u64; 8] = [0, 1, u64::MAX, 1 << 63, 0x8000_0000, 0x7fff_ffff, 0xffff_ffff, 5];
    let func = compiled(text);
    put(&func, memory).unwrap_or_else(|why| panic!("{text}: {why}"));
    let (mut seed, mut counted) = (0x9e37_79b9_7f4a_7c15_u64, 0);
    for round in 0..4000_u64 {
        let mut next = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let value = seed >> 7 ^ seed << 31;
            match seed >> 60 {
                0..=5 => SPECIAL[(value >> 20) as usize % 8],
                6..=9 => value & 0xff,
                _ => value,
            }
        };
        let mut state: [u64; WORDS] = std::array::from_fn(|_| next());
        // Carry, parity, adjust, zero, sign, overflow; interrupts are on.
        state[FLAGS] = (next() & 0x8d5) | 0x202;
        let mut registers: BTreeMap<Reg, u64> =
            ORDER.iter().enumerate().map(|(n, (reg, _))| (*reg, state[n])).collect();
        registers.extend([(Reg::Rdi, state[RDI]), (Reg::Eflags, state[FLAGS])]);
        let before = (state, memory.counted());
        memory.run(&mut state);
        assert_eq!(state, before.0, "{text}: round {round}: registers changed");
        let is_false = interp::run(&func, &mut Given(registers, memory)) == Ok(0);
        counted += u64::from(is_false);
        assert_eq!(
            memory.counted() - before.1,
            u64::from(is_false),
            "{text}: round {round}: {:x?}",
            before.0
        );
    }
    counted
}

#[test]
fn as_the_interpreter() {
    let memory = Memory::new();
    let data = memory.data();
    let conditions = [
        "$rdi == 1".to_owned(),
        "2*(int)$rdi + 3*(int)$rsi < 0".to_owned(),
        "(int)$rdi / (int)$rsi > 1 || $rdx % $rcx == 5".to_owned(),
        "(long)$rax / (long)$rcx < 0 && (long)$rax % (long)$rdx != 1".to_owned(),
        "($rdi << ($rsi & 63)) > ($r8 >> $r9)".to_owned(),
        "((int)$rdi >> (int)$rsi) == -1 || ((unsigned)$r10 >> 3) <= (unsigned)$r11".to_owned(),
        "(char)$rbx < (short)$rbp && !(($r12 ^ $r13) & 4) || ($r14 | $r15) == ~$rax".to_owned(),
        "$rdi > 3 ? $rsi < 100 : $rdx <= 1000".to_owned(),
        "($eflags & 0x41) == 1".to_owned(),
        format!("*(int*){data} + (int)$rdi > 5"),
        format!("((char*){data})[$rdi] < 0"),
        format!("((unsigned short*){data})[$rdi & 255] > ((short*){data})[7]"),
    ];
    for text in &conditions {
        let counted = compare(text, &memory);
        assert!((1..4000).contains(&counted), "{text}: {counted}");
    }
}

#[test]
fn the_stack_is_read_within_bounds() {
    let memory = Memory::new();
    let told = |text: &str, state: [u64; WORDS]| {
        put(&compiled(text), &memory).unwrap_or_else(|why| panic!("{text}: {why}"));
        let (mut now, before) = (state, memory.counted());
        memory.run(&mut now);
        assert_eq!(now, state, "{text}");
        memory.counted() == before
    };
    let mut state = [0; WORDS];
    state[FLAGS] = 0x202;
    state[16] = 77;
    // The return address, and the red zone's first word.
    assert!(told("*(long*)$rsp != 0", state));
    assert!(told("*(long*)($rsp - 8) == 77", state));
    assert!(!told("*(long*)($rsp - 8) == 78", state));
    // A register that is no frame pointer: the uprobe tells.
    assert!(told("*(long*)($rbp + 8) == 78", state));
    state[4] = u64::MAX - 4;
    assert!(told("*(long*)($rbp + 8) == 78", state));
}

#[test]
fn refusals() {
    let memory = Memory::new();
    let why = |text: &str| put(&compiled(text), &memory).expect_err(text);
    assert!(why("*(long*)$rdi == 1").contains("pointer"));
    assert!(why("*(long*)($rsp + 4096) == 1").contains("may not be mapped"));
    assert!(why("*(long*)64 == 1").contains("not of the program's file"));
    assert!(why("$tid == 1").contains("kernel knows"));
    assert!(why("$comm == \"a\"").contains("text"));
}

/// As long as hits do not count, none does, and the condition is not asked.
#[test]
fn off() {
    let memory = Memory::new();
    put(&compiled("$rdi == 1"), &memory).unwrap();
    memory.put(memory.0 + 4 * PAGE, &[0]);
    let mut state = [0; WORDS];
    state[FLAGS] = 0x202;
    memory.run(&mut state);
    assert_eq!(memory.counted(), 0);
    memory.put(memory.0 + 4 * PAGE, &[1]);
    memory.run(&mut state);
    assert_eq!(memory.counted(), 1);
}
