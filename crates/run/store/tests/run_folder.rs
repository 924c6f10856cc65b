// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests of the run folder. The input is runs in temporary folders; the output is checks of the rotation, the manifest,
//! and the tables. The tables must survive the round trip, damage, and being read by another program, because runs are
//! kept and exchanged.

use kprism_profile::*;
use kprism_store::{Manifest, Run, RunKind, StoreError, TABLES, load_profile, save_profile};
use kprism_test::{python_with, test};
use proptest::prelude::*;
use std::fs;

fn small_profile() -> Profile {
    let func = |name: &str, module: &str, start, kernel| Func {
        name: name.into(),
        module: module.into(),
        start,
        kernel,
    };
    let node = |parent, func, kind, insns| Node { parent, func, calls: 1, insns, ns: insns / 2, kind };
    Profile {
        funcs: vec![
            func("main", "/usr/bin/ls", 0x5555_0000_1000, false),
            func("__x64_sys_openat", "[kernel]", 0xffff_ffff_8130_0000, true),
            func("größe\n\"☃", "[weird]", u64::MAX, true),
        ],
        tasks: vec![Task { pid: 41, tgid: 41, comm: "ls".into(), root: 0 }],
        nodes: vec![
            Node { parent: NO_PARENT, func: 0, calls: 0, insns: 0, ns: 0, kind: FrameKind::Root },
            node(0, 0, FrameKind::Call, 100),
            node(1, 1, FrameKind::Syscall, u64::MAX / 4),
            node(2, 2, FrameKind::Interrupt, 9),
        ],
        syscalls: vec![Syscall {
            task: 0,
            cpu: 1,
            func: 1,
            start_ns: 10,
            wall_ns: 500,
            on_cpu_ns: 400,
            insns: 77,
            node: 2,
            parts: Parts {
                entry: Part { ns: 20, insns: 21 },
                interrupts: Part { ns: 30, insns: 31 },
                exit: Part { ns: 40, insns: 41 },
            },
        }],
        slices: vec![Slice {
            task: 0,
            cpu: 1,
            func: 0,
            depth: 3,
            start_ns: 5,
            end_ns: 900,
            insns: 1000,
            kind: FrameKind::Call,
            ending: Some(Ending::Left),
        }],
        deltas: vec![
            Delta {
                name: "irqs".into(),
                from: "irqs-off".into(),
                to: "irqs-on".into(),
                scope: Scope::Cpu,
                ns: Histogram {
                    bins: vec![Bin { low: 3, high: 4, count: 2 }, Bin { low: 256, high: 258, count: 1 }],
                    count: 3,
                    sum: 263,
                    min: 3,
                    max: 257,
                },
                insns: Histogram {
                    bins: vec![Bin { low: 7, high: 8, count: 3 }],
                    count: 3,
                    sum: 21,
                    min: 7,
                    max: 7,
                },
                longest: vec![Interval {
                    task: 0,
                    cpu: 1,
                    start_ns: 40,
                    ns: 257,
                    insns: 7,
                    from_ip: 0xffff_ffff_8130_0010,
                    to_ip: 0xffff_ffff_8130_0020,
                    from_node: 2,
                    to_node: 3,
                }],
                all: None,
                sites: vec![Site { node: 2, count: 3, ns: 263, insns: 21, max_ns: 257 }],
                restarted: 1,
                unfinished: 2,
                halts: Some(4),
            },
            Delta { name: "none".into(), scope: Scope::Task, ..Delta::default() },
        ],
        counts: vec![Count { pattern: "pause".into(), func: 1, count: 12 }],
        errors: vec![FlowError { cpu: 1, offset: 4096, ns: 77, ip: 0x400000, kind: "no code".into() }],
        totals: Totals {
            per_cpu: vec![
                CpuTotals::default(),
                CpuTotals {
                    instructions: 5,
                    branches: 4,
                    errors: 1,
                    overflows: 2,
                    lost_bytes: 16,
                    first_ns: 1,
                    last_ns: 1_000,
                },
            ],
            ..Totals::default()
        },
    }
}

#[test]
fn profile_survives_the_round_trip_with_identical_bytes() {
    let dir = tempfile::tempdir().unwrap();
    for profile in [small_profile(), Profile::default()] {
        let a = Run::create(&dir.path().join("a")).unwrap();
        let b = Run::create(&dir.path().join("b")).unwrap();
        save_profile(&a, &profile).unwrap();
        save_profile(&b, &profile).unwrap();
        assert_eq!(load_profile(&a).unwrap(), profile);
        assert!(a.has_tables());
        for table in TABLES {
            assert_eq!(fs::read(a.table(table)).unwrap(), fs::read(b.table(table)).unwrap(), "{table}");
        }
        for run in [a, b] {
            run.write_manifest(&Manifest::new(RunKind::Lab, 2)).unwrap();
        }
    }
}

#[test]
fn a_large_table_spans_many_pages() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("big")).unwrap();
    let mut profile = small_profile();
    for i in 0..200_000u64 {
        let kind = FrameKind::Call;
        profile.nodes.push(Node { parent: 3, func: (i % 3) as u32, calls: i, insns: i * i, ns: i, kind });
    }
    save_profile(&run, &profile).unwrap();
    assert_eq!(load_profile(&run).unwrap(), profile);
}

#[test]
fn a_run_is_rotated_and_strangers_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kprism.data");
    for generation in 0..3u32 {
        let run = Run::create(&path).unwrap();
        run.write_manifest(&Manifest::new(RunKind::Lab, generation)).unwrap();
    }
    assert_eq!(Run::open(&path).unwrap().manifest().unwrap().vcpus, 2);
    let old = dir.path().join("kprism.data.old");
    assert_eq!(Run::open(&old).unwrap().manifest().unwrap().vcpus, 1);

    let home = dir.path().join("home");
    fs::create_dir(&home).unwrap();
    fs::write(home.join("thesis.tex"), "years of work").unwrap();
    assert!(matches!(Run::create(&home), Err(StoreError::Occupied { .. })));
    assert!(home.join("thesis.tex").exists());

    // An unrelated folder under the name of the old run must not be removed either.
    fs::remove_dir_all(&old).unwrap();
    fs::rename(&home, &old).unwrap();
    assert!(matches!(Run::create(&path), Err(StoreError::Occupied { .. })));
    assert!(old.join("thesis.tex").exists());
}

#[test]
fn a_manifest_keeps_what_it_does_not_know() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("r")).unwrap();
    assert!(matches!(Run::open(run.dir()), Err(StoreError::NotARun { .. })));
    fs::write(run.manifest_path(), r#"{"version":1,"kind":"import","vcpus":4,"future":[1,2]}"#).unwrap();
    let manifest = run.manifest().unwrap();
    assert_eq!((manifest.kind, manifest.vcpus), (RunKind::Import, 4));
    run.write_manifest(&manifest).unwrap();
    assert!(fs::read_to_string(run.manifest_path()).unwrap().contains("\"future\""));

    fs::write(run.manifest_path(), "{\n  \"version\": x").unwrap();
    let message = run.manifest().unwrap_err().to_string();
    assert!(message.contains("manifest.json: line 2 column"), "{message}");
}

#[test]
fn tables_that_break_the_rules_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("r")).unwrap();
    assert!(matches!(load_profile(&run), Err(StoreError::NoTable { .. })));
    type Break = (&'static str, fn(&mut Profile));
    let breaks: [Break; 4] = [
        ("row 2: parent_id 2", |p| p.nodes[2].parent = 2),
        ("row 3: func_id 9", |p| p.nodes[3].func = 9),
        ("row 0: root_node_id 4", |p| p.tasks[0].root = 4),
        ("row 0: node_id 40", |p| p.syscalls[0].node = 40),
    ];
    for (expected, apply) in breaks {
        let mut profile = small_profile();
        apply(&mut profile);
        save_profile(&run, &profile).unwrap();
        let message = load_profile(&run).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    /// Any damage gives a value or an error that names the file, and never a panic.
    #[test]
    fn damaged_tables_never_panic(table in 0usize..TABLES.len(), at in any::<prop::sample::Index>(),
                                  byte in any::<u8>(), cut in any::<prop::sample::Index>(), truncate in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let run = Run::create(&dir.path().join("r")).unwrap();
        save_profile(&run, &small_profile()).unwrap();
        let path = run.table(TABLES[table]);
        let mut bytes = fs::read(&path).unwrap();
        let index = at.index(bytes.len());
        bytes[index] = byte;
        if truncate {
            bytes.truncate(cut.index(bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
        if let Err(error) = load_profile(&run) {
            prop_assert!(error.to_string().contains(TABLES[table]), "{}", error);
        }
    }
}

/// DuckDB or pyarrow, in `$KPRISM_PYTHON` or the system's Python, must see the same rows as we do.
#[test]
fn another_reader_sees_the_same_rows() {
    const SCRIPT: &str = r#"
import sys
d = sys.argv[1]
empty = sys.argv[2]
def rows(table, d=d):
    path = f"{d}/{table}.parquet"
    try:
        import duckdb
        return duckdb.sql(f"select * from '{path}'").fetchall()
    except ImportError:
        import pyarrow.parquet as pq
        t = pq.read_table(path)
        return list(zip(*(t.column(c).to_pylist() for c in t.column_names)))
row = rows("functions")[2]
assert row[:1] + row[3:] == (2, "größe\n\"☃", "[weird]", -1, True), rows("functions")
assert len({row[1] for row in rows("functions")}) == len({row[2] for row in rows("functions")}) == 3
assert rows("nodes")[0] == (0, None, None, "root", 0, 0, 0), rows("nodes")
assert rows("nodes")[2] == (2, 1, 1, "syscall", 1, (2**64 - 1) // 4, (2**64 - 1) // 4 // 2), rows("nodes")
assert rows("syscalls") == [(0, 1, 1, 10, 500, 400, 77, 2, 20, 21, 30, 31, 40, 41)]
assert rows("slices") == [(0, 1, 0, 3, "call", 5, 900, 1000, "left")]
assert rows("errors") == [(1, 4096, 77, 0x400000, "no code")]
assert rows("cpus")[1] == (1, 5, 4, 1, 2, 16, 1, 1000)
assert rows("tasks") == [(0, 41, 41, "ls", 0)]
import pyarrow.parquet as pq
for table in "functions tasks nodes syscalls slices errors cpus deltas delta_bins delta_longest delta_sites counts".split():
    file = pq.ParquetFile(f"{d}/{table}.parquet")
    said = file.schema_arrow.metadata
    assert (said[b"kprism.schema"], said[b"kprism.table"]) == (b"2", table.encode()), said
    types = {str(field.type) for field in file.schema_arrow}
    assert types <= {"int64", "string", "bool"}, (table, types)
assert b'"self_ns":"ns"' in pq.ParquetFile(f"{d}/nodes.parquet").schema_arrow.metadata[b"kprism.units"]
for table in "functions tasks nodes syscalls slices errors cpus".split():
    assert rows(table, empty) == [], table
print("read")
"#;
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("r")).unwrap();
    save_profile(&run, &small_profile()).unwrap();
    let empty = Run::create(&dir.path().join("empty")).unwrap();
    save_profile(&empty, &Profile::default()).unwrap();
    let mut python = python_with(&["duckdb", "pyarrow.parquet"]);
    let out = python.arg("-c").arg(SCRIPT).arg(run.tables()).arg(empty.tables()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.stdout, b"read\n");
}

/// Words that SQL:2016, Spark's ANSI mode or DuckDB keep for themselves are no names of columns.
#[test]
fn no_column_needs_quotes() {
    const RESERVED: &str = "all and any array as asc at between both by case cast check collate column constraint count create cross \
        cube current date delete desc distinct drop else end escape except exists false fetch filter float for foreign from full \
        function grant group having in inner insert int intersect interval into is join lateral leading left like limit local \
        match max merge min minus module natural no not null of offset on only or order out outer over overlaps partition \
        position primary range references right row rows scope select session set some start sum system table then time to \
        trailing true truncate union unique unknown update user using values when where window with within";
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("r")).unwrap();
    save_profile(&run, &small_profile()).unwrap();
    let mut python = python_with(&["pyarrow.parquet"]);
    let script =
        "import sys, pyarrow.parquet as p\nprint(*[n for f in sys.argv[1:] for n in p.read_schema(f).names])";
    python.args(["-c", script]).args(TABLES.map(|table| run.table(table)));
    let output = python.output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    assert!(names.split_whitespace().count() > 60, "{}", String::from_utf8_lossy(&output.stderr));
    for name in names.split_whitespace() {
        assert!(!RESERVED.split_whitespace().any(|word| word == name), "{name}");
    }
}

/// Tables of an older kprism are told apart from damaged ones.
#[test]
fn tables_of_another_schema_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("r")).unwrap();
    save_profile(&run, &small_profile()).unwrap();
    let mut python = python_with(&["pyarrow.parquet"]);
    let script = "import sys, pyarrow.parquet as p\nf = sys.argv[1]\np.write_table(p.read_table(f).replace_schema_metadata({}), f)";
    assert!(python.args(["-c", script]).arg(run.table("nodes")).status().unwrap().success());
    let error = load_profile(&run).unwrap_err();
    assert!(matches!(&error, StoreError::OtherSchema { found, .. } if found == "1"), "{error}");
    assert!(
        error.to_string().contains("nodes.parquet: a table of schema 1, and this kprism has schema 2"),
        "{error}"
    );
}

/// Tables of an older version do not tell whether calls ended, nor whether idle is left out: that is not known, and not no.
#[test]
fn older_tables_do_not_tell_what_they_have_no_column_for() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("r")).unwrap();
    save_profile(&run, &small_profile()).unwrap();
    let new = load_profile(&run).unwrap();
    assert_eq!((new.slices[0].ending, new.deltas[0].halts), (Some(Ending::Left), Some(4)));
    let mut python = python_with(&["pyarrow.parquet"]);
    let script = "import sys, pyarrow.parquet as p\nfor f in sys.argv[1:]:\n    t = p.read_table(f)\n    \
        p.write_table(t.select([c for c in t.column_names if c not in ('ending', 'halts')]), f, compression='none')";
    let tables = ["slices", "deltas"].map(|name| run.table(name));
    assert!(python.args(["-c", script]).args(tables).status().unwrap().success());
    let old = load_profile(&run).unwrap();
    assert_eq!((old.slices[0].ending, old.deltas[0].halts), (None, None));
    assert!(old.slices[0].unended().unwrap().contains("did not record"));
    // Saved again, it is not known still.
    save_profile(&run, &old).unwrap();
    let again = load_profile(&run).unwrap();
    assert_eq!((again.slices[0].ending, again.deltas[0].halts), (None, None));
}

#[test]
fn two_recorders_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run");
    let first = Run::create(&place).unwrap();
    let again = first.clone();
    drop(first);
    let error = Run::create(&place).unwrap_err();
    assert!(matches!(error, kprism_store::StoreError::Busy { .. }), "{error}");
    assert!(!dir.path().join("run.old").exists(), "the run under way was not rotated away");
    drop(again);
    Run::create(&place).unwrap();
}

/// When sidebands are merged, only incomplete last lines are dropped. A damaged line stays, so that it can be counted.
#[test]
fn a_damaged_line_of_the_sideband_stays() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("run")).unwrap();
    let part = |cpu: u32, text: &str| {
        std::fs::write(run.streams().join(format!("cpu{cpu}.side.jsonl")), text).unwrap();
    };
    part(0, "{\"t\":3}\n\n{\"t\":9}\n{\"t\":1");
    part(1, "{\"t\":2}\n{\"k\":\"sw\u{0}itch\",\"t\":\"4\"}\n{\"t\":5}\n");
    let whole = "{\"t\":2}\n{\"k\":\"sw\u{0}itch\",\"t\":\"4\"}\n{\"t\":3}\n{\"t\":5}\n{\"t\":9}\n";
    assert_eq!(String::from_utf8(run.sideband_text().unwrap()).unwrap(), whole);
    run.merge_sideband().unwrap();
    assert_eq!(String::from_utf8(run.sideband_text().unwrap()).unwrap(), whole);
}

/// A file of a CPU that is missing takes away no other CPU's.
#[test]
fn a_missing_sideband_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("run")).unwrap();
    for cpu in [0, 2, 11] {
        let line = format!("{{\"t\":{cpu}}}\n");
        std::fs::write(run.streams().join(format!("cpu{cpu}.side.jsonl")), line).unwrap();
    }
    run.merge_sideband().unwrap();
    let whole = "{\"t\":0}\n{\"t\":2}\n{\"t\":11}\n";
    assert_eq!(String::from_utf8(run.sideband_text().unwrap()).unwrap(), whole);
}

/// A run made by another user may contain links. No file outside of the run may be read or written through them.
#[test]
fn links_lead_nowhere() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, "kept").unwrap();
    let run = Run::create(&dir.path().join("run")).unwrap();
    let manifest = Manifest::new(RunKind::Import, 1);
    run.write_manifest(&manifest).unwrap();
    assert!(Run::open(run.dir()).is_ok());
    // Names under which a file is written before it is renamed.
    for name in ["manifest.json.part", "tables/functions.parquet.part"] {
        symlink(&victim, run.dir().join(name)).unwrap();
        assert!(matches!(Run::open(run.dir()), Err(StoreError::Leaves { .. })), "{name}");
        run.write_manifest(&manifest).unwrap();
        save_profile(&run, &small_profile()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "kept", "{name}");
        assert!(Run::open(run.dir()).is_ok(), "{name}");
    }
    // Links to folders and to missing files, and a file on which a reader would block.
    for (name, to) in [("streams/other", dir.path()), ("symbols/root", std::path::Path::new("/nowhere"))] {
        symlink(to, run.dir().join(name)).unwrap();
        let error = Run::open(run.dir()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("leads out of the run"), "{error}");
        fs::remove_file(run.dir().join(name)).unwrap();
    }
    symlink("../manifest.json", run.dir().join("streams/own")).unwrap();
    assert!(Run::open(run.dir()).is_ok(), "a link within the run");
    assert!(std::process::Command::new("mkfifo").arg(run.dir().join("stdout")).status().unwrap().success());
    assert!(Run::open(run.dir()).unwrap_err().to_string().contains("neither a file nor a folder"));
}

/// A run contains memory contents, so only its owner may read it. A folder made by another user is refused.
#[test]
fn a_run_is_its_owners() {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
    let dir = tempfile::tempdir().unwrap();
    let run = Run::create(&dir.path().join("run")).unwrap();
    assert_eq!(fs::metadata(run.dir()).unwrap().permissions().mode() & 0o777, 0o700);
    let own = fs::metadata(run.dir()).unwrap().uid();
    let empty = dir.path().join("empty");
    fs::create_dir(&empty).unwrap();
    assert!(Run::create(&empty).is_ok());
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    // Only root can give a folder to another user.
    if own == 0 {
        chown(&theirs, Some(65534), None).unwrap();
        let error = Run::create(&theirs).unwrap_err().to_string();
        assert!(error.contains("user 65534's"), "{error}");
        assert_eq!(fs::read_dir(&theirs).unwrap().count(), 0);
    }
}
kprism_test::main!();
