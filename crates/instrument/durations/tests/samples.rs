// SPDX-License-Identifier: MIT OR Apache-2.0
//! Samples of a 6.12 guest, if available: raw pages and the kernel's text of the same buffer give the same durations.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use kprism_durations::ftrace::Collector;
use kprism_durations::{Measured, Names, rows};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::merge::Merged;
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::text::Text;
use kprism_test::test;

#[path = "../../../format/ftrace/tests/common/samples.rs"]
mod unpacked;

use unpacked::samples;

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn gunzip(path: &Path) -> Vec<u8> {
    let out = Command::new("gzip").arg("-dc").arg(path).output().expect("gzip");
    assert!(out.status.success());
    out.stdout
}

/// Number of calls and sum of durations, by function name.
fn by_name(measured: &Measured) -> BTreeMap<String, (u64, u64)> {
    let mut names: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let taken = vec![true; measured.profile.tasks.len()];
    for row in rows::functions(&measured.profile, &measured.times, &taken) {
        let func = &measured.profile.funcs[row.func as usize];
        let sum = names.entry(format!("{} {}", func.name, func.module)).or_default();
        sum.0 += row.calls;
        sum.1 += row.sum_ns;
    }
    names.retain(|_, (calls, _)| *calls > 0);
    names
}

fn of_text(text: &[u8]) -> Measured {
    let mut reader = Text::new(text);
    let mut collector = Collector::new(Names::default(), reader.timed());
    for event in reader.by_ref() {
        collector.event(&event);
    }
    println!("text: {:?}", reader.counts);
    collector.finish(|_| None)
}

#[test]
fn raw_pages_and_text_of_one_buffer_give_the_same_durations() {
    let dir = samples();
    let dir = dir.path().join("raw612");
    let mut formats = Vec::new();
    for system in ["ftrace", "sched"] {
        for entry in std::fs::read_dir(dir.join("events").join(system)).expect("a folder").flatten() {
            formats.push(Format::parse(system, &read(&entry.path().join("format"))).expect("a format"));
        }
    }
    let layout = PageLayout::parse(&read(&dir.join("events/header_page"))).expect("a layout");
    let decoder = Decoder::new(&formats, false);
    let kallsyms = gunzip(&dir.join("kallsyms.txt.gz"));
    let kallsyms = String::from_utf8(kallsyms).expect("text");
    let mut functions: BTreeMap<u64, (String, String)> = BTreeMap::new();
    for line in kallsyms.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = u64::from_str_radix(words[0], 16).expect("hex");
        if "tTwW".contains(words[1]) {
            let module = words.get(3).map_or("[kernel]", |m| m);
            functions.entry(address).or_insert((words[2].into(), module.into()));
        }
    }
    for cpu in 0..2u32 {
        let pages = read(&dir.join(format!("cpu{cpu}.raw")));
        let at = |address: u64| Some(functions.range(..=address).next_back()?.1.clone());
        let names = Names::new(|address| Some(at(address)?.0));
        let mut collector = Collector::new(names, true);
        Merged::new(vec![Cpu::new(&decoder, layout, cpu, &pages)]).for_each(|event| collector.event(&event));
        let raw = collector.finish(at);
        let text = of_text(&gunzip(&dir.join(format!("cpu{cpu}.trace.txt.gz"))));
        println!("raw {:?}\ntext {:?}", raw.times.counts, text.times.counts);
        let (mut a, mut b) = (by_name(&raw), by_name(&text));
        // Durations of 1 ms and more lose their last digits in text.
        let close = |x: u64, y: u64| x.abs_diff(y) <= 10 + x / 10_000;
        assert!(a.len() > 300);
        a.retain(|name, (calls, ns)| !b.get(name).is_some_and(|(c, n)| c == calls && close(*ns, *n)));
        let c = by_name(&raw);
        b.retain(|name, (calls, ns)| !c.get(name).is_some_and(|(d, n)| d == calls && close(*ns, *n)));
        assert_eq!(a, b, "only in raw, only in text");
    }
}

kprism_test::main!();
