// SPDX-License-Identifier: GPL-2.0-or-later
//! The program's mappings: its own file as QEMU has loaded it when the first code is translated, and the results of its
//! system calls (mmap, brk, mremap). Output: lines of sideband.

use serde_json::json;

const MMAP: u64 = 9;
const BRK: u64 = 12;
const MREMAP: u64 = 25;
const ANONYMOUS: u64 = 0x20;
const EXEC: u64 = 4;
/// Start of the area in which the kernel places a process's mappings (its mmap_base, 48 bits). QEMU places its
/// program's mappings below.
const OF_QEMU: u64 = 0x7000_0000_0000;

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

    /// Code is translated, so the program and its loader are mapped. They lie at their own addresses as long as this
    /// process has room there. QEMU and its libraries lie where the kernel places them, above.
    pub fn see_program(&mut self) {
        if std::mem::replace(&mut self.seen, true) {
            return;
        }
        let own = std::env::current_exe().unwrap_or_default();
        let text = std::fs::read("/proc/self/maps").unwrap_or_default();
        for map in text.split(|&byte| byte == b'\n').filter_map(mapped_file) {
            if map.path != own.to_string_lossy() && map.start < OF_QEMU {
                self.all.push(map);
            }
        }
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

/// Parses a line of /proc/self/maps that names a file: range, permissions, offset, device, inode, and the path, which
/// may contain spaces.
fn mapped_file(line: &[u8]) -> Option<Map> {
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
    path.starts_with('/').then(|| Map { time: 0, start, end, offset, exec, path: path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_all_behind_the_inode() {
        let line =
            b"00400000-00401000 r--p 00001000 fe:00 1234                       /tmp/my solver.so/a program";
        let map = mapped_file(line).expect("a file");
        assert_eq!((map.start, map.end, map.offset, map.exec), (0x40_0000, 0x40_1000, 0x1000, true));
        assert_eq!(map.path, "/tmp/my solver.so/a program");
        let deleted = mapped_file(b"1000-2000 r-xp 0 00:00 7 /a (deleted)").expect("a file");
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
}
