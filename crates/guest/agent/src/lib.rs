// SPDX-License-Identifier: MIT OR Apache-2.0
//! The protocol between the host and the guest's agent.
//!
//! Input: a [`Job`] through QEMU's fw_cfg device. The agent polls for it, so neither an interrupt nor a queue of the
//! host ever reaches the guest, and a run depends on its inputs only. Output: [`Message`]s, one JSON object per line,
//! through a debug port that QEMU writes to a file. The command's standard output and error go through two more such
//! ports. The program itself (`main.rs`) is /init of the guest.

pub mod content;
pub mod gcov;
pub mod mark;

use serde::{Deserialize, Serialize};

/// Port of the `isa-debugcon` that carries [`Message`]s.
pub const CONTROL_PORT: u16 = 0xe9;
/// Port of the `isa-debugcon` that carries the command's standard output.
pub const STDOUT_PORT: u16 = 0xea;
/// Port of the `isa-debugcon` that carries the command's standard error.
pub const STDERR_PORT: u16 = 0xeb;
/// Port of the `pvpanic` device. Writing [`PAUSE`] stops the machine at that very instruction, so that a snapshot is
/// the same whenever and wherever it is made.
pub const PAUSE_PORT: u16 = 0x505;
/// The value to write to [`PAUSE_PORT`].
pub const PAUSE: u8 = 1;
/// Port of `isa-debug-exit`: any byte written ends QEMU.
pub const EXIT_PORT: u16 = 0xf4;
/// fw_cfg name of the [`Job`], as JSON.
pub const JOB_FILE: &str = "opt/kprism/job";
/// fw_cfg name of the shared files: a `newc` cpio archive with names relative to the guest's root.
pub const SHARE_FILE: &str = "opt/kprism/share";
/// File with the command's standard input, among the shared files, if it has one.
pub const STDIN_FILE: &str = "/.kprism/stdin";
/// Folder of the agent's own files in the initramfs.
pub const AGENT_FOLDER: &str = "/.kprism";
/// List of kernel modules to load at boot, in order, one path per line.
pub const MODULE_LIST: &str = "/.kprism/modules";
/// Prefix of a path in [`MODULE_LIST`]: the kernel may refuse this module.
pub const OPTIONAL_MODULE: &str = "?";
/// If this file exists, `depmod` must run: there are modules for `modprobe` to find.
pub const DEPMOD_WANTED: &str = "/.kprism/depmod";
/// Link to a disk in the guest, with the disk's number after it: 0 is the root's if that is on a disk. The kernel's own
/// names do not follow the order of QEMU's arguments.
pub const DISK_LINK: &str = "/dev/disk";
/// The [`RootPlan`], as JSON, if the guest has disks or a root file system of the user's.
pub const ROOT_FILE: &str = "/.kprism/root";
/// File system by which modules are laid over those of an image, in [`RootPlan::filesystems`].
pub const OVERLAY: &str = "overlay";
/// If this file exists, the root is a container image. It is not booted unless the user names an init.
pub const CONTAINER_MARK: &str = "/.kprism/container";
/// The agent in an initramfs that is the user's root, whose own `/init` stays. The kernel finds it by `rdinit=`.
pub const OWN_INIT: &str = "/.kprism/init";
/// The [`StoragePlan`], as JSON, if files of the guest are on a device whose requests take time.
pub const STORAGE_FILE: &str = "/.kprism/storage";
/// Folder on which the file system of that device is mounted.
pub const STORAGE: &str = "/storage";
/// Folders of the guest whose files are on that device: the command's own folder, and those for files that come and go.
pub const STORED: [&str; 3] = ["/root", "/tmp", "/var/tmp"];
/// State of an init that has started everything.
pub const INIT_READY: &str = "running";
/// The user's disks and root file system, and what to start in it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RootPlan {
    /// Number of disks.
    pub disks: usize,
    /// True if the root file system is on the first disk, or on a partition of it. Otherwise the initramfs is the root.
    pub on_disk: bool,
    /// Program to start as process 1. `None`: `/sbin/init` if there is one. Empty: none; the agent stays process 1.
    pub init: Option<String>,
    /// True if an `/init` that is not started is told: that of an initrd, of which the user says nothing.
    #[serde(default)]
    pub tells_unused_init: bool,
    /// File systems that are modules of the kernel: name, paths of modules in an order in which they can be loaded.
    pub filesystems: Vec<(String, Vec<String>)>,
}

/// A device of the guest kernel's own whose requests take time (drivers/block/null_blk), with ext4 on it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoragePlan {
    /// Time that a request takes, ns.
    pub request_ns: u64,
    /// Number of requests that the device works on at a time.
    pub depth: u32,
    /// True for a disk that turns.
    pub rotates: bool,
    /// Size of the device, MiB. It is memory of the guest's, taken as it is written.
    pub mib: u64,
    /// Lines as in [`MODULE_LIST`]: the modules of the device and of its file system.
    pub modules: Vec<String>,
}

/// One command to run in the guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// Program and arguments; the program is looked up in the job's `PATH`.
    pub argv: Vec<String>,
    /// The whole environment, `NAME=value` pairs.
    #[serde(default)]
    pub env: Vec<(String, String)>,
    /// Working directory; empty means `/root`.
    #[serde(default)]
    pub cwd: String,
    /// Shell commands to run first, outside the marks. If one fails, the job ends.
    #[serde(default)]
    pub before: Vec<String>,
    /// Turns of the command before the recorded one; after [`Job::before`], before [`Job::begin`].
    #[serde(default)]
    pub warm: Warm,
    /// Shell commands to run between the warm-up turns and the command, outside the marks: they switch on what is to see the
    /// recorded turn alone. If one fails, the job ends.
    #[serde(default)]
    pub begin: Vec<String>,
    /// Shell commands to run after the command, outside the marks. Their output is sent as [`Message::After`]; their
    /// failure has no effect.
    #[serde(default)]
    pub after: Vec<String>,
    /// True if the archive [`SHARE_FILE`] exists and must be unpacked.
    #[serde(default)]
    pub share: bool,
    /// True if the command's standard input is [`STDIN_FILE`]; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// A folder to send to the host after the command, as [`Message::Piece`]s; empty for none. If it does not exist,
    /// nothing is sent.
    #[serde(default)]
    pub collect: String,
    /// The way to read the kernel's coverage counters right before the command and right after it.
    #[serde(default)]
    pub counters: CounterReading,
    /// Files to send to the host instead of running a command, as [`Message::Piece`]s of an archive; absolute paths. Those
    /// that do not exist are left out.
    #[serde(default)]
    pub files: Vec<String>,
    /// True if written data must be on the disks when the job ends.
    #[serde(default)]
    pub sync: bool,
    /// True if the command is a recorder that starts the user's command, and marks where that begins and ends.
    #[serde(default)]
    pub marked_by_command: bool,
    /// True if the command makes the guest ready for another job. If it ends with 0, the guest stops itself to be saved, and
    /// waits for a job other than this one.
    #[serde(default)]
    pub makes_ready: bool,
    /// True if the command leaves the kernel's function tracer on. The symbols that the tracer adds are not asked for.
    #[serde(default)]
    pub leaves_tracer: bool,
}

/// Turns of a command that are not recorded, and leave the guest warm: files in the page cache, compiled modules, page tables.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warm {
    /// Their number.
    pub turns: u32,
    /// The user's command. [`Job::argv`] may be a recorder that starts it.
    pub argv: Vec<String>,
}

/// Ways to read the kernel's coverage counters. With any of them, an empty [`Job::argv`] is an empty window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CounterReading {
    /// The counters are not read.
    #[default]
    None,
    /// The guest stops its machine, and the host reads the counters from the guest's memory ([`Message::Counters`]). No
    /// kernel code runs for it. If guest time follows the instructions, its clock may jump meanwhile; see
    /// [`CounterReading::Held`].
    Stopped,
    /// Like [`CounterReading::Stopped`], but the observer holds the thread of the vCPUs. This is exact, but works only if all
    /// vCPUs share that thread (guest time follows the instructions).
    Held,
    /// The agent reads `/sys/kernel/debug/gcov`, and sends the archives of [`gcov::Session`] to the host.
    Read,
}

/// A range of the guest's memory that the host reads: a file that is too large for a port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Length in bytes.
    pub len: u64,
    /// Physical pieces in order, `(address, bytes)`.
    pub runs: Vec<(u64, u64)>,
}

/// A message from the agent to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Message {
    /// The guest has started, and stops itself until there is a job. While it is stopped, `kallsyms`, `btf` and
    /// `vdso` can be read from its memory.
    Ready {
        /// `uname -r`.
        release: String,
        /// `/proc/kallsyms`.
        kallsyms: Option<Region>,
        /// `/sys/kernel/btf/vmlinux`.
        btf: Option<Region>,
        /// The vDSO, an ELF file that the kernel maps into each program; no file system has it.
        vdso: Option<Region>,
        /// `/proc/modules`.
        modules: String,
        /// The kernel's build ID note, lower-case hex.
        build_id: String,
    },
    /// The guest stops itself now.
    Stops {
        /// Its time stamp counter, which counts nanoseconds if guest time follows the instructions.
        at_ns: u64,
    },
    /// The guest's own init has started it, as far as it does.
    Init {
        /// Its state in words; see [`INIT_READY`].
        state: String,
    },
    /// A job was read.
    Accepted,
    /// A warm-up turn ended ([`Job::warm`]).
    Turn {
        /// Its exit status, as that of [`Message::Exit`].
        code: u8,
    },
    /// The command runs.
    Started {
        /// Its process ID in the guest.
        pid: u32,
    },
    /// The job could not be run. No `Exit` follows.
    Failed {
        /// The error.
        what: String,
    },
    /// One of the job's commands for afterwards ended.
    After {
        /// Its output, including errors.
        output: String,
    },
    /// The next piece of the `newc` archive of [`Job::collect`], with names relative to it. The guest stops itself
    /// until the host has read the piece and resumes it.
    Piece {
        /// Memory of the piece.
        region: Region,
    },
    /// The guest stops itself until the host has read the kernel's coverage counters from its memory.
    Counters {
        /// Name of the archive for these counters, in the folder of `kprism_layout::GcovFiles`.
        name: String,
    },
    /// The command ended.
    Exit {
        /// Its exit status as in a shell: the exit code, or 128 + signal; 127 not found, 126 not executable.
        code: u8,
    },
    /// Modules after the run, if they differ from those at [`Message::Ready`].
    Modules {
        /// `/proc/modules`.
        modules: String,
        /// The lines of `/proc/kallsyms` that belong to modules and BPF programs.
        kallsyms: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_comes_to_the_agent_as_it_was_sent() {
        let job = Job {
            argv: vec!["recorder".into(), "cat".into(), "a b".into()],
            warm: Warm { turns: 2, argv: vec!["cat".into(), "a b".into()] },
            begin: vec!["echo 1 > /begun".into()],
            stdin: true,
            ..Job::default()
        };
        let text = serde_json::to_string(&job).unwrap();
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
        // A job that says nothing of it has no warm-up.
        let short: Job = serde_json::from_str(r#"{"argv": ["true"]}"#).unwrap();
        assert_eq!((short.warm, short.begin.len()), (Warm::default(), 0));
        let turn = Message::Turn { code: 137 };
        let line = serde_json::to_string(&turn).unwrap();
        assert_eq!(
            (line.as_str(), serde_json::from_str::<Message>(&line).unwrap()),
            (r#"{"m":"turn","code":137}"#, turn)
        );
    }
}
