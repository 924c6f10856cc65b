// SPDX-License-Identifier: GPL-2.0-or-later
//! The program's mappings: its own file as QEMU has loaded it when the first code is translated, and the results of its
//! system calls (mmap, brk, mremap). Output: lines of sideband.

use std::io::Read as _;

use serde_json::json;

const MMAP: u64 = 9;
const BRK: u64 = 12;
const MREMAP: u64 = 25;
const ANONYMOUS: u64 = 0x20;
const EXEC: u64 = 4;
struct Map {
    time: u64,
    start: u64,
    end: u64,
    offset: u64,
    exec: bool,
    path: String,
}

/// The mappings of the program.
pub struct Maps {
    /// Mappings not written yet.
    all: Vec<Map>,
    seen: bool,
    /// Last value of brk.
    brk: u64,
}

impl Maps {
    pub fn new() -> Self {
        Maps { all: Vec::new(), seen: false, brk: 0 }
    }

    /// Code is translated, so the program and its loader are mapped. QEMU maps their code without the right to execute it,
    /// wherever it places them; its own program and libraries are executable.
    pub fn see_program(&mut self) {
        if std::mem::replace(&mut self.seen, true) {
            return;
        }
        let text = std::fs::read("/proc/self/maps").unwrap_or_default();
        let loaded = loads(text.split(|&byte| byte == b'\n').filter_map(mapped_file));
        let of_program = loaded.into_iter().filter(|load| !load.runs_here && may_be_elf(&load.maps[0].path));
        self.all.extend(of_program.flat_map(|load| load.maps));
    }

    /// A system call returned, at `time`.
    pub fn returned(&mut self, call: &[u64; 7], result: i64, time: u64) {
        let failed = (-4095..0).contains(&result);
        let start = result as u64;
        let (end, offset, exec, path) = match call[0] {
            _ if failed => return,
            MMAP => {
                let file = (call[4] & ANONYMOUS == 0)
                    .then(|| std::fs::read_link(format!("/proc/self/fd/{}", call[5] as i32)).ok())
                    .flatten();
                let path = file.map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
                (start.saturating_add(call[2]), call[6], call[3] & EXEC != 0, path)
            }
            MREMAP => (start.saturating_add(call[3]), 0, false, String::new()),
            BRK => {
                let before = std::mem::replace(&mut self.brk, start);
                if before != 0 && start > before {
                    self.all.push(Map {
                        time,
                        start: before,
                        end: start,
                        offset: 0,
                        exec: false,
                        path: "[heap]".into(),
                    });
                }
                return;
            }
            _ => return,
        };
        self.all.push(Map { time, start, end: (end + 0xfff) & !0xfff, offset, exec, path });
    }

    /// The new mappings as lines of this process's sideband.
    pub fn take_lines(&mut self, process: u32) -> String {
        let line = |m: Map| {
            let value = json!({"k": "mmap", "t": m.time, "cpu": 0, "pid": process, "tgid": process, "asid": 0,
                "start": m.start, "end": m.end, "pgoff": m.offset, "exec": m.exec, "path": m.path});
            format!("{value}\n")
        };
        self.all.drain(..).map(line).collect()
    }
}

/// A file as it was loaded once: a program, a library or data.
struct Load {
    maps: Vec<Map>,
    /// A part of it is executable for this process.
    runs_here: bool,
}

/// Puts the mappings of each load together: those of one file from one offset 0 to the next.
fn loads(maps: impl Iterator<Item = (Map, bool)>) -> Vec<Load> {
    let mut loads: Vec<Load> = Vec::new();
    for (map, runs_here) in maps {
        let begun = loads.iter_mut().rev().find(|load| map.offset != 0 && load.maps[0].path == map.path);
        match begun {
            Some(load) => {
                load.runs_here |= runs_here;
                load.maps.push(map);
            }
            None => loads.push(Load { maps: vec![map], runs_here }),
        }
    }
    loads
}

/// False if the file can be read and is no ELF file: QEMU maps data too.
fn may_be_elf(path: &str) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_err() || magic == *b"\x7fELF"
}

/// Parses a line of /proc/self/maps that names a file: range, permissions, offset, device, inode, and the path, which
/// may contain spaces. Also returns whether this process may execute it.
fn mapped_file(line: &[u8]) -> Option<(Map, bool)> {
    let line = String::from_utf8_lossy(line);
    let mut rest = &*line;
    let mut word = || {
        let (word, behind) = rest.split_once(' ')?;
        rest = behind.trim_start_matches(' ');
        Some(word)
    };
    let (range, permissions, offset) = (word()?, word()?, word()?);
    word()?;
    word()?;
    let path = rest.strip_suffix(" (deleted)").unwrap_or(rest);
    let hex = |text: &str| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-').and_then(|(s, e)| Some((hex(s)?, hex(e)?)))?;
    // QEMU maps a program's code read-only, and translates it.
    let (offset, exec) = (hex(offset)?, permissions.starts_with("r-"));
    let map = Map { time: 0, start, end, offset, exec, path: path.to_owned() };
    path.starts_with('/').then_some((map, permissions.contains('x')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_all_behind_the_inode() {
        let line =
            b"00400000-00401000 r--p 00001000 fe:00 1234                       /tmp/my solver.so/a program";
        let (map, runs_here) = mapped_file(line).expect("a file");
        assert!(!runs_here);
        assert_eq!((map.start, map.end, map.offset, map.exec), (0x40_0000, 0x40_1000, 0x1000, true));
        assert_eq!(map.path, "/tmp/my solver.so/a program");
        let (deleted, runs_here) = mapped_file(b"1000-2000 r-xp 0 00:00 7 /a (deleted)").expect("a file");
        assert!(runs_here);
        assert_eq!(deleted.path, "/a");
        for line in [
            "7ffe00000000-7ffe00001000 rw-p 00000000 00:00 0                          [stack]",
            "1000-2000 rw-p 0 0:0 0 ",
            "",
            "x",
        ] {
            assert!(mapped_file(line.as_bytes()).is_none(), "{line}");
        }
    }
    /// QEMU 10 maps a program's loader beside its own libraries; the same file is mapped twice then.
    #[test]
    fn loads_are_told_apart_by_what_this_process_may_execute() {
        let lines = "\
555555554000-555555556000 r--p 00000000 fe:00 1 /bin/true
555555556000-55555555a000 r--p 00002000 fe:00 1 /bin/true
7f0000000000-7f0000001000 r--p 00000000 fe:00 2 /lib/ld.so
7f0000001000-7f0000002000 r--p 00001000 fe:00 2 /lib/ld.so
7f0000008000-7f0000009000 r--p 00000000 fe:00 3 /lib/libc.so
7f0000009000-7f000000a000 r-xp 00001000 fe:00 3 /lib/libc.so
7f0000010000-7f0000011000 r--p 00000000 fe:00 2 /lib/ld.so
7f0000011000-7f0000012000 r-xp 00001000 fe:00 2 /lib/ld.so";
        let loads = loads(lines.lines().filter_map(|line| mapped_file(line.as_bytes())));
        let found: Vec<_> =
            loads.iter().map(|l| (l.maps[0].path.as_str(), l.maps.len(), l.runs_here)).collect();
        let expected = [
            ("/bin/true", 2, false),
            ("/lib/ld.so", 2, false),
            ("/lib/libc.so", 2, true),
            ("/lib/ld.so", 2, true),
        ];
        assert_eq!(found, expected);
    }
}
