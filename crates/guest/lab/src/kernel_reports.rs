// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a kernel's reports on faults in the text of its console: BUG, Oops, WARN, sanitizers, hangs, panic, processes that it
//! ended for lack of memory, and failures of storage.
//!
//! Input: the bytes of a console. Output: [`KernelReports`]. The formats are those of Linux 5.10 to 6.12 on x86 (kernel/panic.c,
//! arch/x86/kernel/dumpstack.c, arch/x86/mm/fault.c, mm/kasan/report.c, kernel/hung_task.c, kernel/watchdog.c, mm/oom_kill.c,
//! block/blk-mq.c, fs/buffer.c, fs/ext4/super.c, fs/jbd2/journal.c). Any bytes give a value; work and memory are bounded by the
//! text's length and by [`MOST_REPORTS`].

use std::path::Path;

/// Maximum number of reports that are kept. A kernel that warns in a loop fills its console.
pub const MOST_REPORTS: usize = 16;

/// Maximum number of functions that are kept of a call trace.
const MOST_FRAMES: usize = 6;

/// Maximum length of a line that is kept, in characters.
const MOST_CHARACTERS: usize = 240;

/// Kind of a kernel's report on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReportKind {
    /// An assertion failed (`BUG()`), or the kernel found its state damaged.
    Bug,
    /// The kernel accessed what it must not, or executed an instruction that it must not.
    Oops,
    /// A `WARN()`, or a rule on locks was broken (lockdep).
    Warning,
    /// A report of KASAN, KCSAN, KFENCE, KMSAN or UBSAN.
    Sanitizer,
    /// A task, a CPU or RCU made no progress for long.
    Hang,
    /// The kernel stopped itself.
    Panic,
    /// The kernel ended a process because memory was used up.
    OutOfMemory,
    /// A request to storage failed, or a file system found that it is damaged.
    Storage,
}

/// One report of a kernel on itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelReport {
    /// Its kind.
    pub kind: ReportKind,
    /// Its first line, without the time.
    pub headline: String,
    /// The instruction that was executed, as function and offset (its line `RIP:`); `None` if the report has none.
    pub place: Option<String>,
    /// The first functions of its call trace, the innermost first. Empty if the report has none.
    pub trace: Vec<String>,
}

impl KernelReport {
    /// The report in one line.
    pub fn to_line(&self) -> String {
        let mut line = self.headline.clone();
        if let Some(place) = self.place.as_ref().filter(|place| !self.headline.contains(place.as_str())) {
            line += &format!(", at {place}");
        }
        if !self.trace.is_empty() {
            line += &format!("; call trace: {}", self.trace.join(" < "));
        }
        line
    }
}

/// The reports in a console's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelReports {
    /// The first [`MOST_REPORTS`], in the order of the text.
    pub reports: Vec<KernelReport>,
    /// Number of reports after those.
    pub more: usize,
    /// Reason why the console could not be read, if so: then nothing is known of reports.
    pub unread: Option<String>,
}

impl KernelReports {
    /// Finds the reports in the text of a console.
    pub fn find(console: &[u8]) -> Self {
        let mut reader = Reader::default();
        console.split(|&byte| byte == b'\n').for_each(|line| reader.read(&without_time(line)));
        reader.close();
        reader.done
    }

    /// Finds the reports in the console that was written to this file.
    pub fn of_file(console: &Path) -> Self {
        match std::fs::read(console) {
            Ok(bytes) => Self::find(&bytes),
            Err(error) => {
                let unread = Some(format!("{}: {error}", console.display()));
                Self { unread, ..Self::default() }
            }
        }
    }

    /// Sentences for the notes of a run: one for each report, and one if there were more.
    pub fn notes(&self) -> Vec<String> {
        let one = |report: &KernelReport| format!("the guest's kernel reported: {}", report.to_line());
        let mut notes: Vec<String> = self.reports.iter().map(one).collect();
        if self.more > 0 {
            notes.push(format!("the guest's kernel reported {} more: see the run's console.log", self.more));
        }
        if let Some(why) = &self.unread {
            notes.push(format!("whether the guest's kernel reported a fault is not known: {why}"));
        }
        notes
    }
}

/// The state between two lines.
#[derive(Debug, Default)]
struct Reader {
    done: KernelReports,
    open: Option<KernelReport>,
    in_trace: bool,
}

impl Reader {
    fn read(&mut self, line: &str) {
        if let Some(kind) = kind(line) {
            // An Oops has two headlines: the cause, then the exception with its number.
            let continues = is_exception(line)
                && self.open.as_ref().is_some_and(|open| {
                    matches!(open.kind, ReportKind::Bug | ReportKind::Oops) && open.place.is_none()
                });
            if !continues {
                self.close();
                self.open =
                    Some(KernelReport { kind, headline: line.to_owned(), place: None, trace: Vec::new() });
            }
            return;
        }
        let Some(open) = &mut self.open else { return };
        if line.starts_with("---[ end ") || line.starts_with("------------[ cut here") {
            self.close();
        } else if let Some(place) = line.strip_prefix("RIP: 0010:") {
            open.place.get_or_insert_with(|| place.to_owned());
        } else if line.starts_with("Call Trace:") {
            // The traces that follow, as of KASAN, tell who allocated and freed.
            self.in_trace = open.trace.is_empty();
        } else if self.in_trace && line.starts_with(' ') {
            let frame = line.trim();
            let is_reliable = frame.contains("+0x") && !frame.starts_with('?');
            if is_reliable && open.trace.len() < MOST_FRAMES && !(open.trace.is_empty() && is_reporter(frame))
            {
                open.trace.push(frame.to_owned());
            }
        } else {
            self.in_trace = false;
        }
    }

    fn close(&mut self) {
        self.in_trace = false;
        let Some(report) = self.open.take() else { return };
        if self.done.reports.len() < MOST_REPORTS {
            self.done.reports.push(report);
        } else {
            self.done.more += 1;
        }
    }
}

/// The kind of the report that begins with this line.
fn kind(line: &str) -> Option<ReportKind> {
    const SANITIZERS: [&str; 5] = ["BUG: KASAN:", "BUG: KCSAN:", "BUG: KFENCE:", "BUG: KMSAN:", "UBSAN:"];
    const FAULTS: [&str; 3] =
        ["BUG: kernel NULL pointer dereference", "BUG: unable to handle", "BUG: stack guard page was hit"];
    const LOCKUPS: [&str; 3] = ["BUG: soft lockup", "Watchdog detected hard LOCKUP", "BUG: workqueue lockup"];
    let starts = |words: &[&str]| words.iter().any(|word| line.starts_with(word));
    let is_hung_task = line.starts_with("INFO: task ") && line.contains(" blocked for more than ");
    let is_stall = line.starts_with("rcu: INFO:") && line.contains(" stall");
    let lockup = line.strip_prefix("NMI ").unwrap_or(line);
    let lockup = lockup.strip_prefix("watchdog: ").unwrap_or(lockup);
    if line.starts_with("Kernel panic - not syncing") {
        Some(ReportKind::Panic)
    } else if starts(&SANITIZERS) {
        Some(ReportKind::Sanitizer)
    } else if is_hung_task || is_stall || LOCKUPS.iter().any(|word| lockup.starts_with(word)) {
        Some(ReportKind::Hang)
    } else if starts(&FAULTS) || is_exception(line) {
        Some(ReportKind::Oops)
    } else if starts(&["kernel BUG at ", "BUG: "]) || (line.starts_with("BUG ") && line.contains("ainted")) {
        Some(ReportKind::Bug)
    } else if is_warning(line) {
        Some(ReportKind::Warning)
    } else if starts(&["Out of memory", "Memory cgroup out of memory"]) && line.contains(" process ") {
        Some(ReportKind::OutOfMemory)
    } else if is_storage_failure(line) {
        Some(ReportKind::Storage)
    } else {
        None
    }
}

/// Returns true for a line of `die()`: `Oops: 0002 [#1] SMP`, `general protection fault: 0000 [#1] PREEMPT SMP`.
fn is_exception(line: &str) -> bool {
    let Some((before, after)) = line.split_once(" [#") else { return false };
    let number = before.rsplit(' ').next().unwrap_or_default();
    before.contains(": ")
        && number.len() == 4
        && number.bytes().all(|byte| byte.is_ascii_hexdigit())
        && after.starts_with(|first: char| first.is_ascii_digit())
}

/// Returns true for the first line of a `WARN()` or of lockdep, and false for other messages that begin with this word.
fn is_warning(line: &str) -> bool {
    const LOCKS: [&str; 6] = [
        "possible ",
        "suspicious RCU usage",
        "inconsistent lock state",
        "bad unlock balance",
        "held lock freed",
        "lock held when returning to user space",
    ];
    line.strip_prefix("WARNING: ").is_some_and(|rest| {
        rest.starts_with("CPU: ") || rest.contains("+0x") || LOCKS.iter().any(|words| rest.starts_with(words))
    })
}

/// Returns true for a line of the block layer on a request that failed, or of a file system on damage. The block layer names
/// the status (`I/O error, dev sda, sector 8`, `critical medium error, dev …`), kernels before 5.15 behind their function.
fn is_storage_failure(line: &str) -> bool {
    const STARTS: [&str; 5] = [
        "Buffer I/O error on dev",
        "Aborting journal on device ",
        "EXT4-fs error (",
        "BTRFS error (",
        "BTRFS critical (",
    ];
    const OF_XFS: [&str; 3] = ["orruption", "I/O Error", "I/O error"];
    // A device that lacks an operation has another one in its place.
    let of_request = line.contains(" error, dev ")
        && line.contains(", sector ")
        && !line.contains("operation not supported error");
    let of_xfs = line.starts_with("XFS (") && OF_XFS.iter().any(|words| line.contains(words));
    of_request || of_xfs || STARTS.iter().any(|start| line.starts_with(start))
}

/// Returns true for functions at the head of a trace that write the report, and are not its cause.
fn is_reporter(frame: &str) -> bool {
    const REPORTERS: [&str; 9] = [
        "dump_stack",
        "__dump_stack",
        "show_stack",
        "print_",
        "kasan_",
        "__kasan_",
        "__asan_",
        "ubsan_",
        "__ubsan_",
    ];
    REPORTERS.iter().any(|start| frame.starts_with(start))
}

/// A line's text without the time (and the caller, `[  T12]`) that printk may put before it. It commands no terminal: control
/// characters are replaced.
fn without_time(line: &[u8]) -> String {
    // Four bytes are the longest character; the time takes some more.
    let line = &line[..line.len().min(MOST_CHARACTERS * 4 + 64)];
    let text = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
    let mut rest: &str = &text;
    let is_time = |byte: u8| byte.is_ascii_digit() || byte == b' ' || byte == b'.';
    let is_caller = |byte: u8| byte.is_ascii_digit() || byte == b' ' || byte == b'T' || byte == b'C';
    let mut has_time = false;
    if let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && !inside.is_empty()
        && inside.bytes().all(is_time)
    {
        (rest, has_time) = (after, true);
    }
    if has_time
        && let Some((inside, after)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']'))
        && inside.bytes().all(is_caller)
    {
        rest = after;
    }
    if has_time {
        rest = rest.strip_prefix(' ').unwrap_or(rest);
    }
    let plain = |c: char| if c.is_control() { '?' } else { c };
    rest.trim_end().chars().take(MOST_CHARACTERS).map(plain).collect()
}

#[cfg(test)]
mod tests;
