// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab goto`: a run is replayed up to an instruction, and GDB finds the guest there. The judge is GDB: the address of the
//! recorded flow is its $pc, at any place, and the same place has the same registers and memory each time.

mod guest;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use guest::{alone, json, kprism, ok, text};
use kprism_test::{GDB, needs, test};

const COMMAND: [&str; 4] = ["--", "sh", "-c", "ls /bin | sed s/a/z/g"];

fn record(run: &Path, options: &[&str]) {
    ok(&[&["lab", "run", "-q", "-o", text(run)], options, &COMMAND].concat());
}

/// GDB's output at a place.
fn at(run: &Path, place: &[&str], gdb: &[&str]) -> String {
    let commands: Vec<&str> = gdb.iter().flat_map(|command| ["-ex", *command]).collect();
    let go = ["lab", "goto", "-q", text(run), "--run-gdb"];
    String::from_utf8(ok(&[&go, place, &["--", "-nx", "-batch"], &commands].concat())).unwrap()
}

/// The value that `p/x $pc` printed.
fn pc(said: &str) -> u64 {
    let line = said.lines().find_map(|line| line.strip_prefix("$1 = 0x"));
    u64::from_str_radix(line.unwrap_or_else(|| panic!("no $pc in: {said}")), 16).unwrap()
}

/// The addresses of these instructions of a CPU, as the decoder of the recording has them.
fn addresses(run: &Path, cpu: &str, numbers: &[u64]) -> BTreeMap<u64, u64> {
    let mut script = Command::new(env!("CARGO_BIN_EXE_kprism"));
    script.args(["script", "insns", "-i", text(run), "--cpu", cpu, "--fields", "number,ip"]);
    let mut child = script.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let pair = |line: String| {
        let mut words = line.split_whitespace();
        let number: u64 = words.next().unwrap().parse().unwrap();
        (number, u64::from_str_radix(words.next().unwrap(), 16).unwrap())
    };
    let all: Vec<(u64, u64)> = lines.map(pair).collect();
    assert!(child.wait().unwrap().success());
    assert!((1..).zip(&all).all(|(expected, (number, _))| expected == *number), "numbers without gaps");
    numbers.iter().map(|number| all[*number as usize - 1]).collect()
}

/// Numbers from 1 to `most`, the same each time.
fn pseudo_random(count: usize, most: u64) -> Vec<u64> {
    let mut state = 7u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most + 1
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn gdb_stops_at_the_flows_address() {
    needs(&[GDB]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    record(&run, &[]);
    let most = json(&["info", "--json", "-i", text(&run)])["instructions"].as_u64().unwrap();
    let mut numbers = pseudo_random(10, most);
    numbers.extend([1, most]);
    for (number, ip) in addresses(&run, "0", &numbers) {
        let said = at(&run, &["--at", &number.to_string()], &["p/x $pc"]);
        assert_eq!(pc(&said), ip, "instruction {number}: {said}");
    }
    // The same place again: all registers and the stack.
    let look = ["p/x $pc", "info all-registers", "x/64gx $rsp"];
    let place = ["--at", &numbers[0].to_string()];
    // Files of symbols that are made for GDB have another folder each time.
    let looked = || {
        let said = at(&run, &place, &look);
        said.lines()
            .filter(|line| !line.starts_with("add symbol table"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let first = looked();
    let has = |name: &str| first.iter().any(|line| line.starts_with(name));
    assert!(has("eflags") && has("cr3"), "{first:?}");
    assert_eq!(first, looked());
    // A time is the instruction that `script` has there.
    let first_from = |from: &str| -> serde_json::Value {
        let what =
            ["script", "insns", "--json", "--limit", "1", "--fields", "time,ip,number", "--from", from];
        serde_json::from_slice(&ok(&[&what[..], &["-i", text(&run)]].concat())).unwrap()
    };
    let begin = first_from("0")["time_ns"].as_u64().unwrap();
    let line = first_from(&format!("{}ns", begin + 100_000));
    let ns = format!("{}ns", line["time_ns"]);
    let said = at(&run, &["--at", &ns], &["p/x $pc"]);
    assert_eq!(format!("{:#x}", pc(&said)), line["ip"].as_str().unwrap(), "{said}");
}

#[test]
fn gdb_names_functions_of_the_kernel_and_of_libraries() {
    needs(&[GDB]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    // GDB's commands have the run's path.
    let run = dir.path().join("a run's #1");
    record(&run, &[]);
    let said = at(&run, &["--at", "vfs_read"], &["x/i $pc", "info symbol $pc"]);
    assert!(said.contains("<vfs_read>:") && said.contains("vfs_read in section"), "{said}");
    let said = at(&run, &["--at", "__x64_sys_exit_group"], &["info address malloc", "bt 1"]);
    assert!(said.contains("add symbol table from file") && said.contains("libc.so.6"), "{said}");
    assert!(said.contains("Symbol \"malloc\" is at 0x7"), "{said}");
    assert!(said.contains("#0") && said.contains("__x64_sys_exit_group"), "{said}");
}

#[test]
fn a_function_of_a_module_is_a_place() {
    needs(&[GDB]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    // The command itself loads the module: before it, the kernel has no such function.
    ok(&["lab", "run", "-q", "-o", text(&run), "--with-module", "dummy", "--", "modprobe", "dummy"]);
    let said = at(&run, &["--at", "dummy_setup"], &["info symbol $pc"]);
    assert!(said.contains("dummy_setup in section"), "{said}");
}

#[test]
fn conditions_windows_and_several_cpus() {
    needs(&[GDB]);
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let [two, window] = ["two", "window"].map(|name| dir.path().join(name));
    record(&two, &["--smp", "2"]);
    for (cpu, number) in [("0", 31_337), ("1", 271_828)] {
        let ip = addresses(&two, cpu, &[number])[&number];
        let said = at(&two, &["--cpu", cpu, "--at", &number.to_string()], &["p/x $pc"]);
        assert_eq!(pc(&said), ip, "CPU {cpu}: {said}");
    }
    let output = kprism(&["lab", "goto", text(&two), "--at", "5"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("add --cpu N"));

    record(&window, &["--from", "do_filp_open", "--until", "do_filp_open%return"]);
    let most = json(&["info", "--json", "-i", text(&window)])["instructions"].as_u64().unwrap();
    for (number, ip) in addresses(&window, "0", &[1, most / 3, most]) {
        let said = at(&window, &["--at", &number.to_string()], &["p/x $pc"]);
        assert_eq!(pc(&said), ip, "instruction {number} of windows: {said}");
    }
    // A condition, with what it says of the arguments.
    let place = ["--at", "vfs_read if count == 832"];
    let look = ["p/x $pc", "p $rdx"];
    let (first, second) =
        (at(&window, &place, &look), at(&window, &[&place[..], &["--nth", "2"]].concat(), &look));
    let names = std::fs::read_to_string(window.join("symbols/kallsyms")).unwrap();
    let entry = names.lines().find(|line| line.ends_with(" vfs_read")).unwrap();
    assert!(entry.starts_with(&format!("{:x} ", pc(&first))), "{entry}: {first}");
    assert!(first.contains("$2 = 832") && second.contains("$2 = 832"), "{first}{second}");
    assert_ne!(first.lines().next(), second.lines().next(), "another call");
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    record(&run, &[]);
    let refused = |more: &[&str], words: &[&str]| {
        let output = kprism(&[&["lab", "goto", text(&run)], more].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{more:?}: {said}");
        for word in words {
            assert!(said.contains(word), "{more:?}: no `{word}` in: {said}");
        }
    };
    refused(&["--at", "99,999,999,999"], &["there is no instruction 99,999,999,999", "CPU 0 ran"]);
    refused(&["--at", "1000s"], &["no instruction ran at or after 1000.000000000"]);
    refused(&["--at", "vfs_raed"], &["did you mean `vfs_read`?"]);
    refused(&["--at", "vfs_read if count == 12345"], &["did not hold in this run"]);
    refused(&["--at", "5", "--nth", "2"], &["--nth"]);
    refused(&["--at", "vfs_read", "--cpu", "0"], &["--cpu", "$cpu == N"]);
    refused(&["--at", "0"], &["numbered from 1"]);
    refused(&["--at", "5", "--vmlinux", "/no/such"], &["/no/such"]);
    let manifest = run.join("manifest.json");
    let whole = std::fs::read_to_string(&manifest).unwrap();
    let changed = |pointer: &str, value: serde_json::Value| {
        let mut all: serde_json::Value = serde_json::from_str(&whole).unwrap();
        *all.pointer_mut(pointer).unwrap() = value;
        std::fs::write(&manifest, all.to_string()).unwrap();
    };
    changed("/environment/parts/agent", "another".into());
    refused(&["--at", "5"], &["another environment", "agent: another →"]);
    changed("/options/pace", "fast".into());
    refused(&["--at", "5"], &["--fast"]);
    changed("/options/net", "user".into());
    refused(&["--at", "5"], &["--net"]);
    changed("/options/stdin", "/dev/stdin".into());
    refused(&["--at", "5"], &["--stdin a file"]);
    // A replay that is another run is no success: here the command is.
    changed("/command/2", "ls /bin | sed s/a/y/g; ls /bin | sed s/a/z/g".into());
    let last = json(&["info", "--json", "-i", text(&run)])["instructions"].to_string();
    refused(&["--at", &last], &["another way"]);
}

#[test]
fn a_run_of_snapshots_names_the_command_that_has_numbers() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    record(&run, &["--snapshot-when", "vfs_read if count == 832"]);
    let output = kprism(&["lab", "goto", text(&run), "--at", "5"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let line = said.lines().find(|line| line.trim_start().starts_with("kprism lab run")).expect(&said).trim();
    let line = line.strip_prefix("kprism").unwrap();
    assert!(line.ends_with("-- sh -c 'ls /bin | sed s/a/z/g'") && !line.contains("snapshot"), "{said}");
    // It is what is to be pasted.
    let whole =
        Command::new("sh").args(["-c", &format!("\"$0\"{line}"), env!("CARGO_BIN_EXE_kprism")]).output();
    assert!(whole.as_ref().is_ok_and(|output| output.status.success()), "{whole:?}");
    let kernel_line = |run: &Path| {
        let text = std::fs::read_to_string(run.join("manifest.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()["options"]["kernel_command_line"].clone()
    };
    let whole = dir.path().join("run-whole");
    assert_eq!(kernel_line(&run), kernel_line(&whole));
    assert!(json(&["info", "--json", "-i", text(&whole)])["instructions"].as_u64().unwrap() > 0);
}

/// QEMU, the child of this process.
fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_qemu = |pid: &&str| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.starts_with("qemu"))
    };
    children.split_whitespace().find(is_qemu).expect("a QEMU").parse().unwrap()
}

#[test]
fn qemu_ends_with_kprism() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    record(&run, &[]);
    for (signal, code) in [("INT", Some(130)), ("KILL", None)] {
        let mut goto = Command::new(env!("CARGO_BIN_EXE_kprism"));
        goto.args(["lab", "goto", "-q", text(&run), "--at", "1000"]).stdout(Stdio::piped());
        let mut child = goto.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let last = lines.find(|line| line.starts_with("gdb ")).expect("the command for GDB");
        let socket = last.split(['\'', ' ']).find(|word| word.ends_with("/gdb")).unwrap().to_owned();
        assert!(Path::new(&socket).exists(), "{last}");
        let qemu = child_of(child.id());
        assert!(
            Command::new("kill")
                .args([&format!("-{signal}"), &child.id().to_string()])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(child.wait().unwrap().code(), code, "{signal}");
        let begun = Instant::now();
        let is_there =
            || std::fs::read_to_string(format!("/proc/{qemu}/stat")).is_ok_and(|stat| !stat.contains(") Z "));
        while is_there() {
            assert!(begun.elapsed() < Duration::from_secs(60), "QEMU is still there after SIG{signal}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

kprism_test::main!();
