// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf.data written by the export: complete, truncated anywhere, and changed anywhere; and files recorded by this
//! machine's perf.

use std::fs;
use std::path::Path;

use kprism_import::perfdata::{Files, Parts, Search, from_parts};
use kprism_import::{Capture, SwitchAt, detect, read};
use kprism_test::{PERF, needs, test};

#[path = "common/export.rs"]
mod export;
use export::{piped, small};

/// A recording of one file, alone.
fn parts(data: Vec<u8>) -> Parts {
    Parts { data: Files::new(vec![data.into()]), ..Parts::default() }
}

fn import(path: &Path, symfs: &Path) -> Capture {
    let search = Search { symfs: Some(symfs.to_owned()), ..Search::default() };
    read(&detect(path).unwrap(), &[], &search).unwrap()
}

#[test]
fn what_was_exported_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let capture = import(&out, &out.join("symfs"));
    assert_eq!(capture.notes, Vec::<String>::new());
    assert_eq!((capture.streams.len(), capture.streams[0].label.as_str()), (2, "cpu 0"));
    assert_eq!((capture.clock.tsc_hz, capture.kernel.0.as_str()), (1_000_000_000, "6.1"));
    assert_eq!((capture.clock.nom_ratio, capture.clock.cyc_threshold), (10, 256));
    assert_eq!(capture.command, ["seven"]);
    let [switch] = &capture.switches[..] else { panic!("one switch: {:?}", capture.switches) };
    assert_eq!((switch.t, switch.at), (1500, SwitchAt::Entry(!0 << 31)));
    assert_eq!((switch.prev.pid, switch.next.pid, switch.next.comm.as_str()), (7, 8, "eight"));
    let code = |asid, replaces| {
        let placed = capture.streams[0].regions.iter().find(|p| p.asid == asid && p.replaces == replaces);
        placed.map(|p| (p.va, capture.regions[p.region].bytes[..2].to_vec(), p.offset))
    };
    assert_eq!(code(0, false), Some((!0 << 31, vec![0x90, 0xc3], 0)));
    let (va, bytes, offset) = code(0, true).expect("the changed code");
    assert_eq!((va, bytes), (!0 << 31, vec![0xcc, 0xc3]));
    assert!(offset > 0);
    assert_eq!(code(0x1000, false).map(|c| c.0), Some(0x40_1000));
}

/// A thread that has exited leaves the CPU without an id: it is the one that ran there, by an earlier record.
#[test]
fn a_switch_of_a_dead_thread_is_of_the_one_that_ran() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let mut data = fs::read(out.join("data")).unwrap();
    // SWITCH_CPU_WIDE, out: the head, the next task, the trailer with the task that leaves.
    let head = [15, 0, 0, 0, 0, 0x20, 48, 0];
    let at = data.windows(8).position(|window| window == head).expect("a switch");
    assert_eq!(data[at + 16..at + 24], [7, 0, 0, 0, 7, 0, 0, 0]);
    data[at + 16..at + 24].fill(0xff);
    fs::write(out.join("data"), &data).unwrap();
    let capture = import(&out, &out.join("symfs"));
    assert_eq!(capture.notes, Vec::<String>::new());
    let [switch] = &capture.switches[..] else { panic!("one switch: {:?}", capture.switches) };
    assert_eq!((switch.prev.pid, switch.prev.tgid, &*switch.prev.comm), (7, 7, "seven"));
    assert_eq!((switch.next.pid, &*switch.next.comm), (8, "eight"));
}

/// A file truncated at any byte gives the available data and notes on the missing data, or an error that there is none.
#[test]
fn cut_off_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let data = fs::read(small(dir.path()).join("data")).unwrap();
    let parts = |bytes: &[u8]| parts(bytes.to_vec());
    let whole = from_parts(Path::new("whole"), &parts(&data)).unwrap();
    let mut partial = 0;
    for len in 0..data.len() {
        match from_parts(Path::new("cut"), &parts(&data[..len])) {
            Ok(capture) => {
                partial += 1;
                assert!(capture.notes.len() > whole.notes.len(), "{len} bytes: says what is missing");
                assert!(capture.streams.len() <= whole.streams.len());
                for (cut, whole) in capture.streams.iter().zip(&whole.streams) {
                    assert!(whole.pt.starts_with(&cut.pt), "{len} bytes: a part of the stream");
                }
            }
            Err(error) => assert!(error.to_string().contains("cut: "), "{len} bytes: {error}"),
        }
    }
    assert!(partial > data.len() / 2, "{partial} of {} give something", data.len());
}

/// Without kernel code, no packet states the address space: the sideband's switches do. Each process has its own mappings.
#[test]
fn programs_alone_have_their_own_mappings() {
    use kprism_image::maps::{Dict, MapRecord};
    use kprism_import::perfdata::export::{Source, export};
    use kprism_perfdata::{Contents, Record};
    use kprism_pt::{IpPayload, Packet};

    const PROCESSES: u64 = 20;
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/one"), [&[0; 0x1000][..], &[0x90, 0xc3], &[0; 100]].concat()).unwrap();
    let (mut pt, mut lines, mut map) = (Vec::new(), String::new(), Vec::new());
    for i in 0..PROCESSES {
        let (pid, asid, base, t) = (7 + i, 0x2000 * (i + 1), 0x40_0000 + (i << 20), 1000 * (i + 1));
        lines += &format!(
            r#"{{"k":"mmap","t":{},"cpu":0,"pid":{pid},"tgid":{pid},"asid":{asid},"start":{},"end":{},"pgoff":4096,"exec":true,"path":"/bin/one"}}
{{"k":"switch","t":{},"cpu":0,"offset":{},"asid":{asid},"prev_pid":{},"prev_tgid":{},"prev_comm":"one","pid":{pid},"tgid":{pid},"comm":"one"}}
"#,
            t - 900,
            base + 0x1000,
            base + 0x2000,
            t - 800,
            pt.len(),
            pid - 1,
            pid - 1
        );
        if i == 0 {
            Packet::Psb.encode(&mut pt);
        }
        Packet::Tsc { tsc: t }.encode(&mut pt);
        if i == 0 {
            Packet::PsbEnd.encode(&mut pt);
        }
        Packet::TipPge(IpPayload::Sext48(base + 0x1000)).encode(&mut pt);
        Packet::TipPgd(IpPayload::Suppressed).encode(&mut pt);
        map.push(MapRecord { offset: 0, asid, va: base + 0x1000, id: 0, flags: 0 });
    }
    let mut dict = b"KPDICT01".to_vec();
    dict.extend([0, 0, 0, 0, 2, 0, 0, 0]);
    dict.extend(0u64.to_le_bytes());
    dict.extend([0x90, 0xc3]);
    let (dict, None) = Dict::parse(dict) else { panic!("a dictionary") };
    let out = dir.path().join("user.perf.data");
    let source = Source {
        cpus: &[(&pt, &map)],
        dict: &dict,
        records: &kprism_image::sideband::parse(lines.as_bytes()).unwrap(),
        clock: kprism_flow::clock::ClockConfig { tsc_hz: 1_000_000_000, ..Default::default() },
        errata: Default::default(),
        kallsyms: b"",
        modules: b"",
        root: &root,
        release: "",
        build_id: "",
        command: &[],
        ret_compression: true,
    };
    export(&source, &out).unwrap();
    let bytes = fs::read(out.join("data")).unwrap();
    let mut contents = Contents::default();
    kprism_perfdata::read(&bytes, &mut contents);
    let mapped: Vec<(u32, u64, String)> = contents
        .events
        .iter()
        .filter_map(|event| match &event.record {
            Record::Mmap(m) => Some((m.pid, m.start, m.path.clone())),
            _ => None,
        })
        .collect();
    let own = |i: u64| (7 + i as u32, 0x40_1000 + (i << 20), "/bin/one".to_owned());
    assert_eq!(mapped, (0..PROCESSES).map(own).collect::<Vec<_>>());
}

/// Any byte may change.
#[test]
fn changed_anywhere() {
    let dir = tempfile::tempdir().unwrap();
    let data = fs::read(small(dir.path()).join("data")).unwrap();
    for at in 0..data.len() {
        for flip in [0xff, 0x80, 1] {
            let mut bytes = data.clone();
            bytes[at] ^= flip;
            let _ = from_parts(Path::new("changed"), &parts(bytes));
        }
    }
}

/// A file that is not the recorded one is reported and not used.
#[test]
fn build_ids_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let symfs = out.join("symfs/bin/seven");
    // This test's program has another build id than the recorded one, or none.
    let mut data = fs::read(out.join("data")).unwrap();
    let name = b"/bin/seven\0";
    let at = data.windows(name.len()).position(|w| w == name).expect("the mapping's path");
    // MMAP2 with a build id: misc bit 14; 36 bytes before the path.
    let head = at - 72;
    data[head + 5] |= 0x40;
    data[at - 32] = 20;
    data[at - 28..at - 8].fill(0xab);
    let file = dir.path().join("other.data");
    fs::write(&file, &data).unwrap();
    let capture = import(&file, &out.join("symfs"));
    let note = capture.notes.iter().find(|n| n.contains("build id")).expect("a note");
    assert!(note.starts_with(symfs.to_str().unwrap()) && note.contains(&"ab".repeat(20)), "{note}");
    assert!(capture.streams[0].regions.iter().all(|p| p.va != 0x40_1000));
}

/// The code of a BPF program, from the section that perf wrote about it.
#[test]
fn bpf_programs_are_kernel_code() {
    let dir = tempfile::tempdir().unwrap();
    let mut data = piped(&fs::read(small(dir.path()).join("data")).unwrap(), false);
    let section = fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../format/perfdata/tests/data/bpf_prog_info.bin"),
    )
    .unwrap();
    let whole = from_parts(Path::new("x"), &parts(data.clone())).unwrap();
    // PERF_RECORD_HEADER_FEATURE.
    for word in [80 | (16 + section.len() as u64) << 48, 25] {
        data.extend(u64::to_le_bytes(word));
    }
    data.extend(&section);
    let capture = from_parts(Path::new("x"), &parts(data)).unwrap();
    assert_eq!(capture.notes, whole.notes, "the rest of the kernel's code is still missing");
    let first = capture.streams[0].regions[0];
    assert_eq!((first.va, first.asid, first.replaces), (0xffff_ffff_c002_2050, 0, false));
    assert_eq!(capture.regions[first.region].bytes.len(), 23);
}

/// Through a pipe, and with zstd: the same capture.
#[test]
fn pipes_and_compression_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = fs::read(small(dir.path()).join("data")).unwrap();
    let capture = |data: Vec<u8>| from_parts(Path::new("x"), &parts(data)).unwrap();
    let mut whole = capture(data.clone());
    let mut through = capture(piped(&data, false));
    // Data that is only in feature sections is not in this pipe.
    whole.kernel = Default::default();
    whole.command.clear();
    assert_eq!(through, whole);
    through = capture(piped(&data, true));
    assert_eq!(through, whole);
}

/// The kernel reports a full buffer (`PERF_AUX_FLAG_TRUNCATED`), an overwritten one, and gaps without a position. The
/// stream then has a loss at the place of the missing data, and only there.
#[test]
fn losses_stand_in_the_stream() {
    let dir = tempfile::tempdir().unwrap();
    let data = piped(&fs::read(small(dir.path()).join("data")).unwrap(), false);
    let capture = |data: &[u8]| from_parts(Path::new("x"), &parts(data.to_vec())).unwrap();
    let whole = capture(&data);
    let first = whole.streams[0].pt.to_vec();
    // The first AUX record: that of CPU 0.
    let word = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let (mut at, mut aux) = (16, None);
    while aux.is_none() {
        let head = word(at);
        aux = (head & 0xffff_ffff == 11).then_some(at);
        at +=
            usize::try_from(head >> 48).unwrap() + if head & 0xff == 71 { word(at + 8) as usize } else { 0 };
    }
    let aux = aux.expect("an AUX record");
    assert_eq!((word(aux + 8), word(aux + 16), word(aux + 24)), (0, first.len() as u64, 0));
    // A second piece, which begins with the rest of a packet.
    let with = |flags: u64, skipped: u64| {
        let mut more = data.clone();
        more[aux + 24] = flags as u8;
        let piece = [&[0x11, 0x22, 0x33][..], &first].concat();
        for word in [71 | 48 << 48, piece.len() as u64, first.len() as u64 + skipped, 0, 0xffff_ffff << 32, 0]
        {
            more.extend(u64::to_le_bytes(word));
        }
        more.extend(&piece);
        let mut capture = capture(&more);
        // Notes about files that do not exist here, and about the times of the first piece, which the second repeats.
        capture.notes.retain(|note| !whole.notes.contains(note) && !note.contains("the clock goes back"));
        capture
    };
    let cut = [&first[..], &[0x02, 0xf3], &first].concat();
    let joined = [&first[..], &[0x11, 0x22, 0x33], &first].concat();
    let full = with(1, 0);
    assert_eq!(full.streams[0].pt, cut);
    let [buffer, place] = &full.notes[..] else { panic!("two notes: {:?}", full.notes) };
    assert!(buffer.starts_with("1 time: the trace buffer was full"), "{buffer}");
    assert_eq!(place, "cpu 0: 1 place where trace data are missing");
    let again = with(2, 0);
    assert_eq!(again.streams[0].pt, first, "a snapshot that has nothing new");
    assert_eq!(again.notes, Vec::<String>::new());
    let collided = with(8, 0);
    assert_eq!(collided.streams[0].pt, joined);
    assert!(collided.notes.len() == 1 && collided.notes[0].contains("collided"), "{:?}", collided.notes);
    let gaps = with(4, 0);
    assert_eq!(gaps.streams[0].pt, joined);
    assert!(gaps.notes.len() == 1 && gaps.notes[0].contains("gaps"), "{:?}", gaps.notes);
    let plain = with(0, 0);
    assert_eq!((&plain.streams[0].pt[..], plain.notes.len()), (&joined[..], 0));
    assert_eq!(with(0, 4096).streams[0].pt, cut, "a piece that is not in the file");
    assert_eq!(full.streams[1], whole.streams[1]);
}

/// On most machines perf's time at TSC 0 is negative. Records keep their times, and packets get perf's.
#[test]
fn a_clock_that_began_after_the_tsc() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let whole = import(&out, &out.join("symfs"));
    let mut data = fs::read(out.join("data")).unwrap();
    let back = 700u64;
    // The conversion, and every time in a record, 700 ns earlier.
    let word = |data: &[u8], at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let (mut at, len) = (word(&data, 40) as usize, word(&data, 48) as usize);
    let end = at + len;
    while at < end {
        let (kind, size) = (word(&data, at) & 0xffff_ffff, (word(&data, at) >> 48) as usize);
        let place = match kind {
            70 => Some(at + 40),
            79 => Some(at + 24),
            1..=22 => Some(at + size - 24),
            _ => None,
        };
        if let Some(place) = place.filter(|&place| kind >= 70 || word(&data, place) != 0) {
            let earlier = word(&data, place).wrapping_sub(back);
            data[place..place + 8].copy_from_slice(&earlier.to_le_bytes());
        }
        at += size + if kind == 71 { word(&data, at + 8) as usize } else { 0 };
    }
    fs::write(out.join("data"), &data).unwrap();
    let moved = import(&out, &out.join("symfs"));
    assert_eq!(moved.clock.perf.unwrap().parts(), (1, 0, 0u64.wrapping_sub(back)));
    assert_eq!((moved.switches.len(), moved.switches[0].t), (1, 1500 - back));
    assert_eq!(
        moved.switches[0].next,
        kprism_import::Task { t: 1500 - back, ..whole.switches[0].next.clone() }
    );
    assert_eq!(moved.streams, whole.streams.iter().map(|stream| earlier(stream, back)).collect::<Vec<_>>());
}

/// A clock that goes back is said, and the rest is read.
#[test]
fn a_clock_that_goes_back() {
    let dir = tempfile::tempdir().unwrap();
    let out = small(dir.path());
    let whole = import(&out, &out.join("symfs"));
    let mut data = fs::read(out.join("data")).unwrap();
    let tsc = |tsc: u64| [&[0x19][..], &tsc.to_le_bytes()[..7]].concat();
    let places: Vec<usize> = (0..data.len() - 8).filter(|&at| data[at..].starts_with(&tsc(2000))).collect();
    assert_eq!(places.len(), 2, "one on each CPU");
    data[places[0]..places[0] + 8].copy_from_slice(&tsc(900));
    fs::write(out.join("data"), &data).unwrap();
    let capture = import(&out, &out.join("symfs"));
    let [note] = &capture.notes[..] else { panic!("one note: {:?}", capture.notes) };
    assert!(note.starts_with("cpu 0: the clock goes back 1 time:"), "{note}");
    assert_eq!(capture.streams[1], whole.streams[1]);
    assert_eq!(capture.switches, whole.switches);
}

/// The same stream, whose first task begins earlier.
fn earlier(stream: &kprism_import::Stream, back: u64) -> kprism_import::Stream {
    let first = stream.first.map(|(tid, t)| (tid, t - back));
    kprism_import::Stream { first, ..stream.clone() }
}

/// The fuzzer's seeds and findings.
#[test]
fn the_corpus_is_read() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus/perfdata");
    let mut seen = 0;
    for entry in fs::read_dir(folder).expect("the corpus") {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        let parts = Parts {
            kcore: Some(("kcore".into(), bytes.clone().into())),
            data: Files::new(vec![bytes.into()]),
            ..Parts::default()
        };
        let _ = from_parts(Path::new("corpus"), &parts);
        let _ = from_parts(Path::new("corpus"), &Parts { kcore: None, ..parts });
        seen += 1;
    }
    assert!(seen >= 3, "the corpus is where it was");
}

/// Files of this machine's perf, if it may record: the container, its compression, and the kernel's own records. They
/// hold no Intel PT, so the import must report exactly that.
#[test]
fn files_of_this_machines_perf_are_understood() {
    needs(&[PERF]);
    let dir = tempfile::tempdir().unwrap();
    for options in [&["-z"][..], &[]] {
        let file = dir.path().join("perf.data");
        let made = std::process::Command::new("perf")
            .args(["record", "-q", "-e", "cpu-clock", "--switch-events", "-o"])
            .arg(&file)
            .args(options)
            .args(["--", "true"])
            .output();
        assert!(made.expect("perf runs").status.success());
        let error = read(&detect(&file).unwrap(), &[], &Search::default()).unwrap_err().to_string();
        let is = |what: &str| assert!(error.contains(what), "{options:?}: {what}: {error}");
        is("no Intel PT in this perf.data, but samples of cpu-clock (");
        is("; see: perf report and perf script -i ");
        assert!(!error.contains("perf record"), "{options:?}: {error}");
    }
}

kprism_test::main!();
