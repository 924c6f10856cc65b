// SPDX-License-Identifier: GPL-2.0-or-later
//! What the program mapped: its own file, as QEMU has loaded it when the first code is translated, and what its system
//! calls returned (mmap, brk, mremap). Lines of sideband come out.

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

/// See the module.
pub struct Maps {
    /// Not yet told.
    all: Vec<Map>,
    seen: bool,
    /// Where brk was last.
    brk: u64,
}

impl Maps {
    pub fn new() -> Self {
        Maps { all: Vec::new(), seen: false, brk: 0 }
    }

    /// Code is translated: the program is loaded. Programs and their loader lie where they say, as long as this process
    /// has room there; QEMU's own files are told apart by their name.
    pub fn see_program(&mut self) {
        if std::mem::replace(&mut self.seen, true) {
            return;
        }
        let own = std::env::current_exe().unwrap_or_default();
        let text = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(range), Some(permissions), Some(offset)) = (words.next(), words.next(), words.next())
            else {
                continue;
            };
            let Some(path) = words.nth(2).filter(|p| p.starts_with('/')) else { continue };
            // QEMU's own libraries, and this; the program's are mapped later, by its loader's system calls.
            if *path == *own.to_string_lossy() || path.contains(".so") || path.contains("/locale") {
                continue;
            }
            let hex = |text: &str| u64::from_str_radix(text, 16).ok();
            let Some((start, end)) = range.split_once('-').and_then(|(s, e)| Some((hex(s)?, hex(e)?))) else {
                continue;
            };
            // QEMU maps a program's code for reading alone, and translates it.
            let (offset, exec) = (hex(offset).unwrap_or(0), permissions.starts_with("r-"));
            self.all.push(Map { time: 0, start, end, offset, exec, path: path.to_owned() });
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

    /// What is new, as lines of sideband of this process.
    pub fn take_lines(&mut self, process: u32) -> String {
        let line = |m: Map| {
            let value = json!({"k": "mmap", "t": m.time, "cpu": 0, "pid": process, "tgid": process, "asid": 0,
                "start": m.start, "end": m.end, "pgoff": m.offset, "exec": m.exec, "path": m.path});
            format!("{value}\n")
        };
        self.all.drain(..).map(line).collect()
    }
}
