// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism import`: what other tools recorded becomes a run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use kprism_import::logs::Stamp;
use kprism_import::perfdata::{Search, mem, trace};
use kprism_import::{CodeFile, ImportError, Source, detect, ftrace, read, write};
use kprism_store::{Instrument, Kernel, Manifest, Run, RunKind};

use crate::exit::Outcome;
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::boot;
use kprism_session::durations;
use kprism_session::flow;
use kprism_session::tlb;
use kprism_session::tlb_sampled;

const AFTER_HELP: &str = "\
PATH is told apart by what it holds:
  a folder with *.pt and xpages.txt   lines `tgid va_hex size file`: dumps of code pages
  a folder with trace.json            LLDB's trace bundle
  a folder with pt.bin                DynamoRIO's drpt2trace input
  perf.data, file or folder           perf record -e intel_pt//; programs and libraries
                                      from where they were, or --symfs, if build ids fit; or
                                      tracepoints (perf record -e 'sched:*', perf sched record);
                                      or sampled TLB misses (perf record -d -e
                                      mem_inst_retired.stlb_miss_loads:P, or -d -R -e ibs_op//)
  a folder with ptout.N, ptout.sideband
                                      simple-pt's sptcmd; name the kernel's code with --kcore
                                      and --kallsyms, or --vmlinux
  trace.dat                           trace-cmd record, versions 6 and 7
  a text of ftrace's `trace`          function_graph with any options, or events
  NAME_ftrace.txt, NAME_dmesg.txt     pm-graph's (bootgraph, sleepgraph), either file, or the folder
                                      of both, .gz too; a boot's log alone too: its initcalls
  a folder with cpuN.raw              pages of ftrace's ring buffer (trace_pipe_raw), with events/,
                                      header_page, kallsyms, saved_cmdlines as in tracefs; with
                                      dmesg of a boot with initcall_debug, a boot
  any other file                      Intel PT packets; name the code with --code

How to record with perf, kernel and all (as root):
  perf record -e intel_pt/cyc,mtc_period=3/ --kcore -a -o perf.data -- CMD
Programs only, without --kcore:
  perf record -e intel_pt/cyc,mtc_period=3/u -o perf.data -- CMD";

/// Options of `kprism import`.
#[derive(Debug, Default, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub struct Args {
    /// Recording
    pub path: PathBuf,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    /// Code: an ELF file or raw bytes, and its address in hex (can be repeated)
    #[arg(long, value_name = "FILE@VA")]
    pub code: Vec<String>,
    /// perf.data, simple-pt: folder that stands for the traced machine's root
    #[arg(long, value_name = "DIR")]
    pub symfs: Option<PathBuf>,
    /// perf.data, simple-pt: the kernel's code, a copy of /proc/kcore of the time of recording
    #[arg(long, value_name = "FILE")]
    pub kcore: Option<PathBuf>,
    /// perf.data, simple-pt: the kernel as linked, for code and symbols
    #[arg(long, value_name = "FILE")]
    pub vmlinux: Option<PathBuf>,
    /// perf.data, simple-pt, ftrace: the kernel's symbols, a copy of /proc/kallsyms
    #[arg(long, value_name = "FILE")]
    pub kallsyms: Option<PathBuf>,
    /// Do not decode yet
    #[arg(long)]
    pub no_decode: bool,
}

impl Args {
    /// What perf wrote on this machine.
    pub fn of_perf_data(path: &Path, output: &Path) -> Self {
        Args { path: path.to_owned(), output: output.to_owned(), ..Args::default() }
    }
}

/// Sixteen bytes that every stream of Intel PT has now and then, and nothing else (Intel SDM volume 3, PSB packet).
const PSB: [u8; 16] = [0x02, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82, 2, 0x82];

/// Refuses a file that no reader can make sense of, with a word on what it is: there is nothing, or nothing in it, or one
/// piece of a recording.
fn look(path: &Path) -> Result<()> {
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

/// Refuses a file that is taken for packets because it is nothing else, and holds none.
fn holds_packets(path: &Path) -> Result<()> {
    let bytes = fs::read(path).with_context(|| path.display().to_string())?;
    if bytes.windows(PSB.len()).any(|window| window == PSB) {
        return Ok(());
    }
    bail!(
        "{}: no recording that kprism knows: no packets of Intel PT (there is no PSB), no trace.dat, no text of ftrace, no \
         perf.data; see: kprism import --help",
        path.display()
    )
}

/// What an import of ftrace's events honours; of samples; of packets with their code in the folder; of packets whose code
/// is looked for.
const EVENTS: [&str; 4] = ["path", "output", "kallsyms", "no_decode"];
const SAMPLES: [&str; 4] = ["path", "output", "symfs", "kallsyms"];
const PACKETS: [&str; 4] = ["path", "output", "code", "no_decode"];
const SEARCHED: [&str; 8] = ["path", "output", "code", "symfs", "kcore", "vmlinux", "kallsyms", "no_decode"];

/// Reads, writes the run, decodes it.
pub fn run(args: &Args, given: &Given, progress: &Progress) -> Result<Outcome> {
    look(&args.path)?;
    if let Some(found) = ftrace::detect(&args.path)? {
        given.only("events of ftrace", &EVENTS)?;
        return import_ftrace(
            args,
            ftrace::stamp(&found),
            |run| ftrace::copy(&found, args.kallsyms.as_deref(), &run.streams(), &run.symbols()),
            progress,
        );
    }
    if trace::detect(&args.path) {
        given.only("tracepoints of perf", &EVENTS)?;
        return import_ftrace(
            args,
            None,
            |run| trace::copy(&args.path, args.kallsyms.as_deref(), &run.streams(), &run.symbols()),
            progress,
        );
    }
    if mem::detect(&args.path) {
        given.only("sampled TLB misses", &SAMPLES)?;
        progress.step("reading the samples");
        let root = args.symfs.as_deref().unwrap_or(Path::new("/"));
        let run = tlb_sampled::import(&args.path, root, args.kallsyms.as_deref(), &args.output)?;
        let text = tlb::save(&run)?;
        progress.clear();
        progress.say(&text);
        return Ok(Outcome::Done);
    }
    let code = args.code.iter().map(|text| CodeFile::parse(text)).collect::<Result<Vec<_>, _>>()?;
    progress.step("reading the recording");
    let search = Search {
        symfs: args.symfs.clone(),
        cache: std::env::home_dir().map(|home| home.join(".debug")),
        kcore: args.kcore.clone(),
        vmlinux: args.vmlinux.clone(),
        kallsyms: args.kallsyms.clone(),
    };
    let source = detect(&args.path)?;
    match &source {
        Source::PerfData(_) => given.only("a perf.data", &SEARCHED)?,
        Source::SimplePt(_) => given.only("simple-pt's folder", &SEARCHED)?,
        Source::Raw(_) => given.only("a file of packets, whose code --code names", &PACKETS)?,
        Source::Pages(_) => given.only("a folder with xpages.txt", &PACKETS)?,
        Source::Drpt2trace(_) => given.only("a folder of drpt2trace", &PACKETS)?,
        Source::Lldb(_) => given.only("a trace bundle of LLDB", &PACKETS)?,
    }
    if let (Source::Raw(file), []) = (&source, code.as_slice()) {
        holds_packets(file)?;
    }
    let capture = read(&source, &code, &search)?;
    for note in &capture.notes {
        progress.say(&format!("note: {note}"));
    }
    let run = Run::create(&args.output)?;
    write(&capture, &run.streams(), &run.symbols())?;
    let mut manifest = Manifest::new(RunKind::Import, 0);
    flow::complete(&run, &mut manifest)?;
    manifest.created = flow::now();
    manifest.command.clone_from(&capture.command);
    let (release, build_id) = capture.kernel.clone();
    if !(release.is_empty() && build_id.is_empty()) {
        manifest.kernel = Some(Kernel { release, build_id });
    }
    manifest.instruments = vec![Instrument::Flow];
    manifest.options.insert("source".into(), args.path.display().to_string().into());
    if !capture.notes.is_empty() {
        manifest.options.insert(flow::IMPORT_NOTES.into(), capture.notes.clone().into());
    }
    if !args.code.is_empty() {
        manifest.options.insert("code".into(), args.code.clone().into());
    }
    run.write_manifest(&manifest)?;
    if args.no_decode {
        return Ok(Outcome::Done);
    }
    let (profile, manifest) = flow::decode(&run, progress)?;
    progress.clear();
    progress.say(&flow::summary(&run, &manifest));
    if profile.totals.instructions() == 0 {
        progress.say(
            "nothing could be decoded: is it Intel PT, and is it the right code? see: kprism report errors",
        );
        return Ok(Outcome::NothingMatched);
    }
    Ok(Outcome::Done)
}

/// The same for what ftrace left.
fn import_ftrace(
    args: &Args,
    stamp: Option<Stamp>,
    copy: impl FnOnce(&Run) -> Result<Vec<String>, ImportError>,
    progress: &Progress,
) -> Result<Outcome> {
    progress.step("reading the recording");
    let run = Run::create(&args.output)?;
    for note in &copy(&run)? {
        progress.say(&format!("note: {note}"));
    }
    let mut manifest = Manifest::new(RunKind::Import, 0);
    manifest.created = flow::now();
    manifest.options.insert("source".into(), args.path.display().to_string().into());
    if let Some(Stamp { mode, release, command, .. }) = stamp {
        manifest.kernel = Some(Kernel { release, build_id: String::new() });
        manifest.options.insert("recorded_by".into(), command.into());
        manifest.options.insert("recorded_of".into(), mode.into());
    }
    run.write_manifest(&manifest)?;
    if args.no_decode {
        return Ok(Outcome::Done);
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
        let mut manifest = run.manifest()?;
        manifest.options.insert("record".into(), "boot".into());
        manifest.options.insert("kernel_command_line".into(), boot.command_line.clone().into());
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
    let Some(measured) = measured else { return Ok(Outcome::Done) };
    let nothing = measured.times.counts.calls == 0 && !durations::has_events(&run)?;
    Ok(if nothing { Outcome::NothingMatched } else { Outcome::Done })
}
