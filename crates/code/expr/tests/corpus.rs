// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares expressions with GDB on a program compiled at -O0 and -O2. At the same stops, from the same core file, a
//! value must equal GDB's, or be refused where GDB reports it as optimised out.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use kprism_expr::agent::listing;
use kprism_expr::dwarf::{Debug, Image, Place};
use kprism_expr::emit::{self, Cpu, Output};
use kprism_expr::interp::{self, Machine, extend};
use kprism_expr::ir::{Fault, Input, Space};
use kprism_expr::lower::{self, Env};
use kprism_expr::opt;
use kprism_expr::regs::Reg;
use kprism_expr::scope::ProbePoint;
use kprism_test::{GDB, needs, test};
use object::read::elf::{ElfFile64, FileHeader as _, ProgramHeader as _};
use object::{Endianness, Object as _, ObjectSegment as _};

/// State of a process, read from its core file.
struct Core {
    /// Address and contents.
    segments: Vec<(u64, Vec<u8>)>,
    regs: BTreeMap<Reg, u64>,
}

impl Core {
    fn read(core: &Path, program: &Path, bias: u64) -> Self {
        let mut segments = Vec::new();
        let mut regs = BTreeMap::new();
        for path in [core, program] {
            let data = fs::read(path).expect("GDB wrote it");
            let file = ElfFile64::<Endianness>::parse(&*data).expect("an ELF file");
            for segment in file.segments() {
                let bytes = segment.data().expect("within the file").to_vec();
                let moved = if path == core { 0 } else { bias };
                segments.push((segment.address() + moved, bytes));
            }
            let headers =
                file.elf_header().program_headers(Endianness::Little, &*data).expect("program headers");
            for header in headers {
                let Ok(Some(mut notes)) = header.notes(Endianness::Little, &*data) else { continue };
                while let Ok(Some(note)) = notes.next() {
                    // NT_PRSTATUS: the registers begin at byte 112, in the order of user_regs_struct.
                    if note.n_type(Endianness::Little) == object::elf::NT_PRSTATUS
                        && note.name() == b"CORE"
                        && path == core
                    {
                        let word = |i: usize| {
                            let at = 112 + 8 * i;
                            u64::from_le_bytes(note.desc()[at..at + 8].try_into().expect("8 bytes"))
                        };
                        regs =
                            kprism_expr::regs::ALL.iter().enumerate().map(|(i, r)| (*r, word(i))).collect();
                    }
                }
            }
        }
        Self { segments, regs }
    }
}

impl Machine for Core {
    fn input(&mut self, input: Input) -> u64 {
        match input {
            Input::Reg(reg) => self.regs[&reg],
            _ => 0,
        }
    }

    fn read(&mut self, _: Space, addr: u64, into: &mut [u8]) -> bool {
        let found = self.segments.iter().find_map(|(start, bytes)| {
            let from = usize::try_from(addr.checked_sub(*start)?).ok()?;
            bytes.get(from..from.checked_add(into.len())?)
        });
        found.map(|bytes| into.copy_from_slice(bytes)).is_some()
    }

    fn var(&mut self, _: u16) -> &mut u64 {
        unreachable!("the corpus names no trace state variable")
    }
}

fn line_of(source: &str, mark: &str) -> usize {
    let mark = format!("/* STOP {mark} */");
    source.lines().position(|l| l.contains(&mark)).expect("the mark is there") + 1
}

/// The bytes of an agent expression that GDB printed.
fn assemble(text: &str) -> Option<Vec<u8>> {
    // Name, opcode, bytes of operand.
    const OPS: [(&str, u8, usize); 47] = [
        ("float", 1, 0),
        ("add", 2, 0),
        ("sub", 3, 0),
        ("mul", 4, 0),
        ("div_signed", 5, 0),
        ("div_unsigned", 6, 0),
        ("rem_signed", 7, 0),
        ("rem_unsigned", 8, 0),
        ("lsh", 9, 0),
        ("rsh_signed", 10, 0),
        ("rsh_unsigned", 11, 0),
        ("trace", 12, 0),
        ("trace_quick", 13, 1),
        ("log_not", 14, 0),
        ("bit_and", 15, 0),
        ("bit_or", 16, 0),
        ("bit_xor", 17, 0),
        ("bit_not", 18, 0),
        ("equal", 19, 0),
        ("less_signed", 20, 0),
        ("less_unsigned", 21, 0),
        ("ext", 22, 1),
        ("ref8", 23, 0),
        ("ref16", 24, 0),
        ("ref32", 25, 0),
        ("ref64", 26, 0),
        ("if_goto", 32, 2),
        ("goto", 33, 2),
        ("const8", 34, 1),
        ("const16", 35, 2),
        ("const32", 36, 4),
        ("const64", 37, 8),
        ("reg", 38, 2),
        ("end", 39, 0),
        ("dup", 40, 0),
        ("pop", 41, 0),
        ("zero_ext", 42, 1),
        ("swap", 43, 0),
        ("getv", 44, 2),
        ("setv", 45, 2),
        ("tracev", 46, 2),
        ("tracenz", 47, 0),
        ("trace16", 48, 2),
        ("pick", 50, 1),
        ("rot", 51, 0),
        ("printf", 52, 0),
        ("ref_double", 28, 0),
    ];
    let mut code = Vec::new();
    for line in text.split(';') {
        let mut words = line.split_whitespace();
        let Some(at) = words.next().and_then(|w| w.parse::<usize>().ok()) else { continue };
        let name = words.next()?;
        let (_, op, size) = OPS.iter().find(|o| o.0 == name)?;
        assert_eq!(at, code.len(), "{text}");
        code.push(*op);
        if name == "printf" {
            let format = line.split('"').nth(1)?;
            let count = line.rsplit_once(", ")?.1.split_whitespace().next()?.parse().ok()?;
            code.push(count);
            code.extend((format.len() as u16 + 1).to_be_bytes());
            code.extend(format.bytes());
            code.push(0);
        } else if *size > 0 {
            let operand: u64 = words.next()?.parse().ok()?;
            code.extend(&operand.to_be_bytes()[8 - size..]);
        }
    }
    (!code.is_empty()).then_some(code)
}

/// Expressions that GDB 16 gets wrong: it narrows the magnitude of a negative number. `(char)g_i16` of -30000 is 48 there;
/// C has -48.
const NARROWED: &[&str] = &[
    "(char)g_i16",
    "(unsigned char)g_i16",
    "(short)g_i32 + 1",
    "(unsigned int)g_i64",
    "g_i32 << 3",
    "g_i64 << 3",
    "g_i32 * 3 - 7",
    "g_i64 * 3 - 7",
];

/// True if this GDB has that fault.
fn narrows_magnitudes(expressions: &str, theirs: &[&str]) -> bool {
    expressions.lines().zip(theirs).any(|(expr, theirs)| expr == "(char)g_i16" && *theirs == "48")
}

/// Runs the bytecode that GDB makes of each expression; returns how many had GDB's value, and how many were translated.
fn run_agents(lines: &str, exprs: &str, theirs: &[&str], core: &mut Core) -> (usize, usize) {
    let narrows = narrows_magnitudes(exprs, theirs);
    let (mut same, mut translated) = (0, 0);
    let lines: Vec<&str> = lines.lines().collect();
    for ((forms, theirs), expr) in lines.chunks(3).zip(theirs).zip(exprs.lines()) {
        for (form, text) in forms.iter().enumerate() {
            let Some(code) = assemble(text) else { continue };
            let is_step = |line: &&str| line.trim_start().starts_with(|c: char| c.is_ascii_digit());
            let listed: Vec<String> = listing::list(&code).iter().map(ToString::to_string).collect();
            assert_eq!(listed, text.split(';').filter(is_step).map(str::trim_end).collect::<Vec<_>>());
            if code.contains(&0x1c) && text.contains("ref_double") {
                continue;
            }
            let plain = kprism_expr::agent::translate(&code, Space::User, 1)
                .unwrap_or_else(|e| panic!("{e}: {text}"));
            let mut func = plain.clone();
            opt::optimise(&mut func);
            let result = interp::run(&plain, core);
            assert_eq!(result, interp::run(&func, core), "{text}");
            for cpu in [Cpu::V3, Cpu::V4] {
                emit::program(&func, cpu, Output::Verdict).unwrap_or_else(|e| panic!("{e}: {text}"));
            }
            translated += 1;
            if let (0, Ok(value), Ok(theirs)) = (form, result, theirs.parse::<i128>()) {
                if narrows && NARROWED.contains(&expr) {
                    continue;
                }
                assert_eq!(value, theirs as u64, "{expr}: {text}");
                same += 1;
            }
        }
    }
    (same, translated)
}

/// Runs the corpus. Returns the numbers of equal values, of expressions refused by both, and of those that need the
/// registers at entry.
fn compare(flags: &[&str], stops: &[&str]) -> (usize, usize, usize) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    let source = fs::read_to_string(here.join("corpus.c")).expect("the program's source");
    let expressions = fs::read_to_string(here.join("expressions.txt")).expect("the corpus");
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("corpus");
    let built =
        Command::new("gcc").args(flags).args(["-g", "-o"]).arg(&program).arg(here.join("corpus.c")).status();
    assert!(built.expect("gcc is installed").success());
    let specs: Vec<String> =
        stops
            .iter()
            .map(|s| {
                if s.starts_with('*') { (*s).to_owned() } else { format!("corpus.c:{}", line_of(&source, s)) }
            })
            .collect();
    let gdb = Command::new("gdb")
        .args(["-nx", "-batch", "-x"])
        .arg(here.join("gdb.py"))
        .arg(&program)
        .env("CORPUS_OUT", folder.path())
        .env("CORPUS_TEXT", here.join("expressions.txt"))
        .env("CORPUS_STOPS", specs.join(" "))
        .stdout(Stdio::null())
        .stdin(Stdio::null())
        .output()
        .expect("gdb is installed");
    let image = Image::open(&program).expect("debug information");
    let debug = Debug::new(&image).expect("debug information");
    // Load address of position-independent programs under GDB.
    let bias = if image.moves() { 0x5555_5555_4000 } else { 0 };
    let (mut same, mut refused, mut entry) = (0, 0, 0);
    let (mut agents, mut translated) = (0, 0);
    let mut wrong = Vec::new();
    for (index, stop) in specs.iter().enumerate() {
        let values = fs::read_to_string(folder.path().join(format!("values.{index}")))
            .unwrap_or_else(|e| panic!("GDB: {e}: {}", String::from_utf8_lossy(&gdb.stderr)));
        let all: Vec<&str> = values.lines().skip(1).collect();
        let mut values = values.lines();
        let pc: u64 = values.next().and_then(|l| l.parse().ok()).expect("the address");
        let mut core = Core::read(&folder.path().join(format!("core.{index}")), &program, bias);
        let code = fs::read_to_string(folder.path().join(format!("agent.{index}"))).expect("GDB's bytecode");
        let (a, t) = run_agents(&code, &expressions, &all, &mut core);
        agents += a;
        translated += t;
        let narrows = narrows_magnitudes(&expressions, &all);
        let moment = if stop.starts_with('*') { ProbePoint::Entry } else { ProbePoint::Inside };
        let place = Place::at(&debug, pc - bias, moment, Space::User).expect("the stop's place");
        let inlined = stop.ends_with(&line_of(&source, "inlined").to_string());
        for (expr, theirs) in expressions.lines().zip(values) {
            // There, GDB finds variables of the C library with these names.
            if inlined && (expr.contains("name[") || expr.contains("buffer")) {
                continue;
            }
            let lowered = lower::value(expr, Env { scope: &place, vars: &[] });
            let ours = lowered.as_ref().map_err(ToString::to_string).and_then(|lowered| {
                let mut func = lowered.func.clone();
                if image.moves() {
                    lower::by_instruction(&mut func, place.pc);
                }
                let plain = interp::run(&func, &mut core);
                opt::optimise(&mut func);
                assert_eq!(plain, interp::run(&func, &mut core), "{expr} at {stop}\n{func}");
                let wide = |v: u64| {
                    if lowered.signed { i128::from(extend(v, 64, true) as i64) } else { i128::from(v) }
                };
                plain
                    .map(wide)
                    .map_err(|f| if f == Fault::NoEntry { "entry".to_owned() } else { f.name().to_owned() })
            });
            match (ours, theirs.parse::<i128>()) {
                (Ok(a), Ok(b)) if a == b => same += 1,
                (Ok(_), Ok(_)) if narrows && NARROWED.contains(&expr) => {}
                (Err(e), _) if e == "entry" => entry += 1,
                // In an inlined function, GDB does not see variables of the enclosing function.
                (Ok(_), Err(_)) if inlined && theirs.contains("No symbol") => {}
                (Err(_), Err(_)) => refused += 1,
                // GDB shows the stack's contents before a variable is set.
                (Err(e), Ok(_)) if e.contains("not set yet where the function begins") => refused += 1,
                (a, _) => wrong.push(format!("{stop}: {expr}: {a:?}, GDB {theirs}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{flags:?}: {} differ, {same} do not:\n{}", wrong.len(), wrong.join("\n"));
    println!("{flags:?}: {translated} agent expressions translated, {agents} values as GDB's");
    assert!(agents > 300 * stops.len());
    println!("{flags:?}: {same} values as GDB's, {refused} refused by both, {entry} need a probe at entry");
    (same, refused, entry)
}

#[test]
fn values_are_those_of_gdb() {
    needs(&[GDB]);
    let stops = ["block", "main", "inlined"];
    let (same, ..) = compare(&["-O0", "-no-pie"], &stops);
    assert!(same > 3 * 400);
    let (same, ..) = compare(&["-O2", "-no-pie"], &["*work", "block", "main", "inlined"]);
    assert!(same > 3 * 400);
    let (same, ..) = compare(&["-O1", "-no-pie", "-gdwarf-4"], &stops);
    assert!(same > 3 * 350);
    let (same, ..) = compare(&["-O2", "-no-pie", "-gsplit-dwarf"], &stops);
    assert!(same > 3 * 400);
    let (same, ..) = compare(&["-O2", "-pie", "-fPIE"], &stops);
    assert!(same > 3 * 400);
}

kprism_test::main!();
