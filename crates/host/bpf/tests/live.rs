// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests programs in the running kernel: loads and runs them, attaches them to actions of this process, and reads their
//! output. Tests of features that a locked-down kernel forbids run in the guest.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use kprism_bpf::Error;
use kprism_bpf::cpu_ring::{self, CpuRing};
use kprism_bpf::host::Host;
use kprism_bpf::kernel::Kernel;
use kprism_bpf::link::{Link, When};
use kprism_bpf::map::{Map, MapKind};
use kprism_bpf::numbers::Numbers;
use kprism_bpf::prog::{ProgKind, Program};
use kprism_bpf::ring::Ring;
use kprism_ebpf::asm::{Asm, Code, Reloc};
use kprism_ebpf::disasm::listing;
use kprism_ebpf::insn::{self, Alu, Cond, Helper, Reg, Width};
use kprism_test::{skip, test};

/// Ignores the test if programs may not be loaded.
fn allowed() {
    if let Some(why) = Host::here().refusal() {
        skip(why);
    }
}

/// Returns a program that writes `value` to a ring when this process reaches it.
fn tell(value: i32) -> Code {
    let mut asm = Asm::new();
    let other = asm.label();
    asm.note("only us").call(Helper::CurrentPidTgid).alu_imm(Alu::Rsh, Reg::R0, 32);
    asm.branch_imm(Cond::Ne, Reg::R0, std::process::id() as i32, other);
    asm.store_imm(Width::B8, Reg::R10, -8, value).map(Reg::R1, 0).mov(Reg::R2, Reg::R10);
    asm.alu_imm(Alu::Add, Reg::R2, -8).mov_imm(Reg::R3, 8).mov_imm(Reg::R4, 0).call(Helper::RingbufOutput);
    asm.bind(other).end();
    asm.finish().unwrap()
}

/// Namespaces are covered by the tests of `record probe`.
#[test]
fn a_process_has_one_number_on_the_machine() {
    allowed();
    let kernel = Kernel::running().unwrap();
    let numbers = Numbers::here(&kernel).unwrap();
    // The initial namespace has this inode number (`PROC_PID_INIT_INO`).
    let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap();
    assert_eq!(numbers.differ(), namespace != std::path::Path::new("pid:[4026531836]"));
    let own = std::process::id();
    assert_eq!(numbers.own() == own, !numbers.differ());
    assert_eq!(numbers.of(&kernel, &[own]).unwrap(), [numbers.own()]);
}

/// Waits for a record and returns it.
fn heard(ring: &mut Ring<'_>) -> Vec<u64> {
    let mut words = Vec::new();
    let until = Instant::now() + Duration::from_secs(60);
    while words.is_empty() && Instant::now() < until {
        ring.drain(|bytes| words.push(u64::from_le_bytes(bytes.try_into().unwrap())));
        ring.wait(Duration::from_millis(10));
    }
    words
}

#[test]
fn a_program_computes() {
    allowed();
    // As from another code generator: multiplies the word in the context by 3 and stores it in a map.
    let [map, second] = insn::load_imm64(Reg::R1, 0, 0);
    let insns = [
        insn::load(Width::B8, Reg::R3, Reg::R1, 0),
        insn::alu_imm(Alu::Mul, Reg::R3, 3),
        map,
        second,
        insn::store(Width::B8, Reg::R1, 8, Reg::R3),
        insn::alu_imm(Alu::Mov, Reg::R0, 7),
        insn::exit(),
    ];
    let code = Code::new(&insns, &[Reloc { at: 2, map: 0, value: Some(0) }]);
    let memory = Map::memory("test", 64).unwrap();
    let program = Program::load("triple", ProgKind::RawTracepoint, &code, &[&memory]).unwrap();
    let tested = program.test_run(&mut [14, 0], 0).unwrap();
    assert_eq!(tested.value, 7);
    assert_eq!(memory.mapped().unwrap().read(8), 42);
    let info = program.info().unwrap();
    assert!(info.id > 0 && info.verified >= 5 && info.missed == 0, "{info:?}");
}

#[test]
fn a_refusal_says_what_we_meant() {
    allowed();
    let mut asm = Asm::new();
    asm.note("a word of the kernel's").load(Width::B8, Reg::R3, Reg::R2, 0).end();
    let code = asm.finish().unwrap();
    let error = Program::load("wrong", ProgKind::RawTracepoint, &code, &[]).unwrap_err();
    assert!(matches!(error, Error::Verifier { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("R2 !read_ok") && text.contains("; a word of the kernel's"), "{text}");
}

#[test]
fn maps_hold_what_is_put_in() {
    allowed();
    for kind in [MapKind::Hash, MapKind::LruHash] {
        let map = Map::create("test", kind, 4, 8, 64, 0).unwrap();
        let (key, value) = (7u32.to_le_bytes(), 9u64.to_le_bytes());
        assert_eq!(map.lookup(&key).unwrap(), None);
        map.update(&key, &value).unwrap();
        assert_eq!(map.lookup(&key).unwrap(), Some(value.to_vec()));
        assert_eq!(map.keys().unwrap(), [key.to_vec()]);
        assert!(map.delete(&key).unwrap() && !map.delete(&key).unwrap());
        assert!(map.update(&[1], &value).unwrap_err().to_string().contains("a key has 4 bytes, not 1"));
    }
    let percpu = Map::create("test", MapKind::PercpuArray, 4, 4, 2, 0).unwrap();
    let zero = percpu.lookup(&0u32.to_le_bytes()).unwrap().unwrap();
    assert_eq!(zero.len(), 8 * kprism_bpf::host::possible_cpus());
    Map::create("test", MapKind::StackTrace, 4, 8 * 127, 16, 0).unwrap();
    assert!(percpu.mapped().is_err());
}

#[test]
fn tracepoints_tell_of_this_process() {
    allowed();
    let map = Map::ring("test", 1 << 16).unwrap();
    let mut ring = Ring::new(&map).unwrap();
    let raw = Program::load("raw", ProgKind::RawTracepoint, &tell(1), &[&map]).unwrap();
    let link = Link::raw_tracepoint(&raw, "sys_enter").unwrap();
    assert_eq!(heard(&mut ring)[0], 1);
    drop(link);
    let kernel = Kernel::running().unwrap_or_else(|why| skip(why.to_string()));
    let kind = ProgKind::TpBtf(kernel.tracepoint("sys_enter").unwrap());
    let typed = Program::load("typed", kind, &tell(2), &[&map]).unwrap();
    ring.drain(|_| {});
    let link = Link::tracing(&typed, 0).unwrap();
    assert_eq!(heard(&mut ring)[0], 2);
    drop(link);
    // After the link is dropped, no more records arrive.
    ring.drain(|_| {});
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(ring.drain(|_| {}), 0);
    let none = kernel.tracepoint("no_such_tracepoint").unwrap_err().to_string();
    assert!(none.contains("no such tracepoint"), "{none}");
}

/// Creates rings of one page for each CPU, and a program that writes its argument and three times its argument, or
/// counts a loss.
fn numbers() -> (cpu_ring::Layout, Map, Program) {
    let cpus = kprism_bpf::host::possible_cpus() as u32;
    // 24 does not divide the ring's size, so some records continue in the slack.
    let layout = cpu_ring::Layout::fitting(cpus, 64, 4096, 24).unwrap();
    let map = layout.map("test").unwrap();
    let mut asm = Asm::new();
    let (out, full) = (asm.label(), asm.label());
    asm.load(Width::B8, Reg::R6, Reg::R1, 0);
    cpu_ring::counter(&mut asm, &layout, 0, 8, out);
    asm.mov(Reg::R7, Reg::R1);
    let room = cpu_ring::reserve(&mut asm, &layout, 8, 24, full);
    asm.store(Width::B8, Reg::R1, 8, Reg::R6).alu_imm(Alu::Mul, Reg::R6, 3);
    asm.store(Width::B8, Reg::R1, 16, Reg::R6);
    cpu_ring::submit(&mut asm, 24);
    asm.bind(out).end();
    room.retries(&mut asm);
    asm.bind(full).mov_imm(Reg::R0, 1).put(insn::atomic_add(Reg::R7, 0, Reg::R0)).goto(out);
    let program = Program::load("numbers", ProgKind::RawTracepoint, &asm.finish().unwrap(), &[&map]).unwrap();
    (layout, map, program)
}

fn taken(rings: &mut [CpuRing<'_>], into: &mut Vec<u64>) {
    for ring in rings {
        let mut last = None;
        ring.drain(|record| {
            let words: Vec<u64> =
                record.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect();
            assert_eq!((words.len(), words[0], words[2]), (3, 24, words[1] * 3));
            assert!(last < Some(words[1]), "in the order in which they were made");
            last = Some(words[1]);
            into.push(words[1]);
        });
    }
}

#[test]
fn a_ring_of_our_own_loses_nothing_but_what_it_counts() {
    allowed();
    let (layout, map, program) = numbers();
    let memory = map.mapped().unwrap();
    let ring = |cpu: u32| CpuRing::new(&memory, &layout, cpu as usize);
    let mut rings: Vec<_> = (0..layout.cpus).map(ring).collect();
    let lost = || (0..layout.cpus as usize).map(|cpu| memory.read(layout.counter(cpu, 8))).sum::<u64>();
    let mut found = Vec::new();
    // Many rounds, with never more records than there is room for.
    for value in 0..20_000 {
        program.test_run(&mut [value], 0).unwrap();
        if value % 100 == 99 {
            taken(&mut rings, &mut found);
        }
    }
    found.sort_unstable();
    assert!(found.iter().copied().eq(0..20_000), "{} of 20000", found.len());
    assert_eq!(lost(), 0);
    // More records than all rings can hold.
    let many = u64::from(layout.cpus) * 4096 / 24 + 10;
    let make = |value| program.test_run(&mut [value], 0).map(|_| ()).unwrap();
    (0..many).for_each(make);
    assert!(lost() > 0);
    found.clear();
    taken(&mut rings, &mut found);
    assert_eq!(found.len() as u64 + lost(), many);
    // Read while records are written.
    found.clear();
    let before = lost();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..50_000).for_each(make));
        while !writer.is_finished() {
            taken(&mut rings, &mut found);
        }
    });
    taken(&mut rings, &mut found);
    assert!(rings.iter().all(|ring| !ring.is_busy()));
    assert_eq!(found.len() as u64 + lost() - before, 50_000);
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn kprism_bpf_test_probed(x: u64) -> u64 {
    std::hint::black_box(x + 1)
}

#[test]
fn a_function_of_this_program_is_probed() {
    allowed();
    let exe = std::env::current_exe().unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let at = kprism_bpf_test_probed as *const () as u64;
    // Offset of the function in the file.
    let offset = maps.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (start, end) = words[0].split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        (hex(start)? <= at && at < hex(end)?).then_some(hex(words[2])? + at - hex(start)?)
    });
    let offset = offset.expect("the function is mapped");
    let map = Map::ring("test", 1 << 16).unwrap();
    let mut ring = Ring::new(&map).unwrap();
    let program = Program::load("probe", ProgKind::Kprobe, &tell(3), &[&map]).unwrap();
    for when in [When::Entry, When::Return] {
        let pid = std::process::id() as i32;
        let _link = Link::uprobe(&program, &exe, offset, when, pid, 0).unwrap();
        for x in 0..5 {
            kprism_bpf_test_probed(x);
        }
        assert_eq!(ring.drain(|bytes| assert_eq!(bytes, 3u64.to_le_bytes())), 5, "{when:?}");
    }
    match Program::load("probe", ProgKind::UprobeMulti, &tell(3), &[&map]) {
        Ok(program) => {
            let _link =
                Link::uprobe_multi(&program, &exe, &[offset], &[1], When::Entry, std::process::id()).unwrap();
            kprism_bpf_test_probed(1);
            assert_eq!(ring.drain(|_| {}), 1);
        }
        Err(why) => skip(format!("uprobe_multi: {why}; all else was tested")),
    }
    assert!(map.as_fd().try_clone_to_owned().is_ok());
}

#[test]
fn listings_read_like_the_verifiers() {
    let mut asm = Asm::new();
    let (out, again) = (asm.label(), asm.label());
    asm.note("begin").mov_u64(Reg::R6, u64::MAX - 1).mov_u64(Reg::R7, 1 << 40).bind(again);
    asm.map_value(Reg::R1, 0, 16).load(Width::B4, Reg::R2, Reg::R1, -4).put(insn::atomic_add(
        Reg::R1,
        8,
        Reg::R2,
    ));
    asm.branch(Cond::SLt, Reg::R2, Reg::R6, again).branch_imm(Cond::Eq, Reg::R2, 5, out).goto(again);
    asm.bind(out).end();
    let text = listing(&asm.finish().unwrap());
    let expected = "\
; begin
   0: r6 = -2
   1: r7 = 0x10000000000 ll
   3: r1 = &map 0[0] + 0x10
   5: r2 = *(u32 *)(r1 - 4)
   6: lock *(u64 *)(r1 + 8) += r2
   7: if r2 s< r6 goto 3
   8: if r2 == 5 goto 10
   9: goto 3
  10: r0 = 0
  11: exit
";
    assert_eq!(text, expected);
    let mut asm = Asm::new();
    let nowhere = asm.label();
    asm.goto(nowhere);
    assert!(asm.finish().is_err());
}

kprism_test::main!();
