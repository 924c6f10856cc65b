// SPDX-License-Identifier: MIT OR Apache-2.0
//! gcov's counters of this machine's kernel, before and after a window: which of its code ran.
//!
//! Input: a kernel with gcov, its counters in debugfs, or in its memory (`/proc/kcore`, a crash dump). Output: a run with the
//! counters before and after, and readings from before that, by which what reading adds is taken out. An interrupt ends a
//! window without a command ([`kprism_signals`]).

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kprism_agent::gcov::{FOLDER, Session, write_archive};
use kprism_gcov::Data;
use kprism_gcov::memory::Live;
use kprism_session::Progress;
use kprism_session::core_memory::{CoreMemory, KCORE};
use kprism_session::cover::Unsettled;
use kprism_store::{GcovFiles, Instrument, Manifest, OptionKey, Run};
use serde_json::json;

use crate::this_kernel;

/// Settings of a recording.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The run folder to write.
    pub output: PathBuf,
    /// The command whose window it is; empty for none.
    pub command: Vec<String>,
    /// Without a command: the window ends after this time. `None`: at an interrupt.
    pub duration: Option<Duration>,
    /// All counters are cleared first.
    pub reset: bool,
    /// The kernel's memory to take counters from: `/proc/kcore`, or a crash dump, which has no window. `None`: debugfs.
    pub memory: Option<PathBuf>,
    /// The System.map of the kernel that `memory` is of; of `/proc/kcore` it is known.
    pub symbols: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            output: kprism_session::DEFAULT_RUN.into(),
            command: Vec::new(),
            duration: None,
            reset: false,
            memory: None,
            symbols: None,
        }
    }
}

/// A recording that has ended.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub run: Run,
    /// The command's exit code as a shell tells it: 128 and the signal's number if one ended it. 0 without a command.
    pub exit_code: i32,
}

/// Source of the counters, with those read so far.
enum Source {
    Files(Session),
    Memory(CoreMemory, Vec<Live>),
}

/// Records.
///
/// # Errors
/// The kernel does not count, the command is not there, or the run cannot be written.
pub fn record(settings: &Settings, progress: &Progress) -> Result<Recorded> {
    if let Some(program) = settings.command.first() {
        kprism_tracefs::find_command(program)?;
    }
    let is_dump = settings.memory.as_deref().is_some_and(|path| path != Path::new(KCORE));
    if is_dump && !settings.command.is_empty() {
        bail!("a dump is of one moment: there is no window for a command in it");
    }
    if settings.reset {
        let reset = Path::new(FOLDER).join("reset");
        std::fs::write(&reset, "0").map_err(no_gcov)?;
    }
    // What can fail comes before an older run is moved away.
    let mut source = match &settings.memory {
        Some(path) => Source::Memory(CoreMemory::open(path, settings.symbols.as_deref())?, Vec::new()),
        None => {
            std::fs::read_dir(FOLDER).map_err(no_gcov)?;
            Source::Files(Session::default())
        }
    };
    let run = Run::create(&settings.output)?;
    let mut manifest = manifest(settings);
    run.write_manifest(&manifest)?;
    if settings.command.is_empty() && settings.duration.is_none() && !is_dump {
        progress.say("recording; Ctrl-C ends it");
    }
    if !is_dump {
        source.begin()?;
    }
    let ended = if is_dump { Ok(0) } else { window(settings) };
    source.end()?;
    let exit_code = ended?;
    source.save(&run.gcov())?;
    manifest.instruments = vec![Instrument::Cover];
    if let Some(unsettled) = source.unsettled().filter(|_| !is_dump) {
        manifest.set(Unsettled::OPTION, serde_json::to_value(unsettled)?);
    }
    manifest.exit_code = (!settings.command.is_empty()).then_some(exit_code);
    manifest.stopped = None;
    run.write_manifest(&manifest)?;
    Ok(Recorded { run, exit_code })
}

/// Runs the command, or waits: the exit code as of a shell.
fn window(settings: &Settings) -> Result<i32> {
    if let [program, arguments @ ..] = &settings.command[..] {
        let status = Command::new(program).args(arguments).status();
        let status = status.with_context(|| format!("{program}: it could not be run"))?;
        return Ok(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
    }
    let start = Instant::now();
    while !kprism_signals::end_requested() && settings.duration.is_none_or(|limit| start.elapsed() < limit) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(0)
}

impl Source {
    fn begin(&mut self) -> Result<()> {
        match self {
            Source::Files(session) => *session = Session::begin(Path::new(FOLDER)).map_err(no_gcov)?,
            Source::Memory(memory, readings) => {
                // The first reading finds caches empty.
                memory.counters()?;
                for _ in 0..=GcovFiles::IDLE_READINGS {
                    readings.push(memory.counters()?);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Source::Files(session) => session.end().map_err(no_gcov)?,
            Source::Memory(memory, readings) => readings.push(memory.counters()?),
        }
        Ok(())
    }

    /// Functions whose counters changed while the window's end was read; and how many of these changed in every earlier
    /// reading too: the reading itself executes those.
    fn unsettled(&self) -> Option<Unsettled> {
        let Source::Memory(_, readings) = self else { return None };
        let (last, before) = readings.split_last()?;
        let is_readings = |function: &&_| before.iter().all(|reading| reading.unsettled.contains(*function));
        Some(Unsettled {
            functions: last.unsettled.len() as u64,
            reading: last.unsettled.iter().filter(is_readings).count() as u64,
            again: last.again as u64,
        })
    }

    fn save(&self, files: &GcovFiles) -> Result<()> {
        let name = || files.folder().display().to_string();
        match self {
            Source::Files(session) => session.save(files).with_context(name),
            Source::Memory(_, readings) => {
                std::fs::create_dir_all(files.folder()).with_context(name)?;
                let paths: Vec<PathBuf> = files.all().collect();
                // A dump has the last one only.
                for (path, reading) in
                    paths[paths.len().saturating_sub(readings.len())..].iter().zip(readings)
                {
                    archive(&reading.objects, path).with_context(|| path.display().to_string())?;
                }
                Ok(())
            }
        }
    }
}

fn archive(reading: &BTreeMap<String, Data>, path: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    write_archive(
        reading.iter().map(|(name, data)| (name.trim_start_matches('/'), data.to_bytes())),
        &mut out,
    )?;
    out.flush()
}

fn manifest(settings: &Settings) -> Manifest {
    let mut manifest = kprism_store::begun(&settings.command);
    let from = settings.memory.as_ref().map_or(FOLDER.to_owned(), |path| path.display().to_string());
    manifest.set(OptionKey::Instrument, json!("cover"));
    manifest.set(OptionKey::Counters, json!(from));
    manifest
}

/// Options of a kernel that counts.
const NEEDED: [&str; 3] = ["CONFIG_GCOV_KERNEL", "CONFIG_GCOV_PROFILE_ALL", "CONFIG_DEBUG_FS"];

/// Why the counters are not there, and what helps.
fn no_gcov(error: std::io::Error) -> anyhow::Error {
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return anyhow::anyhow!("{FOLDER}: {error}: run as root");
    }
    let release = this_kernel().release;
    let configs = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    let config = configs.iter().find_map(|path| Some((path, std::fs::read_to_string(path).ok()?)));
    if let Some((_, text)) = &config
        && text.contains("CONFIG_GCOV_KERNEL=y")
    {
        return anyhow::anyhow!("{FOLDER}: {error}: mount -t debugfs none /sys/kernel/debug");
    }
    let lacking = config.map(|(path, text)| {
        let is_set = |name: &&&str| !text.lines().any(|line| line == format!("{name}=y"));
        let names: Vec<&str> = NEEDED.iter().filter(is_set).copied().collect();
        format!("; {path} lacks {}", names.join(", "))
    });
    anyhow::anyhow!(
        "{FOLDER}: {error}: this kernel ({release}) does not count what it executes{}. One that does is built with \
         CONFIG_DEBUG_FS=y, CONFIG_GCOV_KERNEL=y and CONFIG_GCOV_PROFILE_ALL=y (or GCOV_PROFILE := y in the Makefile of \
         a folder); kprism lab gcov-kernel has one in a guest, and kprism lab run needs none: docs/cover.md",
        lacking.unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_counters_is_told_what_it_lacks() {
        let text = no_gcov(std::io::Error::from_raw_os_error(libc::ENOENT)).to_string();
        assert!(text.contains("CONFIG_GCOV_PROFILE_ALL=y") && text.contains("lab gcov-kernel"), "{text}");
        assert!(no_gcov(std::io::Error::from_raw_os_error(libc::EACCES)).to_string().contains("root"));
    }
}
