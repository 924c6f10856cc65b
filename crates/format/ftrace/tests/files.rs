// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests on small files: excerpts of real texts and pages, and hand-made trace.dat files.

mod common;

use common::{FORMATS, FUNC, Order};
use kprism_ftrace::dat::{Dat, TscToNs};
use kprism_ftrace::decode::Decoder;
use kprism_ftrace::format::{Format, PageLayout};
use kprism_ftrace::raw::Cpu;
use kprism_ftrace::text::Text;
use kprism_ftrace::{Context, Data, Event, Exit, Func};

fn formats() -> Vec<Format> {
    let texts = FORMATS.split("name: ").skip(1);
    texts.map(|text| Format::parse("ftrace", format!("name: {text}").as_bytes()).expect("a format")).collect()
}

#[test]
fn a_page_with_every_kind_of_record() {
    for order in [Order::Little, Order::Big] {
        let decoder = Decoder::new(&formats(), order == Order::Big);
        let layout = PageLayout { commit_at: 8, commit_size: 4, data_at: 12, data_size: 500 };
        let page = common::page(order, 512);
        let mut cpu = Cpu::new(&decoder, layout, 3, &page);
        let events: Vec<Event<'_>> = cpu.by_ref().collect();
        let event = |ns, pid, context, data| Event { ns, cpu: 3, pid, context, data };
        let func = Func::Address(FUNC);
        let exit = Exit { func: Some(func), depth: 0, call_ns: Some(1000), ret_ns: Some(1500), overrun: 0 };
        // 1005 is 1000 + 5. Then an absolute time of 2 << 27 | 9, a discarded event 1 ns later, and the exit 7 ns after
        // that.
        let last = (2 << 27 | 9) + 1 + 7;
        let expected = [
            event(1000, kprism_ftrace::UNKNOWN_PID, Context::Task, Data::Lost { count: Some(42) }),
            event(1005, 7, Context::Task, Data::Entry { func, depth: 0 }),
            event(last, 7, Context::Hardirq, Data::Exit(exit)),
        ];
        assert_eq!(events, expected, "{order:?}");
        let counts = cpu.counts();
        assert_eq!((counts.events, counts.lost, counts.discarded, counts.faults.count), (2, 42, 1, 0));
    }
}

#[test]
fn real_pages_are_read_to_their_end_and_damaged_ones_with_a_fault() {
    let decoder = Decoder::new(&formats(), false);
    let pages: [(&[u8], u64); 3] = [
        (include_bytes!("data/raw/cpu0.raw"), 96),
        (include_bytes!("data/raw/cpu1.raw"), 96),
        (include_bytes!("data/raw/threshold.raw"), 63),
    ];
    for (page, least) in pages {
        let count = |bytes: &[u8]| {
            let mut cpu = Cpu::new(&decoder, PageLayout::default(), 0, bytes);
            let raw = cpu.by_ref().filter(|e| matches!(e.data, Data::Raw { .. })).count();
            (cpu.counts().events, raw, cpu.counts().faults.count)
        };
        let (events, raw, faults) = count(page);
        assert!(events >= least && raw == 0 && faults == 0, "{events} events, {raw} raw, {faults} faults");
        let (fewer, _, faults) = count(&page[..2000]);
        assert!(fewer < events && faults > 0, "{fewer} of {events}, {faults} faults");
        assert_eq!(count(&page[..10]), (0, 0, 1));
    }
}

#[test]
fn trace_dat_of_both_versions_and_all_compressions() {
    let mut files =
        vec![("none", "local", common::v6(Order::Little)), ("none", "local", common::v6(Order::Big))];
    for method in ["none", "zlib", "zstd"] {
        files.push((method, "x86-tsc", common::v7(Order::Little, method)));
        files.push((method, "x86-tsc", common::v7(Order::Big, method)));
    }
    for (method, clock, file) in files {
        let dat = Dat::parse(&file).unwrap_or_else(|e| panic!("{method} {clock}: {e}"));
        assert_eq!((dat.compression.as_str(), dat.notes.len(), dat.formats.len()), (method, 0, 3));
        assert!(dat.kallsyms.starts_with(b"ffffffff81000000 T start_here"));
        assert_eq!(&dat.cmdlines[..], b"7 worker\n");
        let names: Vec<_> = dat.buffers.iter().map(|b| (b.name.as_str(), b.clock.as_str())).collect();
        assert_eq!(names, [("", clock), ("more", clock)]);
        if dat.version == 7 {
            assert_eq!(dat.uname, "Linux host 6.12.0 x86_64");
            assert_eq!(dat.tsc, Some(TscToNs { mult: 3 << 10, shift: 10, offset: 100 }));
            assert_eq!(dat.tsc.map(|tsc| tsc.ns(50)), Some(250));
        } else {
            assert_eq!(dat.stats, ["CPU: 0\nentries: 2\noverrun: 42\n"]);
        }
        let decoder = dat.decoder();
        for buffer in &dat.buffers {
            let cpus = dat.cpus(buffer, &decoder);
            let events: u64 = cpus
                .into_iter()
                .map(|mut cpu| {
                    let _ = cpu.by_ref().count();
                    assert_eq!(cpu.counts().faults.count, 0);
                    cpu.counts().events
                })
                .sum();
            assert_eq!(events, if dat.version == 7 { 4 } else { 2 });
        }
        // Truncated at any byte, the file gives a value or an error.
        for end in 0..file.len() {
            let _ = Dat::parse(&file[..end]);
        }
    }
}

#[test]
fn what_is_no_trace_dat_is_named() {
    let error = |bytes: &[u8]| Dat::parse(bytes).expect_err("no trace.dat").to_string();
    assert_eq!(error(b"x"), "offset 0: expected the mark of a trace.dat, 17 08 44 `tracing`");
    assert_eq!(
        error(b"\x17\x08\x44tracing8\0\0\x08\0\0\0\0"),
        "trace.dat version 8 is not known: convert it with `trace-cmd convert --file-version 7`"
    );
    let packed = common::v7(Order::Little, "zstd");
    let at = packed.windows(4).position(|w| w == b"zstd").expect("a name");
    let mut renamed = packed.clone();
    renamed[at..at + 4].copy_from_slice(b"lzma");
    assert!(error(&renamed).contains("compression \"lzma\" is not known"));
}

/// Lists a text's events, one per line.
fn listed(text: &[u8]) -> String {
    let mut reader = Text::new(text);
    let lines: Vec<String> = reader
        .by_ref()
        .map(|e| format!("{} {} {} {:?} {:?}", e.ns, e.cpu, e.pid as i32, e.context, e.data))
        .collect();
    assert_eq!(reader.counts.faults.count, 0, "{:?}", reader.counts.faults);
    lines.join("\n")
}

#[test]
fn texts_of_all_options() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text");
    let mut seen = 0;
    for entry in std::fs::read_dir(dir).expect("a folder").flatten() {
        let text = std::fs::read(entry.path()).expect("a text");
        let events = listed(&text).lines().count();
        assert!(events >= 12, "{}: {events}", entry.path().display());
        seen += 1;
    }
    assert!(seen >= 15);
}

#[test]
fn lines_say_what_they_say() {
    let text = b"# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n# |     |   |                     |   |   |   |\n 0)   0.725 us    |  a();\n 0)               |  b [mod](x=1) {\n ------------------------------------------\n 0)    bash-7    =>     ls-8    \n ------------------------------------------\n\n 0) ! 10688.81 us |  } /* c = 0x0 */\nCPU:0 [LOST 12 EVENTS]\n 0)   ==========> |\n 0)               |  /* sched_wakeup: comm=x pid=1 */\n 0)   <========== |\n what\n";
    let mut reader = Text::new(text);
    let events: Vec<_> = reader.by_ref().map(|e| (e.pid, e.data)).collect();
    let name = Func::Name;
    assert_eq!(
        events,
        [
            (7, Data::Entry { func: name("a"), depth: 0 }),
            (
                7,
                Data::Exit(Exit {
                    func: Some(name("a")),
                    depth: 0,
                    call_ns: Some(0),
                    ret_ns: Some(725),
                    overrun: 0
                })
            ),
            (7, Data::Entry { func: name("b [mod]"), depth: 0 }),
            (
                8,
                Data::Exit(Exit {
                    func: Some(name("c")),
                    depth: 0,
                    call_ns: Some(0),
                    ret_ns: Some(10_688_810),
                    overrun: 0
                })
            ),
            (kprism_ftrace::UNKNOWN_PID, Data::Lost { count: Some(12) }),
            (8, Data::IrqEnter),
            (8, Data::Text("sched_wakeup: comm=x pid=1")),
            (8, Data::IrqExit),
        ]
    );
    assert_eq!(
        (reader.counts.lost, reader.counts.faults.count, reader.counts.faults.first[0].at),
        (12, 1, 16)
    );
    assert_eq!(reader.comms.get(&8).map(String::as_str), Some("ls"));
}

/// `trace_pipe` and excerpts have no header. A pasted text may have a line before its header.
#[test]
fn a_text_without_its_header_and_one_behind_other_lines_say_the_same() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text");
    let mut told = 0;
    for entry in std::fs::read_dir(dir).expect("texts").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(entry.path()).expect("a text");
        let events = |text: &str| -> (Vec<String>, u64, bool) {
            let mut reader = Text::new(text.as_bytes());
            let events = reader.by_ref().map(|event| format!("{event:?}")).collect();
            (events, reader.counts.faults.count, reader.timed())
        };
        let whole = events(&text);
        let behind = format!("$ cat /sys/kernel/tracing/trace\n{text}");
        assert!(kprism_ftrace::text::is_text(behind.as_bytes()), "{name}");
        assert_eq!(events(&behind), (whole.0.clone(), whole.1 + 1, whole.2), "{name}");
        let body: String = text.lines().filter(|l| !l.starts_with('#')).map(|l| format!("{l}\n")).collect();
        // With only names and semicolons, it could be a C program.
        if name == "fg_nocontext.txt" {
            assert!(!kprism_ftrace::text::is_text(body.as_bytes()));
            continue;
        }
        assert!(kprism_ftrace::text::is_text(body.as_bytes()), "{name}");
        assert_eq!(events(&body), whole, "{name}");
        told += 1;
    }
    assert!(told >= 15, "{told}");
    for other in [
        &include_bytes!("files.rs")[..],
        include_bytes!("data/formats.txt"),
        b"[ 0.0] a\n[ 0.1] b\n[ 0.2] c\n",
    ] {
        assert!(!kprism_ftrace::text::is_text(other));
    }
}

/// A damaged byte in a depth must cost only its record.
#[test]
fn a_depth_that_no_stack_has_is_a_fault() {
    let formats = formats();
    let decoder = Decoder::new(&formats, false);
    let pages: &[u8] = include_bytes!("data/raw/threshold.raw");
    let exit = formats.iter().find(|f| f.name == "funcgraph_exit").expect("the format");
    let at = exit.field("depth").expect("a depth").offset;
    let read = |pages: &[u8]| {
        let mut cpu = Cpu::new(&decoder, PageLayout::default(), 0, pages);
        let deepest = cpu.by_ref().filter_map(|e| match e.data {
            Data::Exit(exit) => Some(exit.depth),
            _ => None,
        });
        (deepest.max(), cpu.counts().events, cpu.counts().faults.count)
    };
    let (deepest, events, faults) = read(pages);
    assert!(deepest < Some(100) && faults == 0);
    // The first record of an exit.
    let id = exit.id.to_le_bytes();
    let first = pages[16..].windows(2).position(|two| two == id).expect("an exit") + 16;
    let mut damaged = pages.to_vec();
    damaged[first + at..first + at + 4].copy_from_slice(&1_996_488_715u32.to_le_bytes());
    let (now, same, faults) = read(&damaged);
    assert!(now < Some(100) && same == events && faults == 1, "{now:?} {faults}");
}
