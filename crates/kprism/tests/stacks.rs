// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacks that programs switch themselves: by hand, and by Go's runtime. The source says who calls whom.

mod guest;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use guest::{alone, ok, text};
use kprism_profile::{FrameKind, NO_PARENT, Profile};
use kprism_test::{skip, test};

/// Records a program and returns its profile.
fn recorded(dir: &Path, options: &[&str], program: &str) -> Profile {
    let run = dir.join("run");
    let program = format!("/share/{program}");
    let mut args = vec!["lab", "run", "-q", "-o", text(&run), "--share", text(dir)];
    args.extend(options);
    args.extend(["--", program.as_str()]);
    ok(&args);
    kprism_session::open(&run).unwrap().flow().unwrap()
}

/// The callers of a function of the program: of each of its nodes, the names from the function's own up to the outermost.
fn callers(profile: &Profile, comm: &str, name: &str) -> BTreeSet<Vec<String>> {
    let tasks = profile.task_of_nodes();
    let mut all = BTreeSet::new();
    for (index, node) in profile.nodes.iter().enumerate() {
        let own = tasks[index].is_some_and(|task| profile.tasks[task as usize].comm == comm);
        if !own || node.kind == FrameKind::Root || profile.funcs[node.func as usize].name != name {
            continue;
        }
        let (mut path, mut at) = (Vec::new(), index as u32);
        while at != NO_PARENT && profile.nodes[at as usize].kind != FrameKind::Root {
            path.push(profile.funcs[profile.nodes[at as usize].func as usize].name.clone());
            at = profile.nodes[at as usize].parent;
        }
        all.insert(path);
    }
    all
}

fn calls(profile: &Profile, name: &str) -> u64 {
    let own = profile.nodes.iter().filter(|node| node.kind != FrameKind::Root);
    own.filter(|node| profile.funcs[node.func as usize].name == name).map(|node| node.calls).sum()
}

/// Two stacks beside main's, switched by a few instructions of assembly: what runs on each is its own, and main has no part in it.
#[test]
fn stacks_switched_by_hand() {
    const ROUNDS: u64 = 50;
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/stacks.c");
    let program = dir.path().join("stacks");
    let built = Command::new("cc").args(["-O1", "-g", "-static", "-o"]).arg(&program).arg(source).status();
    assert!(built.expect("a C compiler is installed").success());
    let profile = recorded(dir.path(), &[], "stacks");

    let names =
        ["first", "first_middle", "first_inner", "second", "second_inner", "turns", "work", "switch_to"];
    let counts = names.map(|name| calls(&profile, name));
    assert_eq!(counts, [1, 1, 1, 1, 1, 1, 2 * ROUNDS, 3 * ROUNDS]);
    let path = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let only = |name: &str, own: &[&str]| {
        assert_eq!(callers(&profile, "stacks", name), [path(own)].into(), "callers of {name}");
    };
    only("first_inner", &["first_inner", "first_middle", "first"]);
    only("second_inner", &["second_inner", "second"]);
    let work =
        [path(&["work", "first_inner", "first_middle", "first"]), path(&["work", "second_inner", "second"])];
    assert_eq!(callers(&profile, "stacks", "work"), work.into());
    let turns = callers(&profile, "stacks", "turns");
    assert!(turns.len() == 1 && turns.iter().all(|path| path[1] == "main"), "{turns:?}");
}

/// Goroutines on one CPU and on two: each function is called by whom the source says, whatever the scheduler did between.
#[test]
fn goroutines_have_stacks_of_their_own() {
    let _alone = alone();
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/truth/goroutines.go");
    let mut go = Command::new("go");
    go.args(["build", "-o"]).arg(dir.path().join("goroutines")).arg(source);
    match go.env("GOFLAGS", "-mod=mod").env("GO111MODULE", "off").status() {
        Ok(status) => assert!(status.success()),
        Err(_) => skip("needs Go: sh scripts/setup.sh test"),
    }
    for cpus in ["1", "2"] {
        let place = tempfile::tempdir().unwrap();
        std::fs::copy(dir.path().join("goroutines"), place.path().join("goroutines")).unwrap();
        let profile = recorded(place.path(), &["--smp", cpus, "--mem", "1G"], "goroutines");
        assert_eq!(calls(&profile, "main.mid"), 200, "{cpus} CPUs");
        assert_eq!(calls(&profile, "main.leaf"), 400, "{cpus} CPUs");
        assert_eq!(calls(&profile, "main.worker"), 3, "{cpus} CPUs");
        // Below what starts a goroutine, and nothing else: not the scheduler, and not another goroutine.
        let starts = |name: &String| name == "runtime.goexit" || name.starts_with("main.main.gowrap");
        let all = callers(&profile, "goroutines", "main.worker");
        assert!(!all.is_empty());
        // On two CPUs, a goroutine may go on in one thread while the thread that left it still looks for work: docs/perf.md, "Limits".
        if cpus == "2" {
            continue;
        }
        for path in &all {
            assert!(path[1..].iter().all(starts), "{cpus} CPUs: {path:?}");
        }
        for path in callers(&profile, "goroutines", "main.mid") {
            assert!(path[1] == "main.worker" && path[2..].iter().all(starts), "{cpus} CPUs: {path:?}");
        }
        for path in callers(&profile, "goroutines", "main.collect") {
            assert_eq!(path[1], "main.main", "{cpus} CPUs: {path:?}");
        }
    }
}

kprism_test::main!();
