// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares parameters and results with those that the function itself prints: made-up signatures, compiled by this machine's
//! compilers, stopped by ptrace at each function's entry, behind its prologue and where it returns. A value that is not
//! known is refused; a wrong one fails.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use kprism_expr::dwarf::{Debug, Image, Place};
use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Input, Space};
use kprism_expr::lower::{self, Env};
use kprism_expr::regs::Reg;
use kprism_expr::scope::{ProbePoint, Scope};
use kprism_test::{GCC, needs, skip, test};

/// A type: its name, an initializer in which `@` is a number, and the suffixes of its integers.
type Kind = (&'static str, &'static str, &'static [&'static str]);

const COMMON: &str = r#"
#include <stdio.h>
struct point { int id; float w; };
struct mixed { double d; long l; };
struct turned { long l; double d; };
struct floats { float a, b, c; };
struct among { float a; int i; float c; };
union num { double d; long l; };
union small { float f; short s; };
struct __attribute__((packed)) head { char c; int i; short s; };
struct __attribute__((packed)) tight { char c; short s; };
struct big { long v[3]; };
struct five { char c[5]; };
struct bits { int a : 5; unsigned b : 20; long c : 30; };
struct aligned { int a __attribute__((aligned(16))); };
struct wide { long double x; };
struct both { float _Complex z; int n; };
struct number { __int128 x; };
struct nested { struct { short a; } x[2]; float f; int y; };
struct pair { double a, b; };
struct lone { float f; };
struct text { char *p; unsigned n; };
typedef float four __attribute__((vector_size(16)));
typedef int two __attribute__((vector_size(8)));
struct vector { four v; };
"#;

const KINDS: &[Kind] = &[
    ("signed char", "@", &[""]),
    ("unsigned short", "@", &[""]),
    ("int", "@", &[""]),
    ("long", "@", &[""]),
    ("unsigned long long", "@", &[""]),
    ("char *", "(char *)@", &[""]),
    ("float", "@", &[]),
    ("double", "@", &[]),
    ("long double", "@", &[]),
    ("__int128", "@", &[]),
    ("float _Complex", "@", &[]),
    ("double _Complex", "@", &[]),
    ("long double _Complex", "@", &[]),
    ("four", "{ @, 2 }", &[]),
    ("two", "{ @, 2 }", &[]),
    ("struct point", "{ @, 1.5f }", &[".id"]),
    ("struct mixed", "{ 1.5, @ }", &[".l"]),
    ("struct turned", "{ @, 1.5 }", &[".l"]),
    ("struct floats", "{ 1, 2, @ }", &[]),
    ("struct among", "{ 1, @, 2 }", &[".i"]),
    ("union num", "{ @ }", &[".l"]),
    ("union small", "{ @ }", &[".s"]),
    ("struct head", "{ 'x', @, 7 }", &[".c", ".i", ".s"]),
    ("struct tight", "{ 'y', @ }", &[".s"]),
    ("struct big", "{ { 1, 2, @ } }", &[".v[2]", ".v[0]"]),
    ("struct five", "{ { 1, 2, 3, 4, @ } }", &[".c[4]"]),
    ("struct bits", "{ -3, @, 5 }", &[".a", ".b", ".c"]),
    ("struct aligned", "{ @ }", &[".a"]),
    ("struct wide", "{ @ }", &[]),
    ("struct both", "{ 1, @ }", &[".n"]),
    ("struct number", "{ @ }", &[]),
    ("struct nested", "{ { { 1 }, { 2 } }, 3, @ }", &[".x[1].a", ".y"]),
    ("struct pair", "{ @, 2 }", &[]),
    ("struct lone", "{ @ }", &[]),
    ("struct text", "{ (char *)@, 9 }", &[".p", ".n"]),
    ("struct vector", "{ { @, 2 } }", &[]),
];

const ONLY_C: &str = "struct none {};\n";
const ONLY_C_KINDS: &[Kind] = &[("struct none", "{}", &[]), ("_Bool", "1", &[""])];

const ONLY_CPP: &str = r#"
struct Empty {};
struct Derived : Empty { int a; double d; };
struct Holds { Empty e; int n; };
struct Owned { int a; Owned(int n) : a(n) {} Owned(const Owned &o) : a(o.a) {} ~Owned() {} };
struct Plain { int a; long b; void method() {} };
enum class Color : unsigned char { Red = 1 };
typedef decltype(nullptr) Null;
typedef int Plain::*Field;
typedef void (Plain::*Method)();
static auto none = [](int x) { return x; };
typedef decltype(none) Lambda;
"#;
const ONLY_CPP_KINDS: &[Kind] = &[
    ("Empty", "{}", &[]),
    ("Derived", "{ {}, @, 1.5 }", &[".a"]),
    ("Holds", "{ {}, @ }", &[".n"]),
    ("Owned", "Owned(@)", &[".a"]),
    ("Plain", "{ @, 8 }", &[".a", ".b"]),
    ("Color", "Color::Red", &[]),
    ("Null", "nullptr", &[]),
    ("Field", "&Plain::a", &[]),
    ("Method", "&Plain::method", &[]),
    ("Lambda", "none", &[]),
    ("bool", "true", &[""]),
];

/// A language with its compilers.
#[derive(Clone, Copy)]
struct Language {
    suffix: &'static str,
    standard: &'static [&'static str],
    own: &'static str,
    kinds: &'static [Kind],
}

const C: Language = Language { suffix: "c", standard: &[], own: ONLY_C, kinds: ONLY_C_KINDS };
const CPP: Language =
    Language { suffix: "cc", standard: &["-std=c++17"], own: ONLY_CPP, kinds: ONLY_CPP_KINDS };

/// A linear congruential generator (Knuth, MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A made-up function: its name, and the expressions of its parameters and of its result.
struct Function {
    name: String,
    parameters: Vec<String>,
    results: Vec<String>,
}

/// Writes a program of functions that print their parameters, and whose results are printed.
fn program(language: Language, count: usize, random: &mut Random) -> (String, Vec<Function>) {
    let mut source = format!("{COMMON}{}", language.own);
    let mut main = String::new();
    let mut functions = Vec::new();
    for number in 0..count {
        let mut pick = || {
            let all = KINDS.len() + language.kinds.len();
            let at = random.below(all);
            KINDS.get(at).unwrap_or_else(|| &language.kinds[at - KINDS.len()])
        };
        let returned = pick();
        let kinds: Vec<&Kind> = (0..1 + number % 12).map(|_| pick()).collect();
        let mut value = |init: &str| init.replace('@', &(1 + random.below(100)).to_string());
        let name = format!("work{number}");
        let list: Vec<String> =
            kinds.iter().enumerate().map(|(n, kind)| format!("{} p{n}", kind.0)).collect();
        let mut body = String::new();
        let mut parameters = Vec::new();
        for (n, kind) in kinds.iter().enumerate() {
            for leaf in kind.2 {
                let expression = format!("p{n}{leaf}");
                writeln!(body, "\tprintf(\"{name} {expression} %lld\\n\", (long long){expression});")
                    .unwrap();
                parameters.push(expression);
            }
            writeln!(main, "\t{} a{number}_{n} = {};", kind.0, value(kind.1)).unwrap();
        }
        let list = list.join(", ");
        writeln!(source, "__attribute__((noinline, used)) {} {name}({list})\n{{", returned.0).unwrap();
        writeln!(source, "{body}\t{} r = {};\n\treturn r;\n}}", returned.0, value(returned.1)).unwrap();
        let arguments: Vec<String> = (0..kinds.len()).map(|n| format!("a{number}_{n}")).collect();
        writeln!(main, "\t{} r{number} = {name}({});", returned.0, arguments.join(", ")).unwrap();
        let mut results = Vec::new();
        for leaf in returned.2 {
            writeln!(main, "\tprintf(\"{name} $retval{leaf} %lld\\n\", (long long)r{number}{leaf});")
                .unwrap();
            results.push(format!("$retval{leaf}"));
        }
        functions.push(Function { name, parameters, results });
    }
    writeln!(source, "int main(void)\n{{\n{main}\treturn 0;\n}}").unwrap();
    (source, functions)
}

/// A process that is stopped.
struct Stopped<'m> {
    regs: libc::user_regs_struct,
    memory: &'m File,
}

impl Machine for Stopped<'_> {
    fn input(&mut self, input: Input) -> u64 {
        let r = &self.regs;
        match input {
            Input::Reg(reg) => match reg {
                Reg::Rax => r.rax,
                Reg::Rbx => r.rbx,
                Reg::Rcx => r.rcx,
                Reg::Rdx => r.rdx,
                Reg::Rsi => r.rsi,
                Reg::Rdi => r.rdi,
                Reg::Rbp => r.rbp,
                Reg::Rsp => r.rsp,
                Reg::R8 => r.r8,
                Reg::R9 => r.r9,
                Reg::R10 => r.r10,
                Reg::R11 => r.r11,
                Reg::R12 => r.r12,
                Reg::R13 => r.r13,
                Reg::R14 => r.r14,
                Reg::R15 => r.r15,
                Reg::Rip => r.rip,
                _ => 0,
            },
            _ => 0,
        }
    }

    fn read(&mut self, _: Space, addr: u64, into: &mut [u8]) -> bool {
        self.memory.read_exact_at(into, addr).is_ok()
    }

    fn var(&mut self, _: u16) -> &mut u64 {
        unreachable!("no expression here names a trace state variable")
    }
}

impl Stopped<'_> {
    fn value(&mut self, expression: &str, scope: &dyn Scope) -> Result<i64, String> {
        let lowered = lower::value(expression, Env { scope, vars: &[] }).map_err(|e| e.to_string())?;
        let value = interp::run(&lowered.func, self).map_err(|fault| fault.name().to_owned())?;
        Ok(value as i64)
    }
}

/// A child under ptrace.
struct Child {
    pid: libc::pid_t,
    memory: File,
    /// The bytes that breakpoints replace.
    replaced: BTreeMap<u64, u8>,
}

impl Child {
    fn start(program: &Path, output: &File) -> Self {
        let path = CString::new(program.as_os_str().as_bytes()).expect("a path");
        let arguments = [path.as_ptr(), std::ptr::null()];
        let output = output.as_raw_fd();
        // SAFETY: the child calls nothing but system calls before it executes the program.
        let pid = unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::dup2(output, 1);
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                libc::execv(arguments[0], arguments.as_ptr());
                libc::_exit(127);
            }
            pid
        };
        assert!(pid > 0, "fork");
        let mut status = 0;
        // SAFETY: the status is this function's own.
        unsafe { libc::waitpid(pid, &raw mut status, 0) };
        if !libc::WIFSTOPPED(status) {
            skip("ptrace is not allowed here");
        }
        let memory =
            File::options().read(true).write(true).open(format!("/proc/{pid}/mem")).expect("its memory");
        Self { pid, memory, replaced: BTreeMap::new() }
    }

    fn stop_at(&mut self, address: u64) {
        let mut byte = [0];
        self.memory.read_exact_at(&mut byte, address).expect("code");
        if byte != [0xcc] {
            self.replaced.insert(address, byte[0]);
            self.memory.write_all_at(&[0xcc], address).expect("a breakpoint");
        }
    }

    fn resume(&self, request: libc::c_uint) -> Option<libc::user_regs_struct> {
        let mut status = 0;
        // SAFETY: `user_regs_struct` is plain data, and the child is this process's.
        unsafe {
            libc::ptrace(request, self.pid, 0, 0);
            libc::waitpid(self.pid, &raw mut status, 0);
            if libc::WIFEXITED(status) {
                assert_eq!(libc::WEXITSTATUS(status), 0);
                return None;
            }
            assert!(
                libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP,
                "status {status:#x}"
            );
            let mut regs: libc::user_regs_struct = std::mem::zeroed();
            libc::ptrace(libc::PTRACE_GETREGS, self.pid, 0, &raw mut regs);
            Some(regs)
        }
    }

    /// Runs to the next breakpoint, and puts the instruction back that it replaced.
    fn next(&mut self) -> Option<libc::user_regs_struct> {
        let mut regs = self.resume(libc::PTRACE_CONT)?;
        regs.rip -= 1;
        let byte = self.replaced.get(&regs.rip).expect("a breakpoint of the test");
        self.memory.write_all_at(&[*byte], regs.rip).expect("the instruction");
        // SAFETY: the registers are those of the stopped child.
        unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.pid, 0, &raw const regs) };
        Some(regs)
    }

    /// Executes the instruction at a breakpoint, and sets the breakpoint again.
    fn pass(&mut self, address: u64) {
        self.resume(libc::PTRACE_SINGLESTEP).expect("it goes on");
        self.memory.write_all_at(&[0xcc], address).expect("a breakpoint");
    }
}

/// Values by function, expression and the place at which they were read.
type Values = BTreeMap<(String, String, &'static str), Result<i64, String>>;

/// Runs the program; returns the values of all expressions, and the program's output.
fn values(path: &Path, functions: &[Function], folder: &Path) -> (Values, String) {
    let image = Image::open(path).expect("debug information");
    let debug = Debug::new(&image).expect("debug information");
    let output = folder.join("output");
    let file = File::create(&output).expect("a file");
    let mut child = Child::start(path, &file);
    let mut all = Values::new();
    let mut stops: BTreeMap<u64, (&'static str, &Function, u64)> = BTreeMap::new();
    for function in functions {
        let symbol = |n: &str| {
            n == function.name || n.starts_with(&format!("_Z{}{}", function.name.len(), function.name))
        };
        // A function with a parameter that only this file knows is left out if nothing needs its result.
        let Some(entry) = image.symbols(symbol).first().map(|symbol| symbol.address) else { continue };
        stops.insert(entry, ("entry", function, entry));
        let place = Place::at(&debug, entry, ProbePoint::Entry, Space::User).expect("a place");
        for expression in &function.parameters {
            lower::value(expression, Env { scope: &place, vars: &[] }).ok();
        }
        if let Some((pc, _)) = place.in_body().expect("a line table") {
            stops.insert(pc, ("body", function, entry));
        }
    }
    stops.keys().for_each(|address| child.stop_at(*address));
    while let Some(regs) = child.next() {
        let (what, function, entry) = stops[&regs.rip];
        let memory = child.memory.try_clone().expect("a descriptor");
        let mut stopped = Stopped { regs, memory: &memory };
        let moment = match what {
            "return" => ProbePoint::Return,
            _ => ProbePoint::Entry,
        };
        let place = Place::at(&debug, entry, moment, Space::User).expect("a place");
        let expressions = if what == "return" { &function.results } else { &function.parameters };
        let mut read = |scope: &dyn Scope| {
            for expression in expressions {
                let value = stopped.value(expression, scope);
                all.insert((function.name.clone(), expression.clone(), what), value);
            }
        };
        match what {
            "body" => {
                for expression in expressions {
                    lower::value(expression, Env { scope: &place, vars: &[] }).ok();
                }
                let (pc, body) = place.in_body().expect("a line table").expect("behind the prologue");
                assert_eq!(pc, regs.rip);
                read(&*body);
            }
            _ => read(&place),
        }
        if what == "entry" && !function.results.is_empty() {
            let mut back = [0; 8];
            memory.read_exact_at(&mut back, regs.rsp).expect("the return address");
            let back = u64::from_le_bytes(back);
            stops.insert(back, ("return", function, entry));
            child.stop_at(back);
        }
        child.pass(regs.rip);
    }
    (all, fs::read_to_string(output).expect("the output"))
}

/// Counts of the values that were compared.
#[derive(Debug, Default)]
struct Compared {
    entry: usize,
    body: usize,
    returned: usize,
    refused: usize,
}

fn compare(compiler: &str, flags: &[&str], language: Language, seed: u64) -> Compared {
    let folder = tempfile::tempdir().expect("a folder");
    let (source, functions) = program(language, 150, &mut Random(seed));
    let file = folder.path().join(format!("made.{}", language.suffix));
    fs::write(&file, &source).expect("a file");
    let path = folder.path().join("made");
    let built = Command::new(compiler)
        .args(language.standard)
        .args(flags)
        .args(["-g", "-no-pie", "-w", "-o"])
        .arg(&path)
        .arg(&file)
        .output();
    let built = built.expect("the compiler runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{}", said.lines().take(5).collect::<Vec<_>>().join("\n"));
    let (values, output) = values(&path, &functions, folder.path());
    let truth: BTreeMap<(&str, &str), i64> = output
        .lines()
        .map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            ((words[0], words[1]), words[2].parse().expect("a number"))
        })
        .collect();
    let (mut compared, mut wrong, mut reasons) =
        (Compared::default(), Vec::new(), BTreeMap::<String, usize>::new());
    for ((function, expression, place), value) in &values {
        let expected = truth[&(function.as_str(), expression.as_str())];
        match (value, *place) {
            (Ok(value), _) if *value != expected => {
                let line =
                    source.lines().find(|line| line.contains(&format!(" {function}("))).unwrap_or_default();
                wrong.push(format!("{function} {expression} at {place}: {value}, truth {expected}: {line}"));
            }
            (Ok(_), "entry") => compared.entry += 1,
            (Ok(_), "body") => compared.body += 1,
            (Ok(_), _) => compared.returned += 1,
            (Err(why), "body") => wrong.push(format!("{function} {expression} at {place}: {why}")),
            (Err(why), _) => {
                compared.refused += 1;
                let why =
                    why.split("` is ").last().and_then(|why| why.split(" (").next()).unwrap_or_default();
                *reasons.entry(format!("{place}: {why}")).or_default() += 1;
            }
        }
    }
    println!("{compiler} {flags:?} {seed}: {compared:?} {reasons:#?}");
    assert!(wrong.is_empty(), "{compiler} {flags:?} {seed}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
    compared
}

fn has(compiler: &str) -> bool {
    let said = Command::new(compiler).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    said.is_ok_and(|status| status.success())
}

#[test]
fn parameters_and_results_are_those_that_the_program_prints() {
    needs(&[GCC]);
    for (compiler, language) in [("gcc", C), ("g++", CPP), ("clang", C), ("clang++", CPP)] {
        if !has(compiler) {
            println!("no {compiler} here");
            continue;
        }
        for seed in 1..3 {
            let made = compare(compiler, &["-O0"], language, seed);
            assert!(made.body > 300 && made.returned > 40, "{compiler}: {made:?}");
            assert!(made.entry > 2 * made.refused, "{compiler}: {made:?}");
            let made = compare(compiler, &["-O2"], language, seed + 10);
            assert!(made.entry > 300 && made.returned > 40, "{compiler}: {made:?}");
        }
    }
}

kprism_test::main!();
