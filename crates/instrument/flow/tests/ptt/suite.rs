// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares the cases: builds libipt's `pttc`, compiles each case with it, and reads the result.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use kprism_flow::errata::{Errata, Filter, of_processor};
use kprism_test::{LIBIPT, libipt, needs, program};

/// One case.
#[derive(Debug)]
pub struct Case {
    pub name: String,
    /// Options for ptdump and for ptxed.
    pub dump_options: Vec<String>,
    pub xed_options: Vec<String>,
    /// The stream.
    pub pt: Vec<u8>,
    /// The code and its address.
    pub code: Vec<u8>,
    pub org: u64,
    /// Family and model of the processor, of the first if there are several.
    pub cpu: Option<(u16, u8)>,
    /// Expected output of ptdump.
    pub dump: Option<String>,
    /// Expected output of ptxed.
    pub xed: Option<String>,
}

impl Case {
    /// The value of an option, written in decimal or hex.
    pub fn number(options: &[String], name: &str) -> u64 {
        let at = options.iter().position(|option| option == name);
        at.and_then(|at| options.get(at + 1)).map_or(0, |value| number(value))
    }
}

impl Case {
    /// The errata of its processor, and the address filter in ptxed's options.
    pub fn errata(&self) -> Errata {
        let mut filter = Filter::default();
        for (n, range) in filter.ranges.iter_mut().enumerate() {
            let value = |what| Self::number(&self.xed_options, &format!("--filter:addr{n}_{what}"));
            if value("cfg") == 1 {
                *range = (value("a"), value("b"));
            }
        }
        let list = self.cpu.and_then(|(family, model)| of_processor(family, model));
        Errata::of(list.unwrap_or_default(), filter)
    }
}

/// All cases. If they are not available, the test is ignored.
pub fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    needs(&[LIBIPT]);
    program(&["cmake"], "cmake");
    program(&["yasm"], "yasm");
    CASES.get_or_init(|| {
        let libipt = libipt();
        let libipt = libipt.canonicalize().unwrap_or_else(|error| panic!("{}: {error}", libipt.display()));
        let pttc = build(&libipt);
        let folder = libipt.join("test/src");
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("a case").path()).collect();
        files.retain(|file| file.extension().is_some_and(|ext| ext == "ptt"));
        files.sort();
        files.iter().map(|file| compile(&pttc, file)).collect()
    })
}

fn build(libipt: &Path) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libipt");
    // The cache may belong to another checkout.
    let _ = std::fs::remove_file(out.join("CMakeCache.txt"));
    run(Command::new("cmake").arg("-S").arg(libipt).arg("-B").arg(&out).arg("-DPTTC=ON"));
    run(Command::new("cmake").arg("--build").arg(&out).args(["--target", "pttc"]));
    out.join("bin/pttc")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `pttc`. If a case names several processors, one is enough: they do not change the expected output.
fn compile(pttc: &Path, file: &Path) -> Case {
    let name = file.file_stem().expect("a name").to_str().expect("a name").to_owned();
    let text = std::fs::read_to_string(file).expect("a case");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ptt").join(&name);
    std::fs::create_dir_all(&folder).expect("a scratch folder");
    let mut command = Command::new(pttc);
    command.current_dir(&folder);
    let cpus = directives(&text, "cpu");
    if let Some(cpu) = cpus.first() {
        command.args(["--cpu", cpu]);
    }
    // `pttc` prints the names of the files with expected outputs that it wrote.
    let written = run(command.arg(file));
    let expected = |tool: &str| {
        let prefix = format!("{name}-{tool}");
        let file = written.split_whitespace().find(|file| file.starts_with(&prefix))?;
        Some(std::fs::read_to_string(folder.join(file)).expect("an expected output"))
    };
    let read = |ext: &str| std::fs::read(folder.join(format!("{name}.{ext}"))).expect("an output of pttc");
    let org = text.lines().find_map(|line| line.strip_prefix("org ")).expect("an org directive");
    Case {
        dump_options: directives(&text, "opt:ptdump"),
        xed_options: directives(&text, "opt:ptxed"),
        pt: read("pt"),
        code: read("bin"),
        org: number(org.trim()),
        cpu: cpus.first().and_then(|cpu| {
            let mut numbers = cpu.split('/').map(str::parse::<u16>);
            let (family, model) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
            Some((family, u8::try_from(model).ok()?))
        }),
        dump: expected("ptdump"),
        xed: expected("ptxed"),
        name,
    }
}

/// The words after `; NAME` in all lines that begin so.
fn directives(text: &str, name: &str) -> Vec<String> {
    let comments = text.lines().filter_map(|line| line.trim_start().strip_prefix(';'));
    let named = comments.filter_map(|line| line.trim_start().strip_prefix(name));
    let named = named.filter(|rest| rest.starts_with([' ', '\t']));
    named.flat_map(str::split_whitespace).map(str::to_owned).collect()
}

pub fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// The subject of a case, by its name.
pub fn group(name: &str) -> &'static str {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
    let has = |part: &str| name.contains(part);
    match () {
        () if starts(&["apl", "bdm", "skd", "skl", "skz"]) => "errata",
        () if starts(&["ptxed-resync"]) => "going on after an error",
        () if starts(&["ptxed", "bad_cpu", "truncated"]) => "ptxed",
        () if starts(&["ptdump", "dump-"]) => "ptdump",
        () if starts(&["ptet"]) => "event trace",
        () if starts(&["tsc", "tma", "mtc", "cbr"]) => "timing",
        () if has("trig") => "trigger trace",
        () if has("pwr") || has("exstop") || has("mwait") => "power",
        () if has("ptw") => "ptwrite",
        () if has("tsx") => "transactions",
        () if starts(&["ovf"]) => "overflow",
        () if has("pip") || has("vmcs") || has("cr3") => "paging, VM",
        () if starts(&["psb"]) => "PSB+",
        () if starts(&["tip_pgd", "tip_pge", "fup-tip_pgd"]) => "on and off",
        () if starts(&["call", "ret"]) => "calls and returns",
        () if starts(&["int", "sys", "direct", "fup"]) || has("sysret") => "far transfers, interrupts",
        () => "branches",
    }
}
