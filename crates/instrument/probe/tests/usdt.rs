// SPDX-License-Identifier: MIT OR Apache-2.0
//! Static tracepoints of a program, natively: the arguments must equal the values that the program computed, and the
//! program must see that somebody listens. Needs the right to load BPF, and `sys/sdt.h` (Debian's systemtap-sdt-dev).

use std::path::Path;
use std::process::Command;

use kprism_probe::attach::{Config, HitScope, Session};
use kprism_probe::place::{Target, plans};
use kprism_probe::plan::{Plan, Request};
use kprism_probe::stream::hits;
use kprism_test::{BPF, SDT, UPROBES, needs, test};
use serde_json::{Value, json};

/// The program's output, and each probe's records.
fn recorded(program: &Path, all: Vec<Plan>) -> (String, Vec<Vec<Vec<Value>>>) {
    let probes: Vec<_> = all.iter().map(|plan| plan.probe.clone()).collect();
    let config = Config {
        who: HitScope::Children,
        ring_bytes: 1 << 20,
        stop_after: None,
        vars: vec![],
        thread_vars: 0,
        keys: 1,
    };
    let session = Session::start(all, &config).expect("attached");
    let output = Command::new(program).output().expect("it runs");
    session.stop();
    let mut records = vec![Vec::new(); probes.len()];
    session.reader().finish(|bytes| {
        for hit in hits(bytes).map(|hit| hit.expect("a record")) {
            let probe = usize::from(hit.probe);
            let values = probes[probe].items.iter().enumerate();
            records[probe].push(values.map(|(n, item)| hit.value(n, item).expect("readable")).collect());
        }
    });
    for (counts, records) in session.counts().iter().zip(&records) {
        assert_eq!((counts.passed, counts.lost), (records.len() as u64, 0));
    }
    (String::from_utf8_lossy(&output.stdout).into_owned(), records)
}

#[test]
fn arguments_are_those_of_the_program() {
    needs(&[BPF, UPROBES, SDT]);
    let folder = tempfile::tempdir().expect("a folder");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdt.c");
    for flags in [&["-O2"][..], &["-O0", "-g"], &["-O2", "-g", "-no-pie"], &["-O2", "-s"]] {
        let program = folder.path().join("sdt");
        let built = Command::new("gcc").args(flags).arg("-o").arg(&program).arg(&source).output();
        let built = built.expect("gcc is installed");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let collect = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let plan = |place, condition, collect: &[String]| {
            let request = Request { place, condition, collect, text: 16, ..Request::default() };
            plans(Target::Program(&program, None), &request).unwrap_or_else(|e| panic!("{flags:?}: {e}"))
        };
        let mut all = plan(
            "demo:plain",
            Some("arg1 % 2 == 1"),
            &collect(&["arg1", "(char *)arg2", "arg3", "arg4", "arg5"]),
        );
        let (output, records) = recorded(&program, all.clone());
        // Nobody listens to the second one: the program does not even reach it.
        assert_eq!(output, "470 0\n", "{flags:?}");
        let expected: Vec<Vec<Value>> = (0..20_i64)
            .filter(|n| n % 2 == 1)
            .map(|n| {
                vec![json!(n), json!("sample"), json!(n * 100_000_000), json!(10 * (n % 4) + 10), json!(4711)]
            })
            .collect();
        assert_eq!(records, std::slice::from_ref(&expected), "{flags:?}");

        all.extend(plan("demo:asked", None, &collect(&["arg1", "*(int *)arg2"])));
        let (output, records) = recorded(&program, all);
        assert_eq!(output, "470 20\n", "{flags:?}");
        let second: Vec<Vec<Value>> = (0..20_i64).map(|n| vec![json!(n - 5), json!(n)]).collect();
        assert_eq!(records, [expected, second], "{flags:?}");
    }
    let missing = Request { place: "demo:plane", text: 16, ..Request::default() };
    let error = plans(Target::Program(&folder.path().join("sdt"), None), &missing).unwrap_err().to_string();
    assert!(error.contains("did you mean `demo:plain`?"), "{error}");
}

/// A parameter whose register the function has overwritten before the marker: its value is kept at the function's entry.
const OVERWRITTEN: &str = r#"
#include <sys/sdt.h>
volatile long sink;
__attribute__((noinline)) void leaf(long a)
{
	sink += a;
	__asm__ volatile("mov $777, %%edi" ::: "rdi");
	STAP_PROBE1(demo, leaf, sink);
	sink++;
}
__attribute__((noinline)) long framed(long a)
{
	volatile long room[16];
	for (int i = 0; i < 16; i++)
		room[i] = a;
	leaf(a);
	__asm__ volatile("mov $777, %%edi" ::: "rdi");
	STAP_PROBE1(demo, framed, room[3]);
	return room[5];
}
int main(void)
{
	for (long i = 1; i <= 4; i++)
		framed(i);
	return 0;
}
"#;

#[test]
fn values_of_the_entry_are_kept_at_the_entry() {
    needs(&[BPF, UPROBES, SDT]);
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("entry.c"), folder.path().join("entry"));
    std::fs::write(&source, OVERWRITTEN).expect("a file");
    let built = Command::new("gcc").args(["-g", "-O2", "-o"]).arg(&program).arg(&source).status();
    assert!(built.expect("gcc is installed").success());
    let collect = ["a".to_owned()];
    for place in ["demo:leaf", "demo:framed"] {
        let request = Request { place, collect: &collect, text: 16, ..Request::default() };
        let all = plans(Target::Program(&program, None), &request).expect("a plan");
        let (_, records) = recorded(&program, all);
        let expected: Vec<Vec<Value>> = (1..=4).map(|n| vec![json!(n)]).collect();
        assert_eq!(records, [expected], "{place}");
    }
}

kprism_test::main!();
