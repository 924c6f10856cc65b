// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a boot with tracing on its command line left: the words for that command line, and collecting it.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Error, Result};
use crate::signals::Bell;
use crate::stats::CpuStats;
use crate::stream::Streams;
use crate::tracefs::{self, Tracefs};
use crate::{STREAMS, describe};

/// What is recorded of a boot.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Every call of at least this long too; without, initcalls only.
    pub longer_than: Option<Duration>,
    /// Ring buffer of each CPU, MiB; chosen for the plan if none.
    pub buffer_mib: Option<u64>,
}

impl Plan {
    /// Words for the kernel's command line.
    pub fn command_line(&self) -> String {
        // initcall_debug says which module an initcall is of, while its memory is not yet used again; the log must hold
        // all of it, and must not be slowed down by a console.
        let mut words = "trace_event=initcall:* initcall_debug log_buf_len=8M quiet".to_owned();
        let mut mib = 4;
        if let Some(time) = self.longer_than {
            mib = 16;
            words.push_str(&format!(" ftrace=function_graph tracing_thresh={}", time.as_micros().max(1)));
        }
        words.push_str(&format!(" trace_buf_size={}M", self.buffer_mib.unwrap_or(mib)));
        words
    }
}

/// What was collected; also in the run, as `streams/ftrace/boot.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collected {
    /// The kernel's command line.
    pub command_line: String,
    /// The kernel's counts of each CPU.
    pub cpus: Vec<(u32, CpuStats)>,
    /// Bytes of all streams.
    pub bytes: u64,
}

impl Collected {
    /// Events collected.
    pub fn events(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.read).sum()
    }

    /// Events lost.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.lost()).sum()
    }

    /// What the run at `folder` says of itself.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(STREAMS).join("boot.json");
        let text = fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text).map_err(std::io::Error::other).at("read", &path)
    }
}

/// Whether this machine was booted with such words.
pub fn was_traced() -> bool {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    line.split_whitespace().any(|word| word.starts_with("ftrace=") || word.starts_with("trace_event="))
}

/// Takes what the boot left out of the buffer at the top, into the run at `folder`, and ends its tracing.
pub fn collect(folder: &Path, symbols: bool) -> Result<Collected> {
    let tracefs = Tracefs::find()?;
    let command_line = fs::read_to_string("/proc/cmdline").unwrap_or_default().trim().to_owned();
    if !was_traced() {
        return Err(Error::Setting(format!(
            "this machine was not booted with tracing: its command line is {command_line:?}"
        )));
    }
    let cpus = tracefs.cpus()?;
    let output = folder.join(STREAMS);
    fs::create_dir_all(&output).at("create", &output)?;
    tracefs::write(&tracefs.path("tracing_on"), &["0"])?;
    let events = enabled(&tracefs)?;
    describe::formats(&tracefs, &events, &output)?;
    let bell = Bell::new().at("wait for", &output)?;
    let page = tracefs.page_bytes("");
    let streams = Streams::start(tracefs.root(), &cpus, page, &output, &bell)?;
    let (bytes, trouble) = streams.finish();
    let counts = describe::facts(&tracefs, "", &cpus, &output)?;
    let log = output.join("dmesg");
    fs::write(&log, kernel_log()?).at("write", &log)?;
    if symbols {
        describe::symbols(&folder.join("symbols"))?;
    }
    if let Some(error) = trouble {
        return Err(error);
    }
    let collected =
        Collected { command_line, cpus: counts, bytes: bytes.iter().map(|(_, count)| count).sum() };
    let path = output.join("boot.json");
    let text = serde_json::to_vec_pretty(&collected).map_err(std::io::Error::other).at("write", &path)?;
    fs::write(&path, text).at("write", &path)?;
    end(&tracefs, &events)?;
    Ok(collected)
}

/// Switches off what the command line switched on.
fn end(tracefs: &Tracefs, events: &[String]) -> Result<()> {
    tracefs::write(&tracefs.path("current_tracer"), &["nop"])?;
    tracefs::write(&tracefs.path("tracing_thresh"), &["0"])?;
    for event in events {
        tracefs::write(&tracefs.path(&format!("events/{event}/enable")), &["0"])?;
    }
    tracefs::write(&tracefs.path("tracing_on"), &["1"])
}

/// Events that are on, `SYSTEM/NAME`.
fn enabled(tracefs: &Tracefs) -> Result<Vec<String>> {
    let text = tracefs.read("set_event")?;
    Ok(text.lines().filter_map(|line| line.split_once(':')).map(|(s, n)| format!("{s}/{n}")).collect())
}

/// The kernel's log as dmesg prints it: `[seconds.microseconds] text`.
fn kernel_log() -> Result<Vec<u8>> {
    const READ_ALL: libc::c_int = 3;
    const SIZE_BUFFER: libc::c_int = 10;
    let path = Path::new("/dev/kmsg");
    // SAFETY: asks for the size, then reads at most as much into a buffer of that size.
    unsafe {
        let size = libc::klogctl(SIZE_BUFFER, std::ptr::null_mut(), 0);
        let Ok(size) = usize::try_from(size) else {
            return Err(std::io::Error::last_os_error()).at("read the kernel's log as in", path);
        };
        // Times and levels are added to what the buffer holds.
        let mut buffer = vec![0u8; size * 2];
        let length = libc::c_int::try_from(buffer.len()).unwrap_or(libc::c_int::MAX);
        let count = libc::klogctl(READ_ALL, buffer.as_mut_ptr().cast(), length);
        let Ok(count) = usize::try_from(count) else {
            return Err(std::io::Error::last_os_error()).at("read the kernel's log as in", path);
        };
        buffer.truncate(count);
        Ok(buffer)
    }
}
