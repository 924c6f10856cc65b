// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the user may choose.

use std::path::PathBuf;
use std::time::Duration;

use kprism_agent::Counters;

/// The guest: what a snapshot is made for.
#[derive(Debug, Clone)]
pub struct Options {
    /// Virtual CPUs.
    pub smp: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// More words for the kernel's command line.
    pub append: Vec<String>,
    /// A kernel image to boot instead of Debian's.
    pub kernel: Option<PathBuf>,
    /// An initramfs to use instead of Debian's programs; ours is laid over it.
    pub initrd: Option<PathBuf>,
    /// Modules loaded at boot, with what they need: names, or paths of .ko files.
    pub modules: Vec<String>,
    /// Modules that are only there, for `modprobe` or `insmod` in the command.
    pub with_modules: Vec<String>,
    /// More Debian packages in the guest.
    pub packages: Vec<String>,
    /// How the guest's time and CPUs run.
    pub pace: Pace,
    /// Ask apt again for newer packages, instead of what the cache remembers.
    pub refresh: bool,
    /// How long a boot may take.
    pub boot_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            smp: 1,
            mem_mib: 1024,
            append: Vec::new(),
            kernel: None,
            initrd: None,
            modules: Vec::new(),
            with_modules: Vec::new(),
            packages: Vec::new(),
            pace: Pace::Exact,
            refresh: false,
            boot_timeout: Duration::from_secs(300),
        }
    }
}

/// How the guest's time and CPUs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// One instruction is one nanosecond, CPUs take turns: the same run every time.
    Exact,
    /// Time is the host's, CPUs run in parallel: faster, never twice the same.
    Fast,
}

/// One command to run in a prepared guest.
#[derive(Debug, Clone)]
pub struct Job {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// More of the environment, or other values for what [`Job::ENVIRONMENT`] has.
    pub env: Vec<(String, String)>,
    /// Working directory in the guest; `/root` if none.
    pub cwd: Option<String>,
    /// Shell commands run first, unobserved unless the boot is.
    pub before: Vec<String>,
    /// Shell commands run once the command has ended, unobserved unless the boot is; see [`crate::Outcome::after`].
    pub after: Vec<String>,
    /// The command's standard input: a file of the host, which the guest gets a copy of. Empty if none.
    pub stdin: Option<PathBuf>,
    /// Folders of the host that the guest gets a copy of.
    pub shares: Vec<Share>,
    /// A folder of the guest whose contents are copied into the run's folder once the command has ended.
    pub collect: Option<String>,
    /// When it is to end early, a process of the guest's is asked first, by Ctrl-Alt-Del: that of `kernel.cad_pid`. It
    /// must see to it that the command ends.
    pub asks_first: bool,
    /// How the kernel's coverage counters are taken before the command and after it, as archives below `streams/gcov` of
    /// the run; with that, an empty [`Job::argv`] is an empty window.
    pub counters: Counters,
    /// Where GDB can attach to the guest: a Unix socket, made by QEMU.
    pub gdb: Option<PathBuf>,
    /// What is observed.
    pub span: Span,
    /// How long the command may take from its start on; with the boot, if that is observed.
    pub timeout: Option<Duration>,
}

impl Job {
    /// The environment every command gets.
    pub const ENVIRONMENT: [(&str, &str); 5] = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/root"),
        ("USER", "root"),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
    ];

    /// A job with nothing but a command.
    pub fn new(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            before: Vec::new(),
            after: Vec::new(),
            stdin: None,
            shares: Vec::new(),
            collect: None,
            asks_first: false,
            counters: Counters::None,
            gdb: None,
            span: Span::Command,
            timeout: None,
        }
    }
}

/// A folder (or file) of the host, copied into the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Where it is.
    pub host: PathBuf,
    /// Where it goes: an absolute path.
    pub guest: String,
}

impl Share {
    /// `DIR` goes to `/share`, `DIR:/PLACE` to `/PLACE`.
    pub fn parse(text: &str) -> Self {
        match text.rsplit_once(':') {
            Some((host, guest)) if guest.starts_with('/') && !host.is_empty() => {
                Self { host: host.into(), guest: guest.into() }
            }
            _ => Self { host: text.into(), guest: "/share".into() },
        }
    }
}

/// What is observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// The command only, started from a snapshot.
    Command,
    /// Everything from the guest's first instruction on.
    Boot,
}

/// The observer, and how it writes its packets.
#[derive(Debug, Clone)]
pub struct ObserverOptions {
    /// The plugin, `libkprism_observer.so`.
    pub plugin: PathBuf,
    /// Further arguments of the plugin, `key=value`: `retc`, `psb`, `mtc`, `cyc`. What says where and when
    /// to observe is added here.
    pub arguments: Vec<(String, String)>,
}

/// What is going on. Texts are for people.
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
}

/// Where progress goes.
pub type Report<'a> = &'a mut dyn FnMut(Progress<'_>);
