// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record cover`: which code of this machine's kernel a command made run, by gcov's counters.
//!
//! In: a kernel with gcov, its counters in debugfs, or in its memory (`/proc/kcore`, a crash dump). Out: a run with the
//! counters before and after, and readings from before that, by which what reading adds is taken out.

use std::collections::BTreeMap;
use std::io::{BufWriter, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cpio::newc::{Builder, trailer};
use kprism_agent::gcov::{AFTER, BEFORE, FOLDER, IDLE, Session};
use kprism_gcov::Data;
use kprism_gcov::memory::Live;
use kprism_lab::interrupt;
use kprism_store::{Manifest, Run, RunKind};
use serde_json::json;

use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::core_memory::{CoreMemory, KCORE};
use kprism_session::cover::Unsettled;
use kprism_session::flow;
use kprism_session::record::this_kernel;

pub const HELP: &str = "\
Examples (as root, on a kernel with CONFIG_GCOV_KERNEL):
  kprism record cover --show kernel/sched -- make -j8   a load, and a look at the scheduler
  kprism record cover                                   everything until Ctrl-C
  kprism record cover --memory /proc/kcore -- CMD       counters from memory, not debugfs
  kprism record cover --memory vmcore --symbols System.map -o RUN
                                                        what a crashed kernel had executed

On any machine, with a kernel built for it: kprism lab gcov-kernel.
The run can be reported where the kernel was built: kprism report cover -i RUN.

Exit codes: CMD's own; 2 error.";

/// Options of `kprism record cover`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The command whose window it is; without one, until --duration is over or Ctrl-C
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    output: PathBuf,
    /// Then report this folder or file of the source, as kernel/sched
    #[arg(long, value_name = "PATH")]
    show: Option<String>,
    /// Without a command: record for so long
    #[arg(long, value_name = "SECONDS", conflicts_with = "command")]
    duration: Option<u64>,
    /// Clear all counters first. A window needs none of it: this is for other tools
    #[arg(long, conflicts_with = "memory")]
    reset: bool,
    /// Take counters from a kernel's memory: /proc/kcore, or a crash dump (which has no window)
    #[arg(long, value_name = "FILE")]
    memory: Option<PathBuf>,
    /// The System.map of the kernel that --memory is of; of /proc/kcore it is known
    #[arg(long, value_name = "FILE", requires = "memory")]
    symbols: Option<PathBuf>,
}

/// Where counters come from, with what was read of them.
enum Source {
    Files(Session),
    Memory(CoreMemory, Vec<Live>),
}

/// Records.
pub fn run(args: &Args, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    interrupt::catch_signals();
    if let Some(program) = args.command.first() {
        kprism_tracefs::find_command(program)?;
    }
    let is_dump = args.memory.as_deref().is_some_and(|path| path != Path::new(KCORE));
    if is_dump && !args.command.is_empty() {
        bail!("a dump is of one moment: there is no window for a command in it");
    }
    if args.reset {
        let reset = Path::new(FOLDER).join("reset");
        std::fs::write(&reset, "0").map_err(no_gcov)?;
    }
    // What can fail comes before an older run is moved away.
    let mut source = match &args.memory {
        Some(path) => Source::Memory(CoreMemory::open(path, args.symbols.as_deref())?, Vec::new()),
        None => {
            std::fs::read_dir(FOLDER).map_err(no_gcov)?;
            Source::Files(Session::default())
        }
    };
    let run = Run::create(&args.output)?;
    let mut manifest = manifest(args);
    run.write_manifest(&manifest)?;
    if args.command.is_empty() && args.duration.is_none() && !is_dump {
        progress.say("recording; Ctrl-C ends it");
    }
    if !is_dump {
        source.begin()?;
    }
    let code = if is_dump { 0 } else { window(args) };
    source.end()?;
    let code = code_of(code, args)?;
    source.save(&run.gcov())?;
    manifest.instruments = vec![kprism_store::Instrument::Cover];
    if let Some(unsettled) = source.unsettled().filter(|_| !is_dump) {
        manifest.options.insert(Unsettled::OPTION.to_owned(), serde_json::to_value(unsettled)?);
    }
    manifest.exit_code = (!args.command.is_empty()).then_some(code);
    manifest.stopped = None;
    run.write_manifest(&manifest)?;
    if let Err(error) = crate::cmd::cover::tell(run.dir(), args.show.as_deref(), progress, out) {
        // Notes are where the kernel was built, which need not be here.
        progress.say(&format!("recorded in {}; kprism: note: {error:#}", run.dir().display()));
    }
    Ok(Outcome::Code(u8::try_from(code).unwrap_or(1)))
}

/// Runs the command, or waits: an exit code as of a shell, or -1 if there was no running it.
fn window(args: &Args) -> i32 {
    if let [program, arguments @ ..] = &args.command[..] {
        let status = Command::new(program).args(arguments).status();
        return status
            .map_or(-1, |status| status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
    }
    let start = Instant::now();
    let limit = args.duration.map(Duration::from_secs);
    while !interrupt::requested() && limit.is_none_or(|limit| start.elapsed() < limit) {
        std::thread::sleep(Duration::from_millis(20));
    }
    0
}

fn code_of(code: i32, args: &Args) -> Result<i32> {
    match code {
        -1 => bail!("{}: it could not be run", args.command[0]),
        code => Ok(code),
    }
}

impl Source {
    fn begin(&mut self) -> Result<()> {
        match self {
            Source::Files(session) => *session = Session::begin(Path::new(FOLDER)).map_err(no_gcov)?,
            Source::Memory(memory, moments) => {
                // The first reading finds caches empty.
                memory.counters()?;
                for _ in 0..=IDLE.len() {
                    moments.push(memory.counters()?);
                }
            }
        }
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        match self {
            Source::Files(session) => session.end().map_err(no_gcov)?,
            Source::Memory(memory, moments) => moments.push(memory.counters()?),
        }
        Ok(())
    }

    /// Functions that did not stand still when the window's end was read; of them, those that did so at no reading before
    /// either, which are what reading itself runs through.
    fn unsettled(&self) -> Option<Unsettled> {
        let Source::Memory(_, moments) = self else { return None };
        let (last, before) = moments.split_last()?;
        let is_readings = |function: &&_| before.iter().all(|moment| moment.unsettled.contains(*function));
        Some(Unsettled {
            functions: last.unsettled.len() as u64,
            reading: last.unsettled.iter().filter(is_readings).count() as u64,
            again: last.again as u64,
        })
    }

    fn save(&self, folder: &Path) -> Result<()> {
        let name = || folder.display().to_string();
        match self {
            Source::Files(session) => session.save(folder).with_context(name),
            Source::Memory(_, moments) => {
                std::fs::create_dir_all(folder).with_context(name)?;
                let names = IDLE.into_iter().chain([BEFORE, AFTER]);
                // The last are the last.
                for (name, moment) in names.skip((IDLE.len() + 2).saturating_sub(moments.len())).zip(moments)
                {
                    let path = folder.join(name);
                    archive(&moment.objects, &path).with_context(|| path.display().to_string())?;
                }
                Ok(())
            }
        }
    }
}

fn archive(moment: &BTreeMap<String, Data>, path: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::new(std::fs::File::create(path)?);
    for (name, data) in moment {
        let bytes = data.to_bytes();
        let size = u32::try_from(bytes.len()).map_err(std::io::Error::other)?;
        let mut writer =
            Builder::new(name.trim_start_matches('/')).mode(0o100_400).nlink(1).write(&mut out, size);
        writer.write_all(&bytes)?;
        writer.finish()?;
    }
    trailer(&mut out)?;
    out.flush()
}

fn manifest(args: &Args) -> Manifest {
    let mut manifest = Manifest::new(RunKind::Host, 0);
    manifest.command.clone_from(&args.command);
    manifest.kernel = Some(this_kernel());
    manifest.created = flow::now();
    manifest.stopped = Some("the recorder has not ended properly".into());
    let from = args.memory.as_ref().map_or(FOLDER.to_owned(), |path| path.display().to_string());
    manifest.options.insert("instrument".to_owned(), json!("cover"));
    manifest.options.insert("counters".to_owned(), json!(from));
    manifest
}

/// What a kernel needs.
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
