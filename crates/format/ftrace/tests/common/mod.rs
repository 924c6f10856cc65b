// SPDX-License-Identifier: MIT OR Apache-2.0
//! Small hand-made traces: pages with every kind of record, and trace.dat files of both versions that contain them.
#![allow(dead_code)]

use std::io::Write;

/// Formats of function graph's events and of sched_switch, of a 6.12 kernel.
pub const FORMATS: &str = include_str!("../data/formats.txt");

/// Byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Little,
    Big,
}

impl Order {
    fn put(self, out: &mut Vec<u8>, number: u64, size: usize) {
        match self {
            Order::Little => out.extend(&number.to_le_bytes()[..size]),
            Order::Big => out.extend(&number.to_be_bytes()[8 - size..]),
        }
    }

    fn word(self, out: &mut Vec<u8>, type_len: u64, delta: u64) {
        let word = if self == Order::Little { type_len | delta << 5 } else { type_len << 27 | delta };
        self.put(out, word, 4);
    }
}

/// Address of the function in the pages.
pub const FUNC: u64 = 0xffff_ffff_8100_0000;

/// Returns a page of `size` bytes with a commit word of 4 bytes: 42 lost events, an entry, an extended and an absolute
/// time stamp, a discarded event, an exit with an explicit length (calltime 1000, rettime 1500), padding.
pub fn page(order: Order, size: usize) -> Vec<u8> {
    let record = |id: u64, flags: u64| {
        let mut out = Vec::new();
        for (n, size) in [(id, 2), (flags, 1), (0, 1), (7, 4), (FUNC, 8), (0, 4)] {
            order.put(&mut out, n, size);
        }
        out
    };
    let (entry, mut exit) = (record(11, 0), record(10, 8));
    for (n, size) in [(0, 4), (1000, 8), (1500, 8)] {
        order.put(&mut exit, n, size);
    }
    let mut data = Vec::new();
    order.word(&mut data, entry.len() as u64 / 4, 5);
    data.extend(&entry);
    order.word(&mut data, 30, 3);
    order.put(&mut data, 1, 4);
    order.word(&mut data, 31, 9);
    order.put(&mut data, 2, 4);
    order.word(&mut data, 29, 1);
    order.put(&mut data, 12, 4);
    data.extend([0xaa; 8]);
    order.word(&mut data, 0, 7);
    order.put(&mut data, 4 + exit.len() as u64, 4);
    data.extend(&exit);
    order.word(&mut data, 29, 0);
    order.put(&mut data, 0, 4);
    let mut page = Vec::new();
    order.put(&mut page, 1000, 8);
    order.put(&mut page, data.len() as u64 | 3 << 30, 4);
    page.extend(&data);
    order.put(&mut page, 42, 4);
    page.resize(size, 0);
    page
}

fn texts(formats: &str) -> Vec<String> {
    formats.split("name: ").skip(1).map(|text| format!("name: {text}")).collect()
}

fn sized(order: Order, out: &mut Vec<u8>, size: usize, bytes: &[u8]) {
    order.put(out, bytes.len() as u64, size);
    out.extend(bytes);
}

fn header_info(order: Order, out: &mut Vec<u8>) {
    let header = "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\tfield: local_t commit;\toffset:8;\tsize:4;\tsigned:1;\n\tfield: char data;\toffset:12;\tsize:500;\tsigned:1;\n";
    out.extend(b"header_page\0");
    sized(order, out, 8, header.as_bytes());
    out.extend(b"header_event\0");
    sized(order, out, 8, b"# compressed entry header\n");
}

fn ftrace_formats(order: Order, out: &mut Vec<u8>) {
    let all = texts(FORMATS);
    order.put(out, 2, 4);
    all[..2].iter().for_each(|text| sized(order, out, 8, text.as_bytes()));
}

fn event_formats(order: Order, out: &mut Vec<u8>) {
    order.put(out, 1, 4);
    out.extend(b"sched\0");
    order.put(out, 1, 4);
    sized(order, out, 8, texts(FORMATS)[2].as_bytes());
}

const KALLSYMS: &[u8] = b"ffffffff81000000 T start_here\nffffffff81001000 T and_on\n";

fn begin(order: Order, version: &str) -> Vec<u8> {
    let mut out = b"\x17\x08\x44tracing".to_vec();
    out.extend(version.as_bytes());
    out.extend([0, u8::from(order == Order::Big), 8]);
    order.put(&mut out, 512, 4);
    out
}

/// Returns a file of version 6, with one CPU and an instance `more` that has the same page.
pub fn v6(order: Order) -> Vec<u8> {
    let mut out = begin(order, "6");
    header_info(order, &mut out);
    ftrace_formats(order, &mut out);
    event_formats(order, &mut out);
    sized(order, &mut out, 4, KALLSYMS);
    sized(order, &mut out, 4, b"");
    sized(order, &mut out, 8, b"7 worker\n");
    order.put(&mut out, 1, 4);
    out.extend(b"options  \0");
    order.put(&mut out, 3, 2);
    order.put(&mut out, 8 + 5, 4);
    let place = out.len();
    order.put(&mut out, 0, 8);
    out.extend(b"more\0");
    order.put(&mut out, 2, 2);
    sized(order, &mut out, 4, b"CPU: 0\nentries: 2\noverrun: 42\n\0");
    order.put(&mut out, 0, 2);
    let clock = b"[local] global\n\0";
    let table = 10 + 16 + 8 + clock.len();
    let pages = (out.len() + 2 * table) as u64;
    let mut offset = Vec::new();
    order.put(&mut offset, (out.len() + table) as u64, 8);
    out[place..place + 8].copy_from_slice(&offset);
    for _ in 0..2 {
        out.extend(b"flyrecord\0");
        order.put(&mut out, pages, 8);
        order.put(&mut out, 512, 8);
        sized(order, &mut out, 8, clock);
    }
    out.extend(page(order, 512));
    out
}

fn pack(method: &str, bytes: &[u8]) -> Vec<u8> {
    match method {
        "zlib" => {
            let mut out = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
            out.write_all(bytes).expect("memory");
            out.finish().expect("memory")
        }
        "zstd" => ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest),
        _ => bytes.to_vec(),
    }
}

/// Returns a file of version 7, compressed by `method` (`none`, `zlib`, `zstd`): a top buffer and an instance `more`,
/// with two pages each.
pub fn v7(order: Order, method: &str) -> Vec<u8> {
    let mut out = begin(order, "7");
    out.extend(method.as_bytes());
    out.extend(b"\x00001\0");
    let first = out.len();
    order.put(&mut out, 0, 8);
    let compressed = method != "none";
    let mut options: Vec<(u16, Vec<u8>)> = Vec::new();
    let section = |out: &mut Vec<u8>, id: u16, data: &[u8]| {
        let at = out.len() as u64;
        order.put(out, id.into(), 2);
        order.put(out, compressed.into(), 2);
        order.put(out, 0, 4);
        let mut body = Vec::new();
        if compressed {
            let packed = pack(method, data);
            order.put(&mut body, packed.len() as u64, 4);
            order.put(&mut body, data.len() as u64, 4);
            body.extend(packed);
        } else {
            body.extend(data);
        }
        sized(order, out, 8, &body);
        let mut offset = Vec::new();
        order.put(&mut offset, at, 8);
        offset
    };
    let part = |make: &dyn Fn(&mut Vec<u8>)| {
        let mut data = Vec::new();
        make(&mut data);
        data
    };
    for (id, data) in [
        (16, part(&|d| header_info(order, d))),
        (17, part(&|d| ftrace_formats(order, d))),
        (18, part(&|d| event_formats(order, d))),
        (19, part(&|d| sized(order, d, 4, KALLSYMS))),
        (21, part(&|d| sized(order, d, 8, b"7 worker\n"))),
    ] {
        let offset = section(&mut out, id, &data);
        options.push((id, offset));
    }
    for name in ["", "more"] {
        let at = out.len() as u64;
        let mut pages = Vec::new();
        let both = [page(order, 512), page(order, 512)];
        if compressed {
            order.put(&mut pages, 2, 4);
            for page in &both {
                let packed = pack(method, page);
                order.put(&mut pages, packed.len() as u64, 4);
                order.put(&mut pages, 512, 4);
                pages.extend(packed);
            }
        } else {
            both.iter().for_each(|page| pages.extend(page));
        }
        order.put(&mut out, 3, 2);
        order.put(&mut out, compressed.into(), 2);
        order.put(&mut out, 0, 4);
        order.put(&mut out, pages.len() as u64, 8);
        let begin = out.len() as u64;
        let size = pages.len() as u64;
        out.extend(pages);
        let mut option = Vec::new();
        order.put(&mut option, at, 8);
        option.extend(name.as_bytes());
        option.extend(b"\0x86-tsc\0");
        for (n, size) in [(512, 4), (1, 4), (3, 4), (begin, 8), (size, 8)] {
            order.put(&mut option, n, size);
        }
        options.push((3, option));
    }
    let mut tsc = Vec::new();
    for (n, size) in [(3 << 10, 4), (10, 4), (100, 8)] {
        order.put(&mut tsc, n, size);
    }
    options.push((14, tsc));
    options.push((5, b"Linux host 6.12.0 x86_64\0".to_vec()));
    let mut data = Vec::new();
    for (id, option) in &options {
        order.put(&mut data, (*id).into(), 2);
        sized(order, &mut data, 4, option);
    }
    order.put(&mut data, 0, 2);
    order.put(&mut data, 8, 4);
    order.put(&mut data, 0, 8);
    let offset = section(&mut out, 0, &data);
    out[first..first + 8].copy_from_slice(&offset);
    out
}
