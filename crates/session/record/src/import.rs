// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recordings of other tools become runs.
//!
//! Input: a file or folder; [`look`] tells what it holds. Output: a run with its streams and symbols, decoded unless that is
//! not wanted.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_image::Bytes;
use kprism_import::bus;
use kprism_import::ftrace;
use kprism_import::logs::Stamp;
use kprism_import::perfdata::{Search, mem, trace};
use kprism_import::{CodeFile, Flow, ImportError, detect, read, write};
use kprism_session::{Progress, boot, date, durations, flow};
use kprism_store::{Fate, Instrument, Kernel, Manifest, OptionKey, Run, RunKind};

use crate::tlb::{bus as of_bus, close, sampled};

pub use kprism_import::Source;
pub use kprism_import::ftrace::Ftrace;

/// Settings of an import.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The recording.
    pub path: PathBuf,
    /// The run folder to write.
    pub output: PathBuf,
    /// Code beside the recording's own: `FILE@VA`, an ELF file or raw bytes and its address in hex.
    pub code: Vec<String>,
    /// The folder that stands for the traced machine's root.
    pub symfs: Option<PathBuf>,
    /// A copy of `/proc/kcore` of the time of recording.
    pub kcore: Option<PathBuf>,
    /// The kernel as linked.
    pub vmlinux: Option<PathBuf>,
    /// A copy of `/proc/kallsyms`.
    pub kallsyms: Option<PathBuf>,
    /// Frequency of the clock, in Hz, where the recording does not tell it.
    pub tsc_hz: Option<u64>,
    /// The run is decoded at once.
    pub decode: bool,
}

impl Settings {
    /// The recording at `path` goes to the default run, and is decoded.
    pub fn new(path: PathBuf) -> Self {
        Settings {
            path,
            output: kprism_session::DEFAULT_RUN.into(),
            code: Vec::new(),
            symfs: None,
            kcore: None,
            vmlinux: None,
            kallsyms: None,
            tsc_hz: None,
            decode: true,
        }
    }

    /// The options with files of the kernel that were given, for a recording in which no code of the kernel ran.
    fn unused_of_kernel(&self) -> Vec<&'static str> {
        let all = [("--kcore", &self.kcore), ("--vmlinux", &self.vmlinux), ("--kallsyms", &self.kallsyms)];
        all.into_iter().filter(|(_, file)| file.is_some()).map(|(option, _)| option).collect()
    }
}

impl Settings {
    /// Refuses an option that nothing in a recording of this kind would use: whoever gives it expects something of it.
    fn takes(&self, options: &[&str], what: &str) -> Result<()> {
        let given = [
            ("--code", !self.code.is_empty()),
            ("--symfs", self.symfs.is_some()),
            ("--kcore", self.kcore.is_some()),
            ("--vmlinux", self.vmlinux.is_some()),
            ("--kallsyms", self.kallsyms.is_some()),
            ("--tsc-hz", self.tsc_hz.is_some()),
        ];
        match given.iter().find(|(name, given)| *given && !options.contains(name)) {
            Some((name, _)) => bail!("{name}: {} is {what}, which has no use for it", self.path.display()),
            None => Ok(()),
        }
    }
}

/// The kind of a recording.
#[derive(Debug)]
pub enum Recording {
    /// Events of ftrace, or the log of a boot.
    Ftrace(Ftrace),
    /// Tracepoints that perf recorded.
    Tracepoints,
    /// Samples of TLB misses that perf recorded.
    Samples,
    /// A capture of a memory bus, by its description.
    Bus(PathBuf),
    /// Intel PT.
    Flow(Source),
}

/// A run that was made.
#[derive(Debug)]
pub struct Imported {
    /// The run.
    pub run: Run,
    /// Nothing could be decoded.
    pub empty: bool,
}

/// Sixteen bytes that every stream of Intel PT has now and then, and nothing else (Intel SDM volume 3, PSB packet).
const PSB: [u8; 16] = [0x02, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82];

/// Refuses a file that no reader can make sense of, with a word on what it is: there is nothing, or nothing in it, or one
/// piece of a recording.
fn is_a_recording(path: &Path) -> Result<()> {
    let name = path.display();
    let file = fs::metadata(path).with_context(|| name.to_string())?;
    if !file.is_file() {
        return Ok(());
    }
    if file.len() == 0 {
        bail!("{name}: is empty: the recording left nothing in it");
    }
    let own = path.file_name().unwrap_or_default().to_string_lossy();
    let of_one_cpu = own.starts_with("cpu") && own.ends_with(".raw") || own == "trace_pipe_raw";
    if of_one_cpu {
        bail!(
            "{name}: pages of one CPU's ring buffer do not say what is in them: name the folder that holds it, with the \
             formats beside it (events/, as in tracefs)"
        );
    }
    Ok(())
}

/// Refuses one board's trace, which is a part of a capture.
fn is_described(path: &Path) -> Result<()> {
    let mut magic = [0; 8];
    let read = fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    if read.is_ok() && magic == *kprism_tlb::bus::trace::MAGIC {
        bail!(
            "{}: a board's trace of a memory bus, which alone does not say what the addresses mean: describe the capture in a \
             file {} (docs/tlb-format.md), and import that",
            path.display(),
            bus::FILE
        );
    }
    Ok(())
}

/// Refuses a file that is taken for packets because it is nothing else, and holds none.
fn holds_packets(path: &Path) -> Result<()> {
    let bytes = Bytes::open(path).with_context(|| path.display().to_string())?;
    if bytes.windows(PSB.len()).any(|window| window == PSB) {
        return Ok(());
    }
    bail!(
        "{}: no recording that kprism knows: no packets of Intel PT (there is no PSB), no trace.dat, no text of ftrace, no \
         perf.data; see: kprism import --help",
        path.display()
    )
}

/// Tells what a recording holds.
///
/// # Errors
/// There is no file, nothing in it, only one piece of a recording, or nothing that kprism knows.
pub fn look(path: &Path) -> Result<Recording> {
    is_a_recording(path)?;
    if let Some(description) = bus::detect(path) {
        return Ok(Recording::Bus(description));
    }
    is_described(path)?;
    if let Some(found) = ftrace::detect(path)? {
        return Ok(Recording::Ftrace(found));
    }
    Ok(match path {
        path if trace::detect(path) => Recording::Tracepoints,
        path if mem::detect(path) => Recording::Samples,
        path => Recording::Flow(detect(path)?),
    })
}

/// Reads the recording, writes the run and decodes it. Notes and a summary go to `progress`.
///
/// # Errors
/// The recording cannot be read, with the place in it, or the run cannot be written.
pub fn import(settings: &Settings, recording: Recording, progress: &Progress) -> Result<Imported> {
    let kallsyms = settings.kallsyms.as_deref();
    match recording {
        Recording::Ftrace(found) => {
            settings.takes(&["--kallsyms"], "a recording of ftrace")?;
            let copy = |run: &Run| ftrace::copy(&found, kallsyms, &run.streams(), &run.symbols());
            import_events(settings, ftrace::stamp(&found), copy, progress)
        }
        Recording::Tracepoints => {
            settings.takes(&["--kallsyms"], "a recording of tracepoints")?;
            let copy = |run: &Run| {
                trace::copy(&settings.path, kallsyms, &run.streams(), &run.symbols()).map(|()| Vec::new())
            };
            import_events(settings, None, copy, progress)
        }
        Recording::Samples => {
            settings.takes(&["--kallsyms", "--symfs"], "a recording of samples")?;
            progress.step("reading the samples");
            let root = settings.symfs.as_deref().unwrap_or(Path::new("/"));
            let run = sampled::import(&settings.path, root, kallsyms, &settings.output)?;
            close(&run, progress)?;
            Ok(Imported { run, empty: false })
        }
        Recording::Bus(description) => {
            settings.takes(&["--symfs"], "a capture of a memory bus")?;
            progress.step("reading the capture");
            let run = of_bus::import(&description, settings.symfs.as_deref(), &settings.output, progress)?;
            close(&run, progress)?;
            let manifest = run.own_manifest()?;
            let account = manifest.accounts.get(&Instrument::Tlb);
            let misses = account.and_then(|account| account.count(Fate::Kept, "misses"));
            Ok(Imported { run, empty: misses == Some(0) })
        }
        Recording::Flow(source) => import_flow(settings, &source, progress),
    }
}

fn import_flow(settings: &Settings, source: &Source, progress: &Progress) -> Result<Imported> {
    let code = settings.code.iter().map(|text| CodeFile::parse(text)).collect::<Result<Vec<_>, _>>()?;
    progress.step("reading the recording");
    let search = Search {
        symfs: settings.symfs.clone(),
        // Not the user database's home: in a static program, glibc would load its modules from this machine for it.
        cache: std::env::var_os("HOME").map(|home| Path::new(&home).join(".debug")),
        kcore: settings.kcore.clone(),
        vmlinux: settings.vmlinux.clone(),
        kallsyms: settings.kallsyms.clone(),
        tsc_hz: settings.tsc_hz,
        // Beside the run, so that a joined stream is moved into it and not copied.
        spool: Some(settings.output.with_extension("part")),
    };
    if let (Source::Raw(file), []) = (source, code.as_slice()) {
        holds_packets(file)?;
        if settings.decode {
            return Err(ImportError::NoCode { path: file.clone() }.into());
        }
    }
    let capture = read(source, &code, &search)?;
    if capture.flow == Flow::WithoutOutcomes && settings.decode {
        bail!(
            "{}: recorded with DisTNT (intel_pt/notnt/): the trace has no outcomes of conditional branches, so the flow between \
             two addresses cannot be followed. perf script --itrace=b lists the addresses; import --no-decode keeps the packets, \
             for script packets",
            settings.path.display()
        );
    }
    for note in &capture.notes {
        progress.say(&format!("note: {note}"));
    }
    if capture.programs_only {
        settings.unused_of_kernel().iter().for_each(|option| {
            progress.say(&format!("note: {option} is not used: no code of the kernel is in this recording"));
        });
    }
    let run = Run::create(&settings.output)?;
    write(&capture, &run.streams(), &run.symbols())?;
    let mut manifest = Manifest::new(RunKind::Import, 0);
    flow::complete(&run, &mut manifest);
    manifest.created = date::now();
    manifest.command.clone_from(&capture.command);
    let (release, build_id) = capture.kernel.clone();
    if !(release.is_empty() && build_id.is_empty()) {
        manifest.kernel = Some(Kernel { release, build_id, ..Kernel::default() });
    }
    manifest.instruments = vec![Instrument::Flow];
    manifest.set(OptionKey::Source, settings.path.display().to_string());
    if capture.ring {
        manifest.set(OptionKey::Snapshot, true);
    }
    if !capture.notes.is_empty() {
        manifest.set(OptionKey::ImportNotes, capture.notes.clone());
    }
    if !settings.code.is_empty() {
        manifest.set(OptionKey::Code, settings.code.clone());
    }
    run.write_manifest(&manifest)?;
    if !settings.decode {
        return Ok(Imported { run, empty: false });
    }
    let (profile, manifest) = flow::decode(&run, progress)?;
    progress.clear();
    progress.say(&flow::summary(&run, &manifest));
    let events = profile.totals.packet_events.values().sum::<u64>();
    if capture.flow == Flow::Events {
        progress.say(&format!(
            "recorded without branches (branch=0): {events} events, and no flow; see: kprism script events{}",
            kprism_session::input_option(&run)
        ));
    }
    let empty = profile.totals.instructions() == 0 && (capture.flow != Flow::Events || events == 0);
    if empty {
        progress.say(&format!(
            "nothing could be decoded: is it Intel PT, and is it the right code? see: kprism report errors{}",
            kprism_session::input_option(&run)
        ));
    }
    Ok(Imported { run, empty })
}

/// Copies events into a run and measures durations, if there are calls.
fn import_events(
    settings: &Settings,
    stamp: Option<Stamp>,
    copy: impl FnOnce(&Run) -> Result<Vec<String>, ImportError>,
    progress: &Progress,
) -> Result<Imported> {
    progress.step("reading the recording");
    let run = Run::create(&settings.output)?;
    for note in &copy(&run)? {
        progress.say(&format!("note: {note}"));
    }
    let mut manifest = Manifest::new(RunKind::Import, 0);
    manifest.created = date::now();
    manifest.set(OptionKey::Source, settings.path.display().to_string());
    if let Some(Stamp { mode, release, command, .. }) = stamp {
        manifest.kernel = Some(Kernel { release, build_id: String::new(), ..Kernel::default() });
        manifest.set(OptionKey::RecordedBy, command);
        manifest.set(OptionKey::RecordedOf, mode);
    }
    run.write_manifest(&manifest)?;
    if !settings.decode {
        return Ok(Imported { run, empty: false });
    }
    // A kernel's log alone has no calls to be measured.
    let measured = match run.holds(Instrument::Durations) {
        true => Some(durations::measure(&run, progress)?),
        false => None,
    };
    progress.clear();
    if let Some(measured) = &measured {
        progress.say(&durations::summary(&run, measured)?);
    }
    if let Some(boot) = boot::adopt(run.dir())? {
        let mut manifest = run.own_manifest()?;
        manifest.set(OptionKey::Record, "boot");
        manifest.set(OptionKey::KernelCommandLine, boot.command_line.clone());
        if let Ok(read) = boot::load(run.dir()) {
            boot::enter(&read, &boot, &mut manifest);
        }
        run.write_manifest(&manifest)?;
        progress.say(&format!(
            "a boot, with the kernel's log; see: kprism report boot -i {}",
            run.dir().display()
        ));
    } else if run.dmesg().is_file() {
        progress.say("note: the kernel's log tells of no initcalls, and nothing else is read from it");
    }
    let Some(measured) = measured else { return Ok(Imported { run, empty: false }) };
    let empty = measured.times.counts.calls == 0 && !durations::has_events(&run)?;
    Ok(Imported { run, empty })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_of_the_kernel_is_named_where_it_has_no_use() {
        let none = Settings::new(PathBuf::from("perf.data"));
        assert!(none.unused_of_kernel().is_empty());
        let file = || Some(PathBuf::from("kernel"));
        let all = Settings { kcore: file(), vmlinux: file(), kallsyms: file(), ..none };
        assert_eq!(all.unused_of_kernel(), ["--kcore", "--vmlinux", "--kallsyms"]);
    }
}
