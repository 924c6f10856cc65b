// SPDX-License-Identifier: MIT OR Apache-2.0
//! Boots of a real guest, from the folder of captures. Ignored without it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_boot::{Formats, join, parse_log, read};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::raw::Cpu;
use kprism_test::{captures, test};

/// Unpacks the samples. Returns the folder of one boot.
fn sample(name: &str, scratch: &Path) -> PathBuf {
    let archive = captures("ftrace/ftrace-samples.tar.xz");
    let mut unpack = Command::new("tar");
    unpack.arg("-xf").arg(&archive).arg("-C").arg(scratch).arg(format!("boot/{name}"));
    assert!(unpack.status().expect("tar").success(), "unpacking {}", archive.display());
    scratch.join("boot").join(name)
}

/// A file of several formats, one after the other.
fn formats(folder: &Path, file: &str, system: &str) -> Vec<Format> {
    let text = fs::read_to_string(folder.join(file)).unwrap();
    let parts = text.split("name: ").skip(1).map(|part| format!("name: {part}"));
    parts.map(|part| Format::parse(system, part.as_bytes()).unwrap()).collect()
}

fn load(folder: &Path) -> kprism_boot::Boot {
    let mut all = formats(folder, "initcall_formats.txt", "initcall");
    all.extend(formats(folder, "fg_formats.txt", "ftrace"));
    let decoder = Decoder::new(&all, false);
    let layout = PageLayout::parse(&fs::read(folder.join("header_page")).unwrap()).unwrap();
    let pages = fs::read(folder.join("cpu0.raw")).unwrap();
    let log = fs::read(folder.join("dmesg.txt")).unwrap();
    let read = read(Cpu::new(&decoder, layout, 0, &pages), &Formats::new(&all, false));
    join(&read, &parse_log(&String::from_utf8_lossy(&log)), Vec::new(), &|_| None)
}

#[test]
fn initcalls_have_the_names_of_the_log() {
    let scratch = std::env::temp_dir().join(format!("kprism-boot-{}", std::process::id()));
    fs::create_dir_all(&scratch).unwrap();
    let folder = sample("boot_initcall", &scratch);
    let boot = load(&folder);
    // As many as `initcall_start` in the text of the same buffer.
    let text = fs::read_to_string(folder.join("boot_trace.txt")).unwrap();
    assert_eq!(boot.initcalls.len(), text.matches(": initcall_start: ").count());
    assert_eq!((boot.unnamed, boot.coarse, boot.lost), (0, 0, 0));
    // Each has its name without any symbols. Where the text's name is right, it is the same.
    let lines: Vec<&str> = text.lines().filter(|line| line.contains(": initcall_start: ")).collect();
    for (call, line) in boot.initcalls.iter().zip(lines) {
        let by_address = line.split("func=").nth(1).unwrap().split('+').next().unwrap();
        if call.module.is_none() {
            assert_eq!(call.name, by_address);
        }
    }
    let modules: Vec<_> =
        boot.initcalls.iter().filter_map(|c| Some((c.name.as_str(), c.module.as_deref()?))).collect();
    let expected = [
        ("crc32c_mod_init", "crc32c_generic"),
        ("mbcache_init", "mbcache"),
        ("journal_init", "jbd2"),
        ("ext4_init_fs", "ext4"),
        ("virtio_blk_init", "virtio_blk"),
    ];
    assert_eq!(modules, expected);
    let ext4 = boot.initcalls.iter().find(|call| call.name == "ext4_init_fs").unwrap();
    assert_eq!((ext4.level.as_str(), ext4.pid, ext4.ns / 1000), ("module", 132, 847));
    fs::remove_dir_all(&scratch).ok();
}

#[test]
fn long_functions_are_all_above_the_threshold() {
    let scratch = std::env::temp_dir().join(format!("kprism-boot-thresh-{}", std::process::id()));
    fs::create_dir_all(&scratch).unwrap();
    let folder = sample("boot_thresh", &scratch);
    let boot = load(&folder);
    assert!(!boot.calls.is_empty() && boot.calls.iter().all(|call| call.ns >= 1_000_000));
    // There were no events of initcalls: they come from the log.
    assert!(boot.coarse > 700 && boot.initcalls.len() == boot.coarse, "{}", boot.coarse);
    fs::remove_dir_all(&scratch).ok();
}

kprism_test::main!();
