// SPDX-License-Identifier: MIT OR Apache-2.0
//! A boot from any log and any pages: `LOG \0 PAGES`. Every initcall of either is there once, none ends before it began.
#![no_main]

use kprism_boot::{Formats, compare, join, parse_log, read};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::raw::Cpu;
use libfuzzer_sys::fuzz_target;

const FORMATS: [&str; 3] = [
    "name: initcall_start\nID: 21\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:initcall_t func;\toffset:8;\tsize:8;\tsigned:0;\n",
    "name: initcall_finish\nID: 20\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:initcall_t func;\toffset:8;\tsize:8;\tsigned:0;\n\tfield:int ret;\toffset:16;\tsize:4;\tsigned:1;\n",
    "name: initcall_level\nID: 22\nformat:\n\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;\n\n\tfield:__data_loc char[] level;\toffset:8;\tsize:4;\tsigned:0;\n",
];

fuzz_target!(|input: &[u8]| {
    let split = input.iter().position(|&byte| byte == 0).unwrap_or(input.len());
    let (log, pages) = (&input[..split], input.get(split + 1..).unwrap_or_default());
    let formats: Vec<Format> =
        FORMATS.iter().map(|text| Format::parse("initcall", text.as_bytes()).expect("a format")).collect();
    let decoder = Decoder::new(&formats, false);
    let log = parse_log(&String::from_utf8_lossy(log));
    let found = read(Cpu::new(&decoder, PageLayout::default(), 0, pages), &Formats::new(&formats, false));
    let name = |address: u64| (address % 3 == 0).then(|| (format!("f{}", address % 16), None));
    let boot = join(&found, &log, Vec::new(), &name);
    assert!(boot.initcalls.len() >= found.initcalls.len().max(log.len()));
    assert_eq!(boot.initcalls.len(), found.initcalls.len() + boot.coarse);
    assert!(boot.initcalls.is_sorted_by_key(|call| call.start_ns));
    assert!(compare(&boot, &boot).changes.iter().all(|change| change.ns() == 0));
});
