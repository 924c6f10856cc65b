// SPDX-License-Identifier: MIT OR Apache-2.0
//! Options of a guest, of what a command finds there, and of packets: those of every command that records in the guest.

use std::path::PathBuf;
use std::time::Duration;

use kprism_lab::{
    CpuFeature, Forward, Job, KernelSource, LikeHost, Network, Options, Pace, Share, Storage, Warm,
};
use kprism_profile::parse;
use kprism_record::guest::{self, Guest, Observe, Packets};
use kprism_record::here::OWN_STDIN;
use kprism_record::like_host;

use crate::given::Given;

/// Ids of the options of [`GuestArgs`].
pub const GUEST: [&str; 20] = [
    "kernel",
    "modules",
    "tree",
    "initrd",
    "root",
    "init",
    "disk",
    "storage",
    "module",
    "with_module",
    "package",
    "guest_image",
    "net",
    "smp",
    "mem",
    "append",
    "cpu_features",
    "fast",
    "refresh",
    "boot_timeout",
];
/// Ids of the options of [`PlaceArgs`] that only a guest has.
pub const GUEST_PLACE: [&str; 8] =
    ["share", "port", "before", "like_host", "warm", "keep_disks", "gdb", "max_size"];
/// Ids of the options of [`PlaceArgs`] that a command on this machine has too.
pub const PLACE: [&str; 4] = ["env", "cwd", "stdin", "timeout"];

/// Memory of a guest with Debian's kernel, MiB.
pub const MEM_MIB: u64 = 1024;

/// Refuses the options of a guest where there is none.
///
/// # Errors
/// Names the first that was typed.
pub fn no_guest(given: &Given) -> anyhow::Result<()> {
    match given.first(&[&GUEST_PLACE[..], &PLACE, &GUEST].concat()) {
        Some(option) => anyhow::bail!("{option} is about a guest: add --guest, or leave it out"),
        None => Ok(()),
    }
}

/// The guest's machine and what is in it, whichever kernel it boots.
#[derive(Debug, Clone, clap::Args)]
pub struct MachineArgs {
    /// Load this kernel module at boot, with those that it needs: a name, or a .ko file (can be repeated)
    #[arg(long, value_name = "MODULE", help_heading = "Guest")]
    pub module: Vec<String>,
    /// Have this Debian package in the guest (can be repeated)
    #[arg(long, value_name = "NAME", help_heading = "Guest")]
    pub package: Vec<String>,
    /// Take kernel and programs from this guest image (see `kprism lab save-guest`) instead of from apt [default: $KPRISM_GUEST_IMAGE]
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    pub guest_image: Option<PathBuf>,
    /// The guest's network: `user` reaches what this machine reaches; then no run is like another
    #[arg(long, value_enum, value_name = "none|user", default_value_t = Net::None, hide_possible_values = true, help_heading = "Guest")]
    pub net: Net,
    /// Virtual CPUs
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Guest")]
    pub smp: u32,
    /// Memory, with suffix M or G (M if none); if not given, 1G, and 768M of a kernel with gcov
    #[arg(long, value_name = "SIZE", value_parser = parse::mebibytes, help_heading = "Guest")]
    pub mem: Option<u64>,
    /// Add to the kernel's command line (can be repeated)
    #[arg(long, value_name = "WORDS", help_heading = "Guest")]
    pub append: Vec<String>,
    /// Add features to the CPUs (+) or remove them (-), by QEMU's names: --cpu-features=+erms,-avx2 (see docs/guest.md)
    #[arg(long, value_name = "±NAME,…", value_parser = CpuFeature::parse, value_delimiter = ',', allow_hyphen_values = true, help_heading = "Guest")]
    pub cpu_features: Vec<CpuFeature>,
    /// Run at host speed with parallel CPUs: faster, but no run is like another
    #[arg(long, help_heading = "Guest")]
    pub fast: bool,
}

impl MachineArgs {
    /// As the lab takes them; the other options are the lab's own.
    pub fn options(&self, default_mem_mib: u64) -> Options {
        Options {
            smp: self.smp,
            mem_mib: self.mem.unwrap_or(default_mem_mib),
            append: self.append.clone(),
            cpu_features: self.cpu_features.clone(),
            modules: self.module.clone(),
            packages: self.package.clone(),
            guest_image: self.guest_image.clone(),
            network: match self.net {
                Net::None => Network::None,
                Net::User => Network::User,
            },
            pace: if self.fast { Pace::Fast } else { Pace::Exact },
            ..Options::default()
        }
    }
}

/// Which guest.
#[derive(Debug, Clone, clap::Args)]
pub struct GuestArgs {
    /// Boot this kernel image (vmlinuz), or this kernel package of Debian (linux-image-…), instead of Debian's newest 6.12
    #[arg(long, value_name = "FILE", help_heading = "Guest")]
    kernel: Option<PathBuf>,
    /// Take the modules of `--kernel FILE` from this folder: lib/modules/RELEASE, or one with lib/modules in it [default: this machine's, if it has them]
    #[arg(long, value_name = "DIR", requires = "kernel", help_heading = "Guest")]
    modules: Option<PathBuf>,
    /// Boot the kernel that was built in this folder (that of `make O=` if there is one), with its modules and source lines
    #[arg(long, value_name = "DIR", conflicts_with = "kernel", help_heading = "Guest")]
    tree: Option<PathBuf>,
    /// Use this initramfs instead of Debian's programs
    #[arg(long, value_name = "FILE", group = "own_root", help_heading = "Guest")]
    initrd: Option<PathBuf>,
    /// Use this root file system and start its init: a disk image, folder, tar archive or container image, which is only read
    #[arg(long, value_name = "PATH", group = "own_root", conflicts_with = "initrd", help_heading = "Guest")]
    root: Option<PathBuf>,
    /// Start this program of --root or --initrd as process 1, or `none` [default: /sbin/init of --root, none of --initrd]
    #[arg(long, value_name = "PATH", value_parser = clap::builder::NonEmptyStringValueParser::new(), requires = "own_root", help_heading = "Guest")]
    init: Option<String>,
    /// Give the guest this disk image, as /dev/disk0 or, beside --root, /dev/disk1; the image is not changed (can be repeated)
    #[arg(long, value_name = "IMAGE", help_heading = "Guest")]
    disk: Vec<PathBuf>,
    /// Put the command's files on ext4 on a device each of whose requests takes time, by a preset or that time (see docs/guest.md)
    #[arg(long, value_name = "nvme|ssd|hdd|TIME|memory", default_value = "memory", value_parser = guest::storage, help_heading = "Guest")]
    storage: Storage,
    #[command(flatten)]
    pub machine: MachineArgs,
    /// Have this kernel module at hand, not loaded (can be repeated)
    #[arg(long, value_name = "MODULE", help_heading = "Guest")]
    pub with_module: Vec<String>,
    /// Ask apt for newer packages than those in the cache
    #[arg(long, conflicts_with = "guest_image", help_heading = "Guest")]
    refresh: bool,
    /// How long a boot may take
    #[arg(long, value_name = "SECONDS", default_value_t = 300, help_heading = "Guest")]
    boot_timeout: u64,
}

/// Options of the command's surroundings: folders, environment, input, time limit, GDB.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PlaceArgs {
    /// Give the guest a copy of this folder, at /share or at PLACE (can be repeated)
    #[arg(long, value_name = "DIR[:PLACE]")]
    pub share: Vec<String>,
    /// Lead this port of this machine into the guest, which has --net user; /udp after it for UDP (can be repeated)
    #[arg(long, value_name = "HOST:GUEST", value_parser = Forward::parse)]
    pub port: Vec<Forward>,
    /// Run this in a shell first, not recorded unless the boot is (can be repeated)
    #[arg(long, value_name = "CMD")]
    pub before: Vec<String>,
    /// Take over from this machine the modes of huge pages, limits of resources, LANG, LC_* and TZ (not umask), or those that a run took over (see docs/guest.md)
    #[arg(long, value_name = "RUN", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = like_host::parse)]
    pub like_host: Option<LikeHost>,
    /// Run the command so often first, in the same guest: not recorded, and its output is dropped (see docs/guest.md)
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub warm: u32,
    /// Keep the disks as they are at the end, in the run folder's disks/
    #[arg(long)]
    pub keep_disks: bool,
    /// Set an environment variable of the command (can be repeated)
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse::assignment)]
    pub env: Vec<(String, String)>,
    /// Working directory of the command
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Give the command this file as its standard input, `-` for kprism's own; in a guest it is empty otherwise
    #[arg(long, value_name = "FILE")]
    pub stdin: Option<PathBuf>,
    /// End the command after it ran for this time, and each turn of --warm; with --boot, the guest
    #[arg(long, value_name = "SECONDS")]
    pub timeout: Option<u64>,
    /// End the run when its streams have this size, such as 500M or 20G, and keep what was recorded
    #[arg(long, value_name = "SIZE", value_parser = parse::bytes)]
    pub max_size: Option<u64>,
    /// Have QEMU make this Unix socket, for GDB to attach to the guest (`target remote SOCKET`)
    #[arg(long, value_name = "SOCKET")]
    pub gdb: Option<PathBuf>,
}

impl PlaceArgs {
    /// The command with what it finds around it.
    pub fn job(&self, command: &[String]) -> Job {
        let stdin = self.stdin.as_ref().map(|path| match path.as_os_str() == "-" {
            true => OWN_STDIN.into(),
            false => path.clone(),
        });
        Job {
            env: self.env.clone(),
            cwd: self.cwd.clone(),
            before: self.before.clone(),
            like_host: self.like_host.clone().map(|like| like.without_variables(&self.env)),
            warm: Warm { turns: self.warm, argv: command.to_vec() },
            keeps_disks: self.keep_disks,
            stdin,
            ports: self.port.clone(),
            shares: self.share.iter().map(|text| Share::parse(text)).collect(),
            gdb: self.gdb.clone(),
            timeout: self.timeout.map(Duration::from_secs),
            max_bytes: self.max_size,
            ..Job::new(command.iter().cloned())
        }
    }
}

/// Which part of the flow is kept.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PartArgs {
    /// Keep only what led to this: `FUNC`, `FUNC%return`, or an interval as `irqs_off > 100us`, maybe with `if EXPR` (see docs/snapshots.md)
    #[arg(long, value_name = "CONDITION", help_heading = "Snapshots")]
    snapshot_when: Option<String>,
    /// How much of each CPU's stream a snapshot holds
    #[arg(long, value_name = "SIZE", default_value = "4M", value_parser = |text: &str| parse::bytes_within(text, 4 << 10, 16 << 30), requires = "snapshot_when", help_heading = "Snapshots")]
    snapshot_size: u64,
    /// Keep what runs from here on, each time: `FUNC`, `FUNC%return`, or the end of an interval, maybe with `if EXPR` (see docs/snapshots.md)
    #[arg(long, value_name = "CONDITION", conflicts_with = "snapshot_when", help_heading = "Windows")]
    from: Option<String>,
    /// Keep what runs until here, each time; without --from, what runs before the first
    #[arg(long, value_name = "CONDITION", conflicts_with = "snapshot_when", help_heading = "Windows")]
    until: Option<String>,
}

impl PartArgs {
    /// As the recorder takes them.
    pub fn observe(&self) -> Observe {
        match (&self.snapshot_when, &self.from, &self.until) {
            (Some(when), ..) => Observe::Snapshot { when: when.clone(), bytes: self.snapshot_size },
            (None, None, None) => Observe::Everything,
            (None, from, until) => Observe::Window { from: from.clone(), until: until.clone() },
        }
    }
}

/// Form of Intel PT's packets.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct PacketArgs {
    /// Compress returns to their calls, as processors do
    #[arg(long, value_enum, value_name = "ON|OFF", help_heading = "Packets")]
    retc: Option<Switch>,
    /// Bytes between synchronisation points (PSB): 2048 to 64 MiB in processors, which cannot do without
    #[arg(long, value_name = "BYTES", value_parser = psb(), help_heading = "Packets")]
    pub psb: Option<u64>,
    /// Mini time counter every 2^N crystal ticks (0 to 15), or `off`
    #[arg(long, value_name = "N|off", value_parser = guest::mtc, help_heading = "Packets")]
    pub mtc: Option<String>,
    /// Cycle counts at every packet, at least so many cycles apart (a power of two up to 16384), or `off`
    #[arg(long, value_name = "CYCLES|on|off", value_parser = guest::cyc, help_heading = "Packets")]
    pub cyc: Option<String>,
}

/// A guest's network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Net {
    /// Only `lo`
    None,
    /// QEMU's user mode network
    User,
}

/// Yes or no.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// Distances of PSB packets in bytes that the recorder takes; processors take powers of two from 2 KiB to 64 MiB (SDM,
/// IA32_RTIT_CTL.PSBFreq).
pub fn psb() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(256..=1 << 30)
}

impl GuestArgs {
    /// As the lab takes them.
    pub fn options(&self) -> Options {
        Options {
            kernel: match (&self.tree, &self.kernel) {
                (Some(tree), _) => KernelSource::Tree(tree.clone()),
                (None, Some(kernel)) => KernelSource::named(kernel),
                (None, None) => KernelSource::Newest,
            },
            module_folder: self.modules.clone(),
            initrd: self.initrd.clone(),
            root: self.root.clone(),
            init: self.init.as_ref().map(|init| if init == "none" { String::new() } else { init.clone() }),
            disks: self.disk.clone(),
            storage: self.storage.clone(),
            with_modules: self.with_module.clone(),
            refresh: self.refresh,
            boot_timeout: Duration::from_secs(self.boot_timeout),
            ..self.machine.options(MEM_MIB)
        }
    }

    /// A recorder that runs in this guest.
    pub fn guest(&self, job: Job) -> anyhow::Result<Guest> {
        use anyhow::Context as _;
        guest::accepts_limit(&job, false)?;
        let program = std::env::current_exe().context("kprism's own file, for the guest")?;
        Ok(Guest { options: self.options(), job, program })
    }
}

impl PacketArgs {
    /// As the library takes them.
    pub fn packets(&self) -> Packets {
        Packets {
            retc: self.retc.map(|switch| matches!(switch, Switch::On)),
            psb: self.psb,
            mtc: self.mtc.clone(),
            cyc: self.cyc.clone(),
            user_only: false,
        }
    }
}
