// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tracing of the boot itself: builds the kernel command line that switches it on, and afterwards copies the trace into
//! a run.
//!
//! The input is a [`Plan`] before the boot and the top-level ring buffer of tracefs after it. The output is a
//! [`Collected`] and the files below `streams/ftrace/` of the run. The kernel traces from its command line because no
//! process can switch tracing on early enough.

use std::fs;
use std::path::Path;
use std::time::Duration;

use kprism_manifest::{Instrument, Manifest, OptionKey};
use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Error, Result};
use crate::signals::Bell;
use crate::stats::CpuStats;
use crate::stream::Streams;
use crate::tracefs::{self, Tracefs};
use crate::{STREAMS, describe};

/// The settings of a boot trace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Also records every call of at least this duration. If `None`, only initcalls are recorded.
    pub longer_than: Option<Duration>,
    /// Ring buffer size of each CPU, in MiB. If `None`, the plan's default is used.
    pub buffer_mib: Option<u64>,
}

impl Plan {
    /// The parameters to add to the kernel's command line.
    pub fn command_line(&self) -> String {
        // initcall_debug prints the module of each initcall while the module's init memory is still in place. The log
        // buffer must hold all of this output, and `quiet` keeps a console from slowing the boot down.
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

/// The result of collecting a boot trace. It is also stored in the run as `streams/ftrace/boot.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Collected {
    /// The kernel's command line of that boot.
    pub command_line: String,
    /// The kernel's event counts, by CPU number.
    pub cpus: Vec<(u32, CpuStats)>,
    /// Total size of all streams, in bytes.
    pub bytes: u64,
}

impl Collected {
    /// Number of events collected, on all CPUs.
    pub fn events(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.read).sum()
    }

    /// Number of events lost, on all CPUs.
    pub fn lost(&self) -> u64 {
        self.cpus.iter().map(|(_, stats)| stats.lost()).sum()
    }

    /// Enters into the run's manifest what was collected.
    pub fn enter(&self, manifest: &mut Manifest) {
        manifest.vcpus = u32::try_from(self.cpus.len()).unwrap_or(u32::MAX);
        manifest.clock.name = "ftrace local".into();
        manifest.instruments = vec![Instrument::Boot, Instrument::Durations];
        manifest.set(OptionKey::Record, "boot");
        manifest.set(OptionKey::KernelCommandLine, self.command_line.clone());
        manifest.durations.events = Some(self.events());
        manifest.durations.lost_events = Some(self.lost());
    }

    /// Reads the result back from the run at `folder`. Fails if `boot.json` is missing or malformed.
    pub fn load(folder: &Path) -> Result<Self> {
        let path = folder.join(STREAMS).join("boot.json");
        let text = fs::read(&path).at("read", &path)?;
        serde_json::from_slice(&text).map_err(std::io::Error::other).at("read", &path)
    }
}

/// True if this boot's command line contains `ftrace=` or `trace_event=`.
pub fn was_traced() -> bool {
    let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
    line.split_whitespace().any(|word| word.starts_with("ftrace=") || word.starts_with("trace_event="))
}

/// This boot's command line.
fn command_line() -> String {
    fs::read_to_string("/proc/cmdline").unwrap_or_default().trim().to_owned()
}

/// Checks that there is a boot's trace to collect, without changing anything.
///
/// # Errors
/// There is no tracefs, or the machine was not booted with tracing.
pub fn ready() -> Result<Tracefs> {
    let tracefs = Tracefs::find()?;
    if !was_traced() {
        return Err(Error::Setting(format!(
            "this machine was not booted with tracing, with the words that `kprism record boot --words` prints: its command \
             line is {:?}",
            command_line()
        )));
    }
    Ok(tracefs)
}

/// Copies the boot's trace from the top-level buffer into the run at `folder`, then ends the boot's tracing. With
/// `symbols`, the kernel's symbol tables are copied too. Fails if the machine was not booted with tracing.
pub fn collect(folder: &Path, symbols: bool) -> Result<Collected> {
    let tracefs = ready()?;
    let command_line = command_line();
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
        describe::Symbols::read()?.save(&folder.join("symbols"))?;
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

/// Disables the tracer and the events that the command line enabled.
fn end(tracefs: &Tracefs, events: &[String]) -> Result<()> {
    tracefs::write(&tracefs.path("current_tracer"), &["nop"])?;
    tracefs::write(&tracefs.path("tracing_thresh"), &["0"])?;
    for event in events {
        tracefs::write(&tracefs.path(&format!("events/{event}/enable")), &["0"])?;
    }
    tracefs::write(&tracefs.path("tracing_on"), &["1"])
}

/// The enabled events, as `SYSTEM/NAME`.
fn enabled(tracefs: &Tracefs) -> Result<Vec<String>> {
    let text = tracefs.read("set_event")?;
    Ok(text.lines().filter_map(|line| line.split_once(':')).map(|(s, n)| format!("{s}/{n}")).collect())
}

/// The kernel's log, in the format of syslog(2): `<level>[seconds.microseconds] text`.
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
        // The kernel adds levels and times to the text, so the output is larger than its buffer.
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
