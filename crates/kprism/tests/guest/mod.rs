// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the tests with a guest share: the program, run with arguments.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

use serde_json::Value;

/// Guests are large and the machine may be small: holds others off while one runs.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner())
}

/// Runs kprism.
pub fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

/// Runs kprism, which must succeed, and gives its standard output.
pub fn ok(args: &[&str]) -> Vec<u8> {
    let output = kprism(args);
    assert!(output.status.success(), "kprism {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// The same for one that prints JSON.
pub fn json(args: &[&str]) -> Value {
    serde_json::from_slice(&ok(args)).expect("--json prints JSON")
}

/// Lines of JSON of `kprism script`, which may have none.
pub fn script(run: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = kprism(&[&["script", "-q", "-i", text(run), "--json"], arguments].concat());
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A number of an object.
pub fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or_else(|| panic!("{name} of {value}"))
}

/// The waits of CPUs for their turns, by the packets of a run: the CPU, begin and end of each, ns.
pub fn waits(run: &Path) -> Vec<(u64, u64, u64)> {
    let (mut still, mut waits) = (std::collections::BTreeMap::new(), Vec::new());
    for packet in script(run, &["packets"]) {
        let (cpu, ns) = (number(&packet, "cpu"), number(&packet, "time_ns"));
        if packet["packet"] == "EXSTOP" {
            still.insert(cpu, ns);
        } else if packet["packet"] == "CBR"
            && let Some(from) = still.remove(&cpu)
        {
            waits.push((cpu, from, ns));
        }
    }
    waits
}

/// The data of a page.
pub fn page_data(page: &Path) -> Value {
    let page = fs::read_to_string(page).unwrap();
    let (_, data) = page.split_once("id=\"kprism-data\">").unwrap();
    serde_json::from_str(data.split_once("</script>").unwrap().0).unwrap()
}

/// Answers of Perfetto's trace processor to queries of a trace: rows of objects.
pub fn ask_perfetto(engine: &Path, trace: &Path, queries: &[&str]) -> Vec<Value> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../view/report/tests/perfetto/query.mjs");
    let out = Command::new("node").arg(script).arg(engine).arg(trace).args(queries).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a temporary path is UTF-8")
}

/// Builds a program whose function `work` begins with `planted` and is called so often, and records it.
pub fn planted(dir: &Path, name: &str, planted: &str, calls: u64) -> PathBuf {
    let share = dir.join(name);
    fs::create_dir(&share).unwrap();
    let source = format!(
        "static int sum;\n\
         __attribute__((noinline)) void work(int n) {{ __asm__ volatile(\"{planted}\"); sum += n; }}\n\
         int main(void) {{ for (int n = 1; n <= {calls}; n++) work(n); return sum == 0; }}\n\
         __attribute__((used)) int never(int n) {{ return n + 1; }}\n"
    );
    fs::write(share.join("program.c"), source).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-g", "-static", "-falign-functions=64", "-o", "program", "program.c"])
        .current_dir(&share)
        .status();
    assert!(built.expect("a C compiler is installed").success());
    let run = dir.join(format!("{name}.data"));
    ok(&["lab", "run", "-q", "-o", text(&run), "--share", text(&share), "--", "/share/program"]);
    run
}
