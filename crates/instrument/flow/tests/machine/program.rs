// SPDX-License-Identifier: MIT OR Apache-2.0
//! Random programs: functions of basic blocks, in real bytes.

use std::collections::HashMap;

use kprism_image::Image;
use kprism_image::resolve::{FuncInfo, FuncRef, Resolve};

use super::Rng;

/// Effect of an instruction on the control flow. Addresses are absolute.
#[derive(Debug, Clone)]
pub enum Term {
    Jcc(u64),
    Jmp(u64),
    Call(u64),
    CallIndirect(Vec<u64>),
    JmpIndirect(Vec<u64>),
    Longjmp,
    Ret,
    Syscall,
    Iret,
}

#[derive(Debug, Clone)]
pub struct Insn {
    pub len: u8,
    pub term: Option<Term>,
    /// It has a repeat prefix: it may take longer than others.
    pub repeats: bool,
}

#[derive(Debug)]
pub struct Func {
    pub name: String,
    pub entry: u64,
    /// Addresses of its blocks.
    pub blocks: Vec<u64>,
    pub end: u64,
}

#[derive(Debug, Default)]
pub struct Program {
    pub funcs: Vec<Func>,
    insns: HashMap<u64, Insn>,
    pub image: Image,
    /// Number of user functions, which come first.
    users: usize,
}

const USER: u64 = 0x40_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;
const STEP: u64 = 0x1000;

/// Kernel functions, in order behind the user's.
const NAMES: [&str; 10] = [
    "entry_SYSCALL_64",
    "__x64_sys_alpha",
    "__x64_sys_beta",
    "asm_sysvec_timer",
    "asm_exc_page_fault",
    "schedule",
    "__switch_to",
    "ret_from_fork",
    "helper_a",
    "helper_b",
];

impl Program {
    pub fn random(rng: &mut Rng, longjmps: bool, switching: bool) -> Self {
        let users = 4 + rng.below(8);
        let mut program = Program { users, ..Program::default() };
        for i in 0..users {
            let entry = USER + i as u64 * STEP;
            program.funcs.push(Func { name: format!("user{i}"), entry, blocks: vec![entry], end: 0 });
        }
        for (i, name) in NAMES.iter().enumerate() {
            let entry = KERNEL + i as u64 * STEP;
            program.funcs.push(Func { name: (*name).to_owned(), entry, blocks: vec![entry], end: 0 });
        }
        for func in 0..program.funcs.len() {
            program.generate(func, rng, longjmps, switching);
        }
        program
    }

    pub fn users(&self) -> Vec<usize> {
        (0..self.users).collect()
    }

    pub fn handlers(&self) -> [usize; 2] {
        [self.users + 3, self.users + 4]
    }

    pub fn syscall_entry(&self) -> usize {
        self.users
    }

    pub fn switch_to(&self) -> Option<usize> {
        Some(self.users + 6)
    }

    pub fn fork_return(&self) -> usize {
        self.users + 7
    }

    /// Returns true where interrupts are off.
    pub fn is_entry_code(&self, ip: u64) -> bool {
        let func = self.func_at(ip);
        ip == self.funcs[func].entry && func >= self.users || func == self.users + 6
    }

    pub fn insn(&self, ip: u64) -> Insn {
        self.insns.get(&ip).unwrap_or_else(|| panic!("the machine ran off its program at {ip:#x}")).clone()
    }

    pub fn func_at(&self, ip: u64) -> usize {
        if ip >= KERNEL {
            self.users + ((ip - KERNEL) / STEP) as usize
        } else {
            ((ip - USER) / STEP) as usize
        }
    }

    /// Functions that code of `func` may call.
    fn callees(&self, func: usize) -> Vec<u64> {
        let range = if func < self.users { 0..self.users } else { self.users + 8..self.funcs.len() };
        range.map(|f| self.funcs[f].entry).collect()
    }

    fn generate(&mut self, func: usize, rng: &mut Rng, longjmps: bool, switching: bool) {
        let kernel = func.checked_sub(self.users);
        let count = 3 + rng.below(6);
        // Sizes first: every block is at most this long.
        let block = |i: usize| 64 * i as u64;
        let entry = self.funcs[func].entry;
        self.funcs[func].blocks = (0..count).map(|i| entry + block(i)).collect();
        let callees = self.callees(func);
        for i in 0..count {
            let mut ip = entry + block(i);
            for _ in 0..rng.below(4) {
                let plain: &[u8] = [
                    &[0x90][..],
                    &[0x48, 0x89, 0xd8],
                    &[0x0f, 0x1f, 0x40, 0],
                    &[0x83, 0xc0, 1],
                    &[0xf3, 0xaa],
                ][rng.below(5)];
                ip = self.emit(ip, plain, None);
            }
            let later = |rng: &mut Rng| entry + block((i + 1 + rng.below(count)).min(count - 1));
            let any = |rng: &mut Rng| entry + block(rng.below(count));
            let last = i + 1 == count;
            if last {
                match kernel {
                    Some(0 | 3 | 4) => self.emit(ip, &[0x48, 0xcf], Some(Term::Iret)),
                    Some(7) => self.emit(ip, &[0x48, 0xcf], Some(Term::Iret)),
                    _ => self.emit(ip, &[0xc3], Some(Term::Ret)),
                };
                continue;
            }
            // Fixed parts of kernel functions.
            match kernel {
                Some(0) if i == 1 => {
                    let bodies = vec![self.funcs[self.users + 1].entry, self.funcs[self.users + 2].entry];
                    ip = self.emit(ip, &[0xff, 0xd0], Some(Term::CallIndirect(bodies)));
                }
                Some(2) if i == 1 && switching => {
                    ip = self.call(ip, self.funcs[self.users + 5].entry);
                }
                Some(5) if i == 1 => ip = self.call(ip, self.funcs[self.users + 6].entry),
                _ => {}
            }
            let fixed = matches!(kernel, Some(0 | 6));
            ip = match rng.below(if fixed { 2 } else { 12 }) {
                0 => self.jmp(ip, later(rng)),
                1..=3 => {
                    let target = if rng.chance(30) { any(rng) } else { later(rng) };
                    // No jump back over the fixed call.
                    let target = if fixed { later(rng) } else { target };
                    self.jcc(ip, target)
                }
                4 | 5 => self.call(ip, callees[rng.below(callees.len())]),
                6 => self.emit(ip, &[0xff, 0xd0], Some(Term::CallIndirect(callees.clone()))),
                7 => {
                    let targets = vec![later(rng), later(rng)];
                    self.emit(ip, &[0xff, 0xe0], Some(Term::JmpIndirect(targets)))
                }
                8 if kernel.is_none() && rng.chance(50) => {
                    let target = callees[rng.below(callees.len())];
                    if rng.chance(50) && target != entry {
                        self.jmp(ip, target)
                    } else {
                        let others = callees.iter().copied().filter(|&c| c != entry).collect();
                        self.emit(ip, &[0xff, 0xe0], Some(Term::JmpIndirect(others)))
                    }
                }
                9 if kernel.is_none() && longjmps => self.emit(ip, &[0xff, 0xe2], Some(Term::Longjmp)),
                10 if kernel.is_none() => self.emit(ip, &[0x0f, 0x05], Some(Term::Syscall)),
                _ => self.jcc(ip, later(rng)),
            };
            // Fall into the next block.
            self.jmp(ip, entry + block(i + 1));
        }
        self.funcs[func].end = entry + block(count);
    }

    fn emit(&mut self, ip: u64, bytes: &[u8], term: Option<Term>) -> u64 {
        self.image.add(0, ip, bytes);
        let repeats = bytes == [0xf3, 0xaa];
        self.insns.insert(ip, Insn { len: bytes.len() as u8, term, repeats });
        ip + bytes.len() as u64
    }

    fn relative(ip: u64, len: u64, target: u64) -> [u8; 4] {
        (target.wrapping_sub(ip + len) as i64 as i32).to_le_bytes()
    }

    fn jmp(&mut self, ip: u64, target: u64) -> u64 {
        let bytes = [&[0xe9][..], &Self::relative(ip, 5, target)].concat();
        self.emit(ip, &bytes, Some(Term::Jmp(target)))
    }

    fn call(&mut self, ip: u64, target: u64) -> u64 {
        let bytes = [&[0xe8][..], &Self::relative(ip, 5, target)].concat();
        self.emit(ip, &bytes, Some(Term::Call(target)))
    }

    fn jcc(&mut self, ip: u64, target: u64) -> u64 {
        let bytes = [&[0x0f, 0x84][..], &Self::relative(ip, 6, target)].concat();
        self.emit(ip, &bytes, Some(Term::Jcc(target)))
    }
}

impl Resolve for Program {
    fn function_at(&self, _asid: u64, va: u64, _at_ns: u64) -> FuncRef {
        let inside = (USER..USER + self.users as u64 * STEP).contains(&va)
            || (KERNEL..KERNEL + NAMES.len() as u64 * STEP).contains(&va);
        if !inside {
            return FuncRef { id: 9999, entry: va, known: false, start: va, end: va.saturating_add(1) };
        }
        let func = self.func_at(va);
        let Func { entry, end, .. } = self.funcs[func];
        FuncRef { id: func as u32, entry, known: true, start: entry, end: end.max(va + 1) }
    }

    fn describe(&self, id: u32) -> FuncInfo {
        match self.funcs.get(id as usize) {
            Some(f) => FuncInfo {
                name: f.name.clone(),
                module: String::new(),
                start: f.entry,
                kernel: f.entry >= KERNEL,
            },
            None => FuncInfo::default(),
        }
    }
}
