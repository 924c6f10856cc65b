// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism lab`: commands in a guest with a stock kernel, watched from outside.

use std::io::{IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use kprism_lab::{Ended, Job, ObserverOptions, Options, Outcome as Ran, Pace, Prepared, Share, Span};
use kprism_store::{Kernel, Manifest, Run, RunKind};

use crate::exit::{self, Outcome};
use crate::pipeline;
use crate::progress::Progress;

/// What to do with the lab.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run a command in the guest and record every instruction of it and its kernel
    #[command(after_help = RUN_HELP)]
    Run(Box<RunArgs>),
    /// Fetch and boot the guest now, so that the next run starts at once
    Prepare(GuestArgs),
}

const RUN_HELP: &str = "\
The command's output is passed through and kept in RUN/stdout and RUN/stderr.

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
    module: Vec<String>,
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
    #[arg(short, long, value_name = "RUN", default_value = crate::DEFAULT_RUN)]
    output: PathBuf,
    /// Give the guest a copy of this folder, at /share or at PLACE (can be repeated)
    #[arg(long, value_name = "DIR[:PLACE]")]
    pub share: Vec<String>,
    /// Run this in a shell first, not recorded (can be repeated)
    #[arg(long, value_name = "CMD")]
    pub before: Vec<String>,
    /// Set an environment variable of the command (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = assignment)]
    pub env: Vec<(String, String)>,
    /// Working directory of the command in the guest
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Record the whole boot, not only the command
    #[arg(long)]
    boot: bool,
    /// End the command after this time
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// Run without recording anything
    #[arg(long)]
    unobserved: bool,
    /// Do not decode yet
    #[arg(long)]
    no_decode: bool,
    #[command(flatten)]
    guest: GuestArgs,
    #[command(flatten)]
    packets: PacketArgs,
}

/// How packets are written.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PacketArgs {
    /// Compress returns to their calls, as processors do
    #[arg(long, value_enum, value_name = "ON|OFF", help_heading = "Packets")]
    retc: Option<Switch>,
    /// Bytes between synchronisation points (PSB)
    #[arg(long, value_name = "BYTES", help_heading = "Packets")]
    psb: Option<u64>,
    /// Mini time counter every 2^N crystal ticks, or `off`
    #[arg(long, value_name = "N|off", help_heading = "Packets")]
    mtc: Option<String>,
    /// Cycle-accurate time
    #[arg(long, value_enum, value_name = "ON|OFF", help_heading = "Packets")]
    cyc: Option<Switch>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Switch {
    On,
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

pub fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

impl GuestArgs {
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
            ("cyc", self.cyc.map(word)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

impl RunArgs {
    /// A command, recorded to `output`.
    pub fn of(command: &[String], output: PathBuf, guest: &GuestArgs) -> Self {
        Self {
            command: command.to_vec(),
            output,
            share: Vec::new(),
            before: Vec::new(),
            env: Vec::new(),
            cwd: None,
            boot: false,
            timeout: None,
            unobserved: false,
            no_decode: false,
            guest: guest.clone(),
            packets: PacketArgs::default(),
        }
    }

    /// What the guest is to do.
    pub fn job(&self) -> Job {
        Job {
            argv: self.command.clone(),
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            before: self.before.clone(),
            after: Vec::new(),
            shares: self.share.iter().map(|text| Share::parse(text)).collect(),
            span: if self.boot { Span::Boot } else { Span::Command },
            timeout: self.timeout.map(Duration::from_secs),
        }
    }

    fn observer(&self) -> Result<Option<ObserverOptions>> {
        if self.unobserved {
            return Ok(None);
        }
        let plugin = kprism_lab::find_observer()?;
        Ok(Some(ObserverOptions { plugin, arguments: self.packets.plugin_arguments() }))
    }

    fn manifest(&self, prepared: &Prepared) -> Manifest {
        let mut m = Manifest::new(RunKind::Lab, self.guest.smp);
        m.command = self.command.clone();
        let kernel = prepared.kernel();
        m.kernel = Some(Kernel { release: kernel.release.clone(), build_id: kernel.build_id.clone() });
        m.created = pipeline::now();
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
            ("share", self.share.clone().into()),
            ("before", self.before.clone().into()),
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
    let prepared = match kprism_lab::prepare(&args.options(), &mut |p| show(progress, p)) {
        Err(kprism_lab::Error::Interrupted) => return Ok(Outcome::Code(exit::INTERRUPTED)),
        other => other?,
    };
    progress.clear();
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
    match record_and_decode(args, progress, out) {
        Err(error) => match error.downcast_ref::<kprism_lab::Error>() {
            Some(kprism_lab::Error::Interrupted) => Ok(Outcome::Code(exit::INTERRUPTED)),
            _ => Err(error),
        },
        done => done,
    }
}

fn record_and_decode(args: &RunArgs, progress: &Progress, out: &mut dyn Write) -> Result<Outcome> {
    let mut output = Output { out, progress, live: !std::io::stdout().is_terminal(), open: true };
    let (run, ran) = record(args, &args.job(), progress, &mut |p| output.pass(p))?;
    complain(&ran, progress);
    if ran.ended == Ended::Interrupted {
        progress.say(&format!("what was recorded is in {}", run.dir().display()));
    } else if !args.unobserved && !args.no_decode {
        pipeline::decode(&run, progress)?;
        progress.clear();
        progress.say(&pipeline::summary(&run)?);
    }
    Ok(Outcome::Code(match ran.ended {
        Ended::Normal => ran.exit_code.unwrap_or(exit::LAB_FAILED),
        Ended::Timeout => exit::TIMED_OUT,
        Ended::Interrupted => exit::INTERRUPTED,
        Ended::Panic(_) | Ended::Failed(_) => exit::LAB_FAILED,
    }))
}

/// Prepares the guest, runs `job` and records it, without decoding yet.
pub fn record(
    args: &RunArgs,
    job: &Job,
    progress: &Progress,
    report: kprism_lab::Report<'_>,
) -> Result<(Run, Ran)> {
    let observer = args.observer()?;
    let prepared = kprism_lab::prepare(&args.guest.options(), &mut |p| show(progress, p))?;
    let run = Run::create(&args.output)?;
    let mut manifest = args.manifest(&prepared);
    run.write_manifest(&manifest)?;
    progress.clear();
    if !std::io::stdout().is_terminal() {
        progress.step("running the command");
    }
    let ran = kprism_lab::run(&prepared, job, run.dir(), observer.as_ref(), report)?;
    progress.clear();

    manifest.exit_code = ran.exit_code.map(i32::from);
    manifest.stopped = reason(&ran.ended);
    if observer.is_some() {
        pipeline::complete(&run, &mut manifest)?;
    }
    run.write_manifest(&manifest)?;
    Ok((run, ran))
}

/// Passes the guest's output on.
struct Output<'a> {
    out: &'a mut dyn Write,
    progress: &'a Progress,
    /// Whether a live line may stay while the command runs: not when its output goes to the same terminal.
    live: bool,
    /// Until nobody reads standard output any more; the recording goes on nevertheless.
    open: bool,
}

impl Output<'_> {
    fn pass(&mut self, p: kprism_lab::Progress<'_>) {
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
fn complain(ran: &Ran, progress: &Progress) {
    if let Some(reason) = reason(&ran.ended) {
        eprintln!("kprism: {reason}");
        if !ran.console_tail.is_empty() && ran.ended != Ended::Interrupted {
            eprintln!("last lines of the guest's console:\n{}", ran.console_tail.trim_end());
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
