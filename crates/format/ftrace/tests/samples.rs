// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the samples of a 6.12 guest, if they are available: all events, as many as the kernel and trace-cmd count.

use std::path::Path;
use std::process::Command;

use kprism_ftrace::dat::Dat;
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::text::Text;
use kprism_ftrace::{Data, side};
use kprism_test::{TRACE_CMD, needs, test};

#[path = "common/samples.rs"]
mod unpacked;

use unpacked::samples;

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_line_of_every_text_is_read() {
    let dir = samples();
    let mut texts = 0;
    for folder in ["text612", "paper", "boot/boot_initcall", "boot/boot_thresh"] {
        for entry in std::fs::read_dir(dir.path().join(folder)).expect("a folder").flatten() {
            let text = read(&entry.path());
            if !kprism_ftrace::text::is_text(&text) {
                continue;
            }
            let name = entry.path().display().to_string();
            let mut reader = Text::new(&text);
            let events = reader.by_ref().count() as u64;
            assert_eq!(events, reader.counts.events + reader.counts.lost_uncounted, "{name}");
            assert!(events > 100, "{name}");
            // Files that were truncated to a size end within a line.
            let whole = text.ends_with(b"\n");
            assert!(reader.counts.faults.count <= u64::from(!whole), "{name}: {:?}", reader.counts.faults);
            texts += 1;
        }
    }
    assert!(texts > 15);
}

#[test]
fn raw_pages_hold_what_the_kernel_counted() {
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
    for cpu in 0..2 {
        let pages = read(&dir.join(format!("cpu{cpu}.raw")));
        let stats = side::stats(&read(&dir.join(format!("cpu{cpu}.stats"))));
        let mut reader = Cpu::new(&decoder, layout, cpu, &pages);
        let raw = reader.by_ref().filter(|e| matches!(e.data, Data::Raw { .. })).count();
        println!("cpu{cpu}: {:?} {stats:?}", reader.counts());
        assert_eq!(reader.counts().events, stats.entries);
        assert_eq!(reader.counts().faults.count, 0);
        assert_eq!(raw, 0);
    }
}

#[test]
fn trace_dat_holds_what_trace_cmd_reports() {
    needs(&[TRACE_CMD]);
    let dir = samples();
    for name in ["v6.dat", "v7_default.dat", "v7_thresh1000.dat"] {
        let path = dir.path().join("dat").join(name);
        let file = read(&path);
        let dat = Dat::parse(&file).expect("a trace.dat");
        assert_eq!(dat.notes, Vec::<String>::new());
        let decoder = dat.decoder();
        let mut counts = Vec::new();
        for (mut cpu, stats) in dat.cpus(&dat.buffers[0], &decoder).into_iter().zip(&dat.stats) {
            let _ = cpu.by_ref().count();
            let stats = side::stats(stats.as_bytes());
            println!("{name}: {:?} {stats:?}", cpu.counts());
            assert_eq!(cpu.counts().faults.count, 0);
            counts.push(cpu.counts().events);
        }
        // Raw and without plugins: one line for each event, and function graph's entries and exits on separate lines.
        let report = Command::new("trace-cmd")
            .args(["report", "-R", "-N", "-i"])
            .arg(&path)
            .output()
            .expect("trace-cmd runs");
        let text = String::from_utf8_lossy(&report.stdout);
        for (cpu, events) in counts.iter().enumerate() {
            let place = format!(" [{cpu:03}] ");
            assert_eq!(
                text.lines().filter(|l| l.contains(&place)).count() as u64,
                *events,
                "{name}: CPU {cpu}"
            );
        }
    }
}

kprism_test::main!();
