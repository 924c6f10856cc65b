// SPDX-License-Identifier: MIT OR Apache-2.0
//! The export for pprof: read back here, and by pprof itself if it is installed (`KPRISM_PPROF`, else in the path).

mod sample;

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use kprism_profile::Filter;
use kprism_profile::{NO_PARENT, NodeTimes, Profile, Times};
use kprism_report::pprof::{self, proto};
use kprism_test::{pprof, test};
use prost::Message as _;

fn written(profile: &Profile, times: Option<&Times>, filter: &Filter) -> Vec<u8> {
    let mut out = Vec::new();
    pprof::write(profile, times, filter, "ls | sed", &mut out).unwrap();
    out
}

fn read(file: &[u8]) -> proto::Profile {
    let mut bytes = Vec::new();
    GzDecoder::new(file).read_to_end(&mut bytes).unwrap();
    proto::Profile::decode(&bytes[..]).unwrap()
}

/// Times that all differ.
fn times(profile: &Profile) -> Times {
    let nodes = (1..).take(profile.nodes.len());
    let nodes = nodes.map(|n| NodeTimes { total_ns: 0, off_ns: n * 1000, irq_ns: n }).collect();
    Times { nodes, ..Times::default() }
}

#[test]
fn samples_are_calling_contexts() {
    let profile = sample::profile();
    let read = read(&written(&profile, None, &Filter::default()));
    let text = |number: i64| read.string_table[number as usize].as_str();
    let kinds: Vec<_> = read.sample_type.iter().map(|t| (text(t.r#type), text(t.unit))).collect();
    assert_eq!(kinds, [("calls", "count"), ("instructions", "count"), ("self", "nanoseconds")]);
    assert_eq!((text(0), text(read.default_sample_type), text(read.comment[0])), ("", "self", "ls | sed"));
    let sum = |n: usize| read.sample.iter().map(|s| s.value[n]).sum::<i64>();
    let with = || profile.nodes.iter().filter(|node| node.parent != NO_PARENT);
    assert_eq!(sum(0), with().map(|node| node.calls as i64).sum::<i64>());
    assert_eq!(sum(1), with().map(|node| node.insns as i64).sum::<i64>());
    assert_eq!(sum(2), with().map(|node| node.ns as i64).sum::<i64>());
    // Everything that is referred to is there.
    for sample in &read.sample {
        for &id in &sample.location_id {
            let location = &read.location[id as usize - 1];
            assert_eq!(location.id, id);
            assert_eq!(read.mapping[location.mapping_id as usize - 1].id, location.mapping_id);
            let function = &read.function[location.line[0].function_id as usize - 1];
            assert_eq!(text(function.name), profile.funcs[id as usize - 1].name);
        }
        assert_eq!((text(sample.label[0].key), text(sample.label[1].key)), ("comm", "pid"));
    }
    let ls = Filter { comms: vec!["ls".into()], ..Filter::default() };
    let ls = self::read(&written(&profile, None, &ls));
    let name = |s: &proto::Sample| ls.string_table[s.label[0].str as usize].clone();
    assert!(!ls.sample.is_empty() && ls.sample.iter().all(|sample| name(sample) == "ls"));
}

#[test]
fn durations_have_what_was_waited_for() {
    let profile = sample::profile();
    let times = times(&profile);
    let read = read(&written(&profile, Some(&times), &Filter::default()));
    let kinds: Vec<_> = read.sample_type.iter().map(|t| &*read.string_table[t.r#type as usize]).collect();
    assert_eq!(kinds, ["calls", "self", "off_cpu", "interrupts", "wall"]);
    assert!(!read.sample.is_empty());
    for sample in &read.sample {
        let [_, own, off, irqs, wall] = sample.value[..] else { panic!("{sample:?}") };
        assert_eq!((wall, off), (own + off + irqs, 1000 * irqs));
    }
}

/// Cumulative values by function in pprof's table.
fn cumulated(file: &Path, kind: &str) -> Vec<(String, f64)> {
    let out = pprof()
        .args(["-top", "-cum", "-nodecount=100000", "-nodefraction=0", "-unit=ns"])
        .arg(format!("-sample_index={kind}"))
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    let rows = text.lines().skip_while(|line| !line.trim_start().starts_with("flat ")).skip(1);
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let number = words.nth(3)?.trim_end_matches("ns").parse().ok()?;
        Some((words.skip(1).collect::<Vec<_>>().join(" "), number))
    };
    rows.filter_map(row).collect()
}

#[test]
fn pprof_reads_it() {
    pprof();
    let profile = sample::profile();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.pb.gz");
    std::fs::write(&file, written(&profile, Some(&times(&profile)), &Filter::default())).unwrap();
    let rows = cumulated(&file, "self");
    // pprof's sums over callers, with recursion counted once, equal those of the tables.
    let table = kprism_report::rows::functions(&profile, &Filter::default());
    let mut compared = 0;
    for row in &table {
        let func = &profile.funcs[row.func as usize];
        let same = |name: &str| profile.funcs.iter().filter(|f| f.name == name).count() == 1;
        if row.total_ns > 0 && same(&func.name) && func.name != sample::HOSTILE {
            let theirs = rows.iter().find(|(name, _)| *name == func.name);
            let (_, ns) = theirs.unwrap_or_else(|| panic!("{}", func.name));
            assert!((ns - row.total_ns as f64).abs() <= row.total_ns as f64 / 100.0, "{} {ns}", func.name);
            compared += 1;
        }
    }
    assert!(compared > 5, "{rows:?}");
    assert!(!cumulated(&file, "off_cpu").is_empty() && !cumulated(&file, "calls").is_empty());
}

kprism_test::main!();
