// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab`: commands in a guest with a stock kernel, watched from outside.

use std::io::{IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use kprism_lab::{
    Counters, Ended, Job, ObserverOptions, Options, Outcome as Ran, Pace, Prepared, Share, Span,
};
use kprism_store::{Instrument, Kernel, Manifest, Run, RunKind};

use crate::exit::{self, Outcome};
use kprism_session::Progress;
use kprism_session::flow;

/// What to do with the lab.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a command in the guest and record every instruction of it and its kernel
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Boot the guest with tracing on: initcalls, long functions
    #[command(after_help = super::record::BOOT_HELP)]
    Boot(Box<super::record::BootArgs>),
    /// Fetch and boot the guest now, so that the next run starts at once
    Prepare(GuestArgs),
    /// Run a command on a small kernel with gcov, and record which of its code was executed
    #[command(after_help = super::gcov_kernel::HELP)]
    GcovKernel(Box<super::gcov_kernel::Args>),
}

const RUN_HELP: &str = "\
The command's output is passed through and kept in RUN/stdout and RUN/stderr.

The command has its output and, with --stdin, an input; it has no terminal, and no
network but `lo`.

Exit codes: the command's own; 124 if --timeout ended it, 125 if kprism failed,
130 after Ctrl-C. What was recorded until then is kept and can be reported.";

/// Which guest.
#[derive(Debug, Clone, clap::Args)]
pub struct GuestArgs {
    /// Boot this kernel image (vmlinuz) instead of Debian's
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    kernel: Option<PathBuf>,
    /// Use this initramfs instead of Debian's programs
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    initrd: Option<PathBuf>,
    /// Load this kernel module at boot: a name, or a .ko file (can be repeated)
    #[arg(long, value_name = "MODULE", help_heading = "Guest")]
    pub module: Vec<String>,
    /// Have this kernel module at hand, not loaded (can be repeated)
    #[arg(long, value_name = "MODULE", help_heading = "Guest")]
    pub with_module: Vec<String>,
    /// Have this Debian package in the guest (can be repeated)
    #[arg(long, value_name = "NAME", help_heading = "Guest")]
    pub package: Vec<String>,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Guest")]
    smp: u32,
    /// Memory, with suffix M or G (M if none)
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = mebibytes, help_heading = "Guest")]
    pub mem: u64,
    /// Add to the kernel's command line (can be repeated)
    #[arg(long, value_name = "WORDS", help_heading = "Guest")]
    append: Vec<String>,
    /// Run at host speed with parallel CPUs: faster, but no run is like another
    #[arg(long, help_heading = "Guest")]
    fast: bool,
    /// Ask apt for newer packages than those in the cache
    #[arg(long, help_heading = "Guest")]
    refresh: bool,
    /// How long a boot may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, help_heading = "Guest")]
    boot_timeout: u64,
}

/// Options of `kprism lab run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Command to run in the guest
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    command: Vec<String>,
    /// Run folder to write; an older run there is renamed to RUN.old
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub output: PathBuf,
    #[command(flatten)]
    place: PlaceArgs,
    /// Record the whole boot, not only the command
    #[arg(long)]
    boot: bool,
    /// Run without recording anything
    #[arg(long, conflicts_with_all = ["no_decode", "retc", "psb", "mtc", "cyc"])]
    unobserved: bool,
    /// Do not decode yet
    #[arg(long)]
    no_decode: bool,
    /// Keep only what led to this: `FUNC` or `FUNC%return`, maybe with `if EXPR` (see docs/snapshots.md)
    #[arg(long, value_name = "CONDITION", conflicts_with_all = ["boot", "unobserved"], help_heading = "Snapshots")]
    snapshot_when: Option<String>,
    /// How much of each CPU's stream a snapshot holds
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = bytes, requires = "snapshot_when", help_heading = "Snapshots")]
    snapshot_size: u64,
    /// Keep what runs from here on, each time: `FUNC` or `FUNC%return`, maybe with `if EXPR` (see docs/snapshots.md)
    #[arg(long, value_name = "CONDITION", conflicts_with_all = ["boot", "unobserved", "snapshot_when"], help_heading = "Windows")]
    from: Option<String>,
    /// Keep what runs until here, each time; without --from, what runs before the first
    #[arg(long, value_name = "CONDITION", conflicts_with_all = ["boot", "unobserved", "snapshot_when"], help_heading = "Windows")]
    until: Option<String>,
    #[command(flatten)]
    pub guest: GuestArgs,
    #[command(flatten)]
    packets: PacketArgs,
}

/// What the command finds around it.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PlaceArgs {
    /// Give the guest a copy of this folder, at /share or at PLACE (can be repeated)
    #[arg(long, value_name = "DIR[:PLACE]")]
    pub share: Vec<String>,
    /// Run this in a shell first, not recorded unless the boot is (can be repeated)
    #[arg(long, value_name = "CMD")]
    pub before: Vec<String>,
    /// Set an environment variable of the command (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<(String, String)>,
    /// Working directory of the command
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Give the command this file as its standard input, `-` for kprism's own; in a guest it is empty otherwise
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,
    /// End the command after it ran for this time
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Have QEMU make this Unix socket, for GDB to attach to the guest (`target remote SOCKET`)
    #[arg(long, value_name = "SOCKET")]
    pub gdb: Option<PathBuf>,
}

impl PlaceArgs {
    /// The file that is the command's standard input.
    pub fn input(&self) -> Option<PathBuf> {
        self.stdin.as_ref().map(|path| match path.as_os_str() == "-" {
            true => "/dev/stdin".into(),
            false => path.clone(),
        })
    }

    /// An option that is given, if one is.
    pub fn given(&self) -> Option<&'static str> {
        [
            (!self.share.is_empty(), "--share"),
            (!self.before.is_empty(), "--before"),
            (!self.env.is_empty(), "--env"),
            (self.cwd.is_some(), "--cwd"),
            (self.timeout.is_some(), "--timeout"),
            (self.gdb.is_some(), "--gdb"),
            (self.stdin.is_some(), "--stdin"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

impl GuestArgs {
    /// An option that is given, if one is.
    pub fn given(&self) -> Option<&'static str> {
        [
            (self.kernel.is_some(), "--kernel"),
            (self.initrd.is_some(), "--initrd"),
            (!self.module.is_empty(), "--module"),
            (!self.with_module.is_empty(), "--with-module"),
            (!self.package.is_empty(), "--package"),
            (self.smp != 1, "--smp"),
            (self.mem != 1024, "--mem"),
            (!self.append.is_empty(), "--append"),
            (self.fast, "--fast"),
            (self.refresh, "--refresh"),
            (self.boot_timeout != 300, "--boot-timeout"),
        ]
        .into_iter()
        .find_map(|(given, name)| given.then_some(name))
    }
}

/// How packets are written.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PacketArgs {
    /// Compress returns to their calls, as processors do
    #[arg(long, value_enum, value_name = "ON|OFF", help_heading = "Packets")]
    pub retc: Option<Switch>,
    /// Bytes between synchronisation points (PSB): 2048 to 64 MiB in processors, which cannot do without
    #[arg(long, value_name = "BYTES", value_parser = psb(), help_heading = "Packets")]
    pub psb: Option<u64>,
    /// Mini time counter every 2^N crystal ticks (0 to 15), or `off`
    #[arg(long, value_name = "N|off", value_parser = mtc, help_heading = "Packets")]
    pub mtc: Option<String>,
    /// Cycle counts at every packet, at least so many cycles apart (a power of two up to 16384), or `off`
    #[arg(long, value_name = "CYCLES|on|off", value_parser = cyc, help_heading = "Packets")]
    pub cyc: Option<String>,
    /// Leave out the kernel's flow. Nothing then says when tasks are switched, so this is not for profiles.
    #[arg(skip)]
    pub user_only: bool,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

fn mebibytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.strip_suffix(['G', 'g']) {
        Some(digits) => (digits, 1024),
        None => (text.strip_suffix(['M', 'm']).unwrap_or(text), 1),
    };
    let number: u64 = digits.parse().map_err(|_| "expected a number with suffix M or G".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "too large".to_owned())
}

/// What the recorder takes; processors take powers of two from 2 KiB to 64 MiB (SDM, IA32_RTIT_CTL.PSBFreq).
pub fn psb() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(256..=1 << 30)
}

/// SDM, IA32_RTIT_CTL.MTCFreq: the period is 2^N crystal ticks.
pub fn mtc(text: &str) -> Result<String, String> {
    match text.parse::<u8>() {
        Ok(0..=15) => Ok(text.to_owned()),
        _ if text == "off" => Ok(text.to_owned()),
        _ => Err("expected 0 to 15, or off".to_owned()),
    }
}

/// SDM, IA32_RTIT_CTL.CycThresh: 0, or 2^(n-1) cycles.
pub fn cyc(text: &str) -> Result<String, String> {
    match text.parse::<u32>() {
        Ok(n) if n == 0 || n <= 16384 && n.is_power_of_two() => Ok(text.to_owned()),
        _ if text == "on" || text == "off" => Ok(text.to_owned()),
        _ => Err("expected 0 or a power of two up to 16384, on, or off".to_owned()),
    }
}

fn bytes(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit));
    number
        .filter(|n| (4096..=1 << 34).contains(n))
        .ok_or_else(|| "expected 4K to 16G, as a number with suffix K, M or G".to_owned())
}

pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

impl GuestArgs {
    /// Whether runs differ.
    pub fn is_fast(&self) -> bool {
        self.fast
    }

    /// As the lab wants it.
    pub fn options(&self) -> Options {
        Options {
            smp: self.smp,
            mem_mib: self.mem,
            append: self.append.clone(),
            kernel: self.kernel.clone(),
            initrd: self.initrd.clone(),
            modules: self.module.clone(),
            with_modules: self.with_module.clone(),
            packages: self.package.clone(),
            pace: if self.fast { Pace::Fast } else { Pace::Exact },
            refresh: self.refresh,
            boot_timeout: Duration::from_secs(self.boot_timeout),
        }
    }
}

impl PacketArgs {
    fn plugin_arguments(&self) -> Vec<(String, String)> {
        let word = |s: Switch| match s {
            Switch::On => "on".to_owned(),
            Switch::Off => "off".to_owned(),
        };
        let all = [
            ("retc", self.retc.map(word)),
            ("psb", self.psb.map(|n| n.to_string())),
            ("mtc", self.mtc.clone()),
            ("cyc", self.cyc.clone()),
            ("filter", self.user_only.then(|| "user".to_owned())),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl RunArgs {
    /// A command to be recorded into `output`, and not decoded.
    pub fn recording(
        command: &[String],
        output: PathBuf,
        (place, guest): (&PlaceArgs, &GuestArgs),
        packets: PacketArgs,
    ) -> Self {
        RunArgs {
            command: command.to_vec(),
            output,
            place: place.clone(),
            boot: false,
            unobserved: false,
            no_decode: true,
            snapshot_when: None,
            from: None,
            until: None,
            snapshot_size: 0,
            guest: guest.clone(),
            packets,
        }
    }

    /// What the guest is to do.
    pub fn job(&self) -> Job {
        Job {
            argv: self.command.clone(),
            env: self.place.env.clone(),
            cwd: self.place.cwd.clone(),
            before: self.place.before.clone(),
            after: Vec::new(),
            stdin: self.place.input(),
            shares: self.place.share.iter().map(|text| Share::parse(text)).collect(),
            collect: None,
            asks_first: false,
            counters: Counters::None,
            gdb: self.place.gdb.clone(),
            span: if self.boot { Span::Boot } else { Span::Command },
            timeout: self.place.timeout.map(Duration::from_secs),
        }
    }

    /// The recorder and its settings.
    pub fn observer(&self, prepared: &Prepared) -> Result<Option<ObserverOptions>> {
        if self.unobserved {
            return Ok(None);
        }
        if !prepared.is_where_linked() {
            bail!(
                "kaslr goes with --unobserved: names of what is observed are those of the kernel as it is linked"
            );
        }
        let plugin = kprism_lab::find_observer()?;
        let mut arguments = self.packets.plugin_arguments();
        for (option, key, condition) in [
            ("--snapshot-when", "when", &self.snapshot_when),
            ("--from", "from", &self.from),
            ("--until", "until", &self.until),
        ] {
            if let Some(text) = condition {
                arguments.push((key.to_owned(), super::snapshot::argument(option, text, prepared)?));
            }
        }
        if self.snapshot_when.is_some() {
            arguments.push(("keep".to_owned(), self.snapshot_size.to_string()));
        }
        Ok(Some(ObserverOptions { plugin, arguments }))
    }

    fn manifest(&self, prepared: &Prepared) -> Manifest {
        let mut m = Manifest::new(RunKind::Lab, self.guest.smp);
        m.command = self.command.clone();
        let kernel = prepared.kernel();
        m.kernel = Some(Kernel { release: kernel.release.clone(), build_id: kernel.build_id.clone() });
        m.created = flow::now();
        m.stopped = Some("the recorder has not ended properly".into());
        let g = &self.guest;
        for (name, value) in [
            ("qemu", prepared.qemu_version().into()),
            ("kernel_command_line", prepared.command_line().into()),
            ("pace", if g.fast { "fast" } else { "exact" }.into()),
            ("mem_mib", g.mem.into()),
            ("boot", self.boot.into()),
            ("kernel", g.kernel.as_ref().map(|p| p.display().to_string()).into()),
            ("initrd", g.initrd.as_ref().map(|p| p.display().to_string()).into()),
            ("module", g.module.clone().into()),
            ("with_module", g.with_module.clone().into()),
            ("package", g.package.clone().into()),
            ("share", self.place.share.clone().into()),
            ("stdin", self.place.stdin.as_ref().map(|p| p.display().to_string()).into()),
            ("before", self.place.before.clone().into()),
            ("env", self.place.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
            ("cwd", self.place.cwd.clone().into()),
            ("timeout", self.place.timeout.into()),
            ("snapshot_when", self.snapshot_when.clone().into()),
            ("from", self.from.clone().into()),
            ("until", self.until.clone().into()),
            ("packets", serde_json::json!(self.packets.plugin_arguments())),
        ] {
            m.options.insert(name.to_owned(), value);
        }
        m
    }
}

/// Fetches and boots the guest.
pub fn prepare(args: &GuestArgs, progress: &Progress) -> Result<Outcome> {
    kprism_lab::interrupt::catch_signals();
    let prepared = match prepared(args, progress) {
        Err(error) => return interrupted(error),
        Ok(prepared) => prepared,
    };
    progress.say(&format!(
        "ready: {} in {}",
        prepared.kernel().release,
        prepared.snapshot_folder().display()
    ));
    Ok(Outcome::Done)
}

/// Runs, records, decodes.
pub fn run(args: &RunArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    kprism_lab::interrupt::catch_signals();
    record_and_decode(args, progress, out).or_else(interrupted)
}

/// Ctrl-C is an outcome, not an error.
pub fn interrupted(error: anyhow::Error) -> Result<Outcome> {
    match error.downcast_ref::<kprism_lab::Error>() {
        Some(kprism_lab::Error::Interrupted) => Ok(Outcome::Code(exit::INTERRUPTED)),
        _ => Err(error),
    }
}

fn record_and_decode(args: &RunArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let (run, ran) = record_command(args, &[], progress, out)?;
    if ran.ended == Ended::Interrupted {
        progress.say(&format!("what was recorded is in {}", run.dir().display()));
    } else if !args.unobserved && !args.no_decode {
        let (_, manifest) = flow::decode(&run, progress)?;
        progress.clear();
        progress.say(&flow::summary(&run, &manifest));
    }
    Ok(Outcome::Code(code(&ran)))
}

/// Runs the command with its output passed on, and records it; `more` goes to the observer.
pub fn record_command(
    args: &RunArgs,
    more: &[(String, String)],
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<(Run, Ran)> {
    if !args.unobserved {
        // Better before a long boot than after it.
        kprism_lab::find_observer()?;
    }
    let prepared = prepared(&args.guest, progress)?;
    let mut observer = args.observer(&prepared)?;
    if let Some(observer) = &mut observer {
        observer.arguments.extend_from_slice(more);
    }
    let mut output = Output::new(out, progress);
    if output.live {
        progress.step("running the command");
    }
    let (run, ran) = record(args, &args.job(), observer.as_ref(), &prepared, &mut |p| output.pass(p))?;
    progress.clear();
    complain(&ran, progress);
    Ok((run, ran))
}

/// The exit code a run leads to.
pub fn code(ran: &Ran) -> u8 {
    match ran.ended {
        Ended::Normal => ran.exit_code.unwrap_or(exit::LAB_FAILED),
        Ended::Timeout => exit::TIMED_OUT,
        Ended::Interrupted => exit::INTERRUPTED,
        Ended::Panic(_) | Ended::Failed(_) => exit::LAB_FAILED,
    }
}

/// Makes the guest ready.
pub fn prepared(guest: &GuestArgs, progress: &Progress) -> Result<Prepared> {
    let prepared = kprism_lab::prepare(&guest.options(), &mut |p| show(progress, p))?;
    progress.clear();
    Ok(prepared)
}

/// Runs the command and records it into a new run.
pub fn record(
    args: &RunArgs,
    job: &Job,
    observer: Option<&ObserverOptions>,
    prepared: &Prepared,
    report: kprism_lab::Report<'_>,
) -> Result<(Run, Ran)> {
    let run = Run::create(&args.output)?;
    let mut manifest = args.manifest(prepared);
    run.write_manifest(&manifest)?;
    let mut ran = kprism_lab::run(prepared, job, run.dir(), observer, report)?;
    if job.collect.is_some() {
        adopt(&mut manifest, run.manifest()?);
    }
    manifest.exit_code = ran.exit_code.map(i32::from);
    manifest.stopped = reason(&ran.ended);
    if let Some(observer) = observer {
        manifest.instruments.push(Instrument::Flow);
        if observer.arguments.iter().any(|(name, _)| name == "tlb") {
            manifest.instruments.push(Instrument::Tlb);
        }
        flow::complete(&run, &mut manifest)?;
        // A recorder that cannot go on ends QEMU: its reason is the one to tell.
        if let (Ended::Failed(why), Some(stopped)) = (&mut ran.ended, &manifest.stopped) {
            why.clone_from(stopped);
        }
    }
    run.write_manifest(&manifest)?;
    Ok((run, ran))
}

/// A recorder in the guest leaves a manifest of its own in what was collected: its counts and accounts are the run's.
fn adopt(manifest: &mut Manifest, collected: Manifest) {
    manifest.other.extend(collected.other);
    manifest.accounts.extend(collected.accounts);
    manifest.instruments.extend(collected.instruments);
    for (name, value) in collected.options {
        manifest.options.entry(name).or_insert(value);
    }
}

/// Passes the guest's output on.
pub struct Output<'a> {
    out: &'a mut dyn Write,
    progress: &'a Progress,
    /// Whether a live line may stay while the command runs: not when its output goes to the same terminal.
    live: bool,
    /// Until nobody reads standard output any more; the recording goes on nevertheless.
    open: bool,
}

impl<'a> Output<'a> {
    /// To standard output and error.
    pub fn new(out: &'a mut dyn Write, progress: &'a Progress) -> Self {
        Output { out, progress, live: !std::io::stdout().is_terminal(), open: true }
    }

    /// What the lab tells of.
    pub fn pass(&mut self, p: kprism_lab::Progress<'_>) {
        match p {
            kprism_lab::Progress::Stdout(bytes) if self.open => {
                self.open = self.out.write_all(bytes).and_then(|()| self.out.flush()).is_ok();
            }
            kprism_lab::Progress::Stdout(_) => {}
            kprism_lab::Progress::Stderr(bytes) => {
                if self.live {
                    self.progress.clear();
                    self.live = false;
                }
                // If nobody reads our standard error, there is nowhere to say so.
                let _ = std::io::stderr().write_all(bytes);
            }
            other => show(self.progress, other),
        }
    }
}

pub fn show(progress: &Progress, p: kprism_lab::Progress<'_>) {
    match p {
        kprism_lab::Progress::Step(text) => progress.long_step(text),
        kprism_lab::Progress::Console(line) => progress.detail(line),
        kprism_lab::Progress::Stdout(_) | kprism_lab::Progress::Stderr(_) => {}
    }
}

pub fn reason(ended: &Ended) -> Option<String> {
    match ended {
        Ended::Normal => None,
        Ended::Timeout => Some("time-out".into()),
        Ended::Interrupted => Some("interrupted".into()),
        Ended::Panic(words) => Some(format!("the guest's kernel panicked: {words}")),
        Ended::Failed(why) => Some(why.clone()),
    }
}

/// Says what went wrong, if anything did, with the end of the guest's console.
pub fn complain(ran: &Ran, progress: &Progress) {
    if let Some(reason) = reason(&ran.ended) {
        eprintln!("kprism: {reason}");
        if !ran.console_tail.is_empty() && ran.ended != Ended::Interrupted {
            let tail = crate::plain::plain(ran.console_tail.trim_end());
            eprintln!("last lines of the guest's console:\n{tail}");
        }
    }
    if progress.is_verbose() {
        eprintln!(
            "kprism: the guest took the command after {:.3} s, ended after {:.3} s",
            ran.start.as_secs_f64(),
            ran.wall.as_secs_f64()
        );
        for file in &ran.missing_files {
            eprintln!("kprism: no symbols of {file}: it was made in the guest");
        }
    }
}
