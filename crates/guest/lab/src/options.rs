// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of the guest and of a job.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kprism_agent::{CounterReading, Warm};

use crate::cpu::CpuFeature;
use crate::like_host::LikeHost;
use crate::network::{Forward, Network};
use crate::storage::Storage;
use crate::written::Written;

/// The guest for which a snapshot is made.
#[derive(Debug, Clone)]
pub struct Options {
    /// Virtual CPUs.
    pub smp: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// Additional words for the kernel's command line.
    pub append: Vec<String>,
    /// Features added to the CPUs or removed from them.
    pub cpu_features: Vec<CpuFeature>,
    /// The kernel to boot.
    pub kernel: KernelSource,
    /// The modules of a kernel image: `lib/modules/RELEASE`, or a folder with `lib/modules` in it. Only with
    /// [`KernelSource::Image`].
    pub module_folder: Option<PathBuf>,
    /// A guest image with the kernel and the programs, instead of Debian's packages from apt.
    pub guest_image: Option<PathBuf>,
    /// An initramfs to use instead of Debian's programs. kprism's own files are laid over it.
    pub initrd: Option<PathBuf>,
    /// A root file system of the user's instead of Debian's programs: a disk image, a folder, a tar archive or a container
    /// image.
    pub root: Option<PathBuf>,
    /// Program of that root, or of the initrd, to start as process 1. `None`: `/sbin/init` of a root that has one. Empty: none.
    pub init: Option<String>,
    /// More disks of the guest: images, raw or of a format of QEMU's. In the guest
    /// they are [`kprism_agent::DISK_LINK`] with their numbers.
    pub disks: Vec<PathBuf>,
    /// Medium of the command's files.
    pub storage: Storage,
    /// Modules loaded at boot, with their dependencies: names, or paths of .ko files.
    pub modules: Vec<String>,
    /// Modules that are available but not loaded, for `modprobe` or `insmod` in the command.
    pub with_modules: Vec<String>,
    /// Additional Debian packages in the guest.
    pub packages: Vec<String>,
    /// The guest's network.
    pub network: Network,
    /// Pace of the guest's time and CPUs.
    pub pace: Pace,
    /// If true, apt is asked again for newer packages, instead of using the cache's answers.
    pub refresh: bool,
    /// Maximum duration of a boot.
    pub boot_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            smp: 1,
            mem_mib: 1024,
            append: Vec::new(),
            cpu_features: Vec::new(),
            kernel: KernelSource::Newest,
            module_folder: None,
            guest_image: None,
            initrd: None,
            root: None,
            init: None,
            disks: Vec::new(),
            storage: Storage::Memory,
            modules: Vec::new(),
            with_modules: Vec::new(),
            packages: Vec::new(),
            network: Network::None,
            pace: Pace::Exact,
            refresh: false,
            boot_timeout: Duration::from_secs(300),
        }
    }
}

/// Source of the guest's kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum KernelSource {
    /// Debian's newest of the series 6.12.
    #[default]
    Newest,
    /// This package of Debian's kernels, `linux-image-…`.
    Package(String),
    /// This image (vmlinuz). Its modules are those of [`Options::module_folder`], or else those of the host's `/lib/modules`, if
    /// that has its release.
    Image(PathBuf),
    /// The folder in which somebody built a kernel: that of `.config` and `vmlinux`.
    Tree(PathBuf),
}

impl KernelSource {
    /// Beginning of the names of Debian's kernel packages.
    pub const PACKAGE: &str = "linux-image-";

    /// A package if this is the name of one, and no file has it; else an image.
    pub fn named(given: &Path) -> Self {
        match given.to_str() {
            Some(name) if name.starts_with(Self::PACKAGE) && !name.contains('/') && !given.exists() => {
                Self::Package(name.to_owned())
            }
            _ => Self::Image(given.to_owned()),
        }
    }
}

/// Pace of the guest's time and CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// One instruction takes one nanosecond, and CPUs take turns: every run is the same.
    Exact,
    /// Guest time is the host's, and CPUs run in parallel: faster, but no two runs are the same.
    Fast,
}

/// One command to run in a prepared guest.
#[derive(Debug, Clone)]
pub struct Job {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Additional environment variables, or other values for those of [`Job::ENVIRONMENT`].
    pub env: Vec<(String, String)>,
    /// Values of the recording machine that the guest takes over before [`Job::before`]. Variables of [`Job::env`] go before its own.
    pub like_host: Option<LikeHost>,
    /// Working directory in the guest; `/root` if none.
    pub cwd: Option<String>,
    /// Shell commands to run first. They are observed only if the boot is.
    pub before: Vec<String>,
    /// Turns of the user's command before the recorded one, in the same guest and surroundings. They come after [`Job::before`]; their
    /// output is dropped. [`Job::timeout`] is the time of each turn.
    pub warm: Warm,
    /// Shell commands to run after the warm-up turns, right before the command, as [`Job::before`] otherwise. They switch on what
    /// is to see the recorded turn alone.
    pub begin: Vec<String>,
    /// Shell commands to run after the command. They are observed only if the boot is; see [`crate::Outcome::after`].
    pub after: Vec<String>,
    /// The command's standard input: a file of the host, which is copied to the guest. Empty if `None`.
    pub stdin: Option<PathBuf>,
    /// Folders of the host that are copied to the guest.
    pub shares: Vec<Share>,
    /// Ports of this machine that lead into the guest, which must have a network.
    pub ports: Vec<Forward>,
    /// A folder of the guest whose contents are copied to the run's folder after the command.
    pub collect: Option<String>,
    /// If the command is to end early, a process of the guest is notified first, by Ctrl-Alt-Del: that of
    /// `kernel.cad_pid`. It must make the command end.
    pub asks_first: bool,
    /// The way to read the kernel's coverage counters before the command and after it, as archives below `streams/gcov`
    /// of the run. With any, an empty [`Job::argv`] is an empty window.
    pub counters: CounterReading,
    /// Coverage counters are added up in windows between the observer's conditions, too. [`Job::counters`] must be
    /// [`CounterReading::Held`], and the observer must have conditions.
    pub windows: Option<CounterWindows>,
    /// If true, the command is a recorder that starts the user's command, and marks for the observer where that begins and
    /// ends.
    pub marked_by_command: bool,
    /// If true, the command leaves the kernel's function tracer on. The symbols that the tracer adds are no part of the run.
    pub leaves_tracer: bool,
    /// If true, the disks as the job leaves them are kept in the folder `disks` of the run.
    pub keeps_disks: bool,
    /// Unix socket at which GDB can attach to the guest. QEMU creates it.
    pub gdb: Option<PathBuf>,
    /// The observed part of the run.
    pub span: Span,
    /// Maximum duration of the command from its start, and of each of its warm-up turns; including the boot, if that is observed.
    pub timeout: Option<Duration>,
    /// Bytes of the observer's streams at which the run is ended. The recorder may pass it by what it still has in memory.
    pub max_bytes: Option<u64>,
}

impl Job {
    /// The environment of every command.
    pub const ENVIRONMENT: [(&str, &str); 5] = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
        ("USER", "root"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
    ];

    /// A job with only a command.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            like_host: None,
            cwd: None,
            before: Vec::new(),
            warm: Warm::default(),
            begin: Vec::new(),
            after: Vec::new(),
            stdin: None,
            shares: Vec::new(),
            ports: Vec::new(),
            collect: None,
            asks_first: false,
            counters: CounterReading::None,
            windows: None,
            marked_by_command: false,
            leaves_tracer: false,
            keeps_disks: false,
            gdb: None,
            span: Span::Command,
            timeout: None,
            max_bytes: None,
        }
    }
}

/// Windows in which coverage counters are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterWindows {
    /// The first window opens where the command begins, not at a condition.
    pub opens_at_begin: bool,
    /// The observer's streams, which are of the same windows, are kept in the run.
    pub keeps_streams: bool,
}

/// A folder (or file) of the host, copied into the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Its path on the host.
    pub host: PathBuf,
    /// Its absolute path in the guest.
    pub guest: String,
}

impl Share {
    /// Parses a share: `DIR` goes to `/share`, `DIR:/PLACE` to `/PLACE`.
    pub fn parse(text: &str) -> Self {
        match text.rsplit_once(':') {
            Some((host, guest)) if guest.starts_with('/') && !host.is_empty() => {
                Self { host: host.into(), guest: guest.into() }
            }
            _ => Self { host: text.into(), guest: "/share".into() },
        }
    }
}

/// As [`Share::parse`] reads it.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host.display())?;
        if self.guest == "/share" { Ok(()) } else { write!(f, ":{}", self.guest) }
    }
}

/// The observed part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// The command only, started from a snapshot.
    Command,
    /// Everything from the guest's first instruction on.
    Boot,
}

/// The observer, and options for its packets.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// The plugin, `libkprism_observer.so`.
    pub plugin: PathBuf,
    /// Further arguments of the plugin, `key=value`: `retc`, `psb`, `mtc`, `cyc`. Arguments for the place and time of
    /// observation are added by the lab.
    pub arguments: Vec<(String, String)>,
}

/// A progress message. Texts are for people.
#[derive(Debug, Clone, Copy)]
pub enum Progress<'a> {
    /// A step of the preparation begins, such as a download; they take seconds to minutes.
    Step(&'a str),
    /// The guest boots; the newest line of its console.
    Console(&'a str),
    /// The command wrote this to its standard output.
    Stdout(&'a [u8]),
    /// The command wrote this to its standard error.
    Stderr(&'a [u8]),
    /// The recording has this size; told once a second.
    Written(Written),
}

/// Receives progress messages.
pub type Report<'a> = &'a mut dyn FnMut(Progress<'_>);
