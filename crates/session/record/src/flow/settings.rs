// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a recording of the flow is asked to do. Plain data.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of a recording.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write; perf's own file stands beside it.
    pub output: PathBuf,
    /// The command to record; empty for none.
    pub command: Vec<String>,
    /// Everything that runs is recorded, on all CPUs.
    pub all_cpus: bool,
    /// The process to record, with its threads.
    pub pid: Option<u32>,
    /// The recording ends after this time.
    pub duration: Option<Duration>,
    /// perf's file is kept.
    pub keep_perf_data: bool,
    /// Rings whose code is traced.
    pub rings: Rings,
    /// Only these functions are traced; all if empty.
    pub filter: Vec<Filter>,
    /// Only the last bytes of each CPU are kept: so many, or as many as perf takes.
    pub snapshot: Option<Option<u64>>,
    /// A snapshot is taken each time that this probe's condition holds; needs [`Settings::snapshot`].
    pub snapshot_when: Option<String>,
    /// Cycle counts between packets; at most each 2^(N-1) cycles if N is given.
    pub cyc: Option<Option<u8>>,
    /// A time packet each 2^N ticks of the crystal clock.
    pub mtc_period: Option<u8>,
    /// A synchronisation point each 2^(N+11) bytes.
    pub psb_period: Option<u8>,
    /// perf's buffer for packets of each CPU, in bytes.
    pub buffer: Option<u64>,
}

/// Rings whose code is traced.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rings {
    /// The kernel's and programs'.
    #[default]
    Both,
    /// The kernel's.
    Kernel,
    /// Programs'.
    User,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            output: kprism_session::DEFAULT_RUN.into(),
            command: Vec::new(),
            all_cpus: false,
            pid: None,
            duration: None,
            keep_perf_data: false,
            rings: Rings::Both,
            filter: Vec::new(),
            snapshot: None,
            snapshot_when: None,
            cyc: None,
            mtc_period: None,
            psb_period: None,
            buffer: None,
        }
    }
}

impl Settings {
    /// True if kernel code is traced.
    pub fn in_kernel(&self) -> bool {
        self.rings != Rings::User
    }
}

/// A function to which tracing is limited.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// Its name in the symbol table.
    pub function: String,
    /// The program that it is in; none for the kernel.
    pub file: Option<PathBuf>,
}

impl Filter {
    /// Parses `FUNC[@FILE]`. perf parses the words again, so those that would mean something else to it are refused.
    ///
    /// # Errors
    /// The expected form, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (function, file) = match text.split_once('@') {
            Some((function, file)) => (function, Some(file)),
            None => (text, None),
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "_.$".contains(c);
        if function.is_empty() || !function.chars().all(plain) {
            return Err(
                "expected FUNC or FUNC@FILE, with a function's name as in the symbol table".to_owned()
            );
        }
        if file.is_some_and(|f| f.is_empty() || f.contains(|c: char| c.is_whitespace() || c == ',')) {
            return Err("expected a file after @, without spaces or commas in its name".to_owned());
        }
        // The kernel is told a path, and it need not look from the same folder.
        let absolute = |f: &str| std::path::absolute(f).unwrap_or_else(|_| f.into());
        Ok(Self { function: function.to_owned(), file: file.map(absolute) })
    }

    /// The filter in perf's words.
    pub(super) fn text(&self) -> String {
        match &self.file {
            None => format!("filter {}", self.function),
            Some(file) => format!("filter {} @ {}", self.function, file.display()),
        }
    }
}
