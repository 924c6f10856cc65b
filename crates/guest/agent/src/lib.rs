// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the host and the guest's agent say to each other.
//!
//! In: a [`Job`] through QEMU's fw_cfg device, polled by the agent, so that no interrupt and no queue of the
//! host's making ever reaches the guest: a run stays a function of its inputs. Out: [`Message`]s, one JSON
//! object a line, through a debug port that QEMU writes to a file; the command's standard output and error go
//! through two more such ports. The program itself (`main.rs`) is /init of the guest.

pub mod gcov;

use serde::{Deserialize, Serialize};

/// Port of the `isa-debugcon` that carries [`Message`]s.
pub const CONTROL_PORT: u16 = 0xe9;
/// Port of the `isa-debugcon` that carries the command's standard output.
pub const STDOUT_PORT: u16 = 0xea;
/// Port of the `isa-debugcon` that carries the command's standard error.
pub const STDERR_PORT: u16 = 0xeb;
/// Port of the `pvpanic` device: writing [`PAUSE`] stops the machine at that very instruction, so that a snapshot
/// is the same whenever and wherever it is made.
pub const PAUSE_PORT: u16 = 0x505;
/// See [`PAUSE_PORT`].
pub const PAUSE: u8 = 1;
/// Port of `isa-debug-exit`: any byte written ends QEMU.
pub const EXIT_PORT: u16 = 0xf4;
/// fw_cfg name of the [`Job`], as JSON.
pub const JOB_FILE: &str = "opt/kprism/job";
/// fw_cfg name of the shared files: a `newc` cpio archive with names relative to the guest's root.
pub const SHARE_FILE: &str = "opt/kprism/share";
/// Where the shared files hold the command's standard input, if it has one.
pub const STDIN_FILE: &str = "/.kprism/stdin";
/// Where the initramfs keeps what is the agent's own.
pub const AGENT_FOLDER: &str = "/.kprism";
/// List of kernel modules to load at boot, one path a line, in order.
pub const MODULE_LIST: &str = "/.kprism/modules";
/// Before a path of [`MODULE_LIST`]: the kernel may refuse this module.
pub const OPTIONAL_MODULE: &str = "?";
/// Its presence asks for `depmod`: there are modules for `modprobe` to find.
pub const DEPMOD_WANTED: &str = "/.kprism/depmod";
/// CPUID leaf of the marks ("KPRI"): no CPU defines it, so it is harmless where nobody looks.
pub const MARK_LEAF: u32 = 0x4b50_5249;
/// CPUID subleaf: the command begins.
pub const MARK_BEGIN: u32 = 1;
/// CPUID subleaf: the command has ended.
pub const MARK_END: u32 = 2;
/// CPUID subleaf: the guest stands still until the host has read its memory.
pub const MARK_STOP: u32 = 3;

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
    /// Shell commands to run first, outside the marks; the first that fails ends the job.
    #[serde(default)]
    pub before: Vec<String>,
    /// Shell commands to run once the command has ended, outside the marks; what they print is told as
    /// [`Message::After`], and whether they fail changes nothing.
    #[serde(default)]
    pub after: Vec<String>,
    /// The archive [`SHARE_FILE`] is there and wants unpacking.
    #[serde(default)]
    pub share: bool,
    /// The command's standard input is [`STDIN_FILE`]; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// A folder to give the host once the command has ended, as [`Message::Piece`]s; empty for none. Nothing comes
    /// if it is not there.
    #[serde(default)]
    pub collect: String,
    /// How the kernel's coverage counters are taken, right before the command and right after it.
    #[serde(default)]
    pub counters: Counters,
}

/// Ways to take the kernel's coverage counters. With either, an empty [`Job::argv`] is an empty window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Counters {
    /// Not at all.
    #[default]
    None,
    /// The guest stops its machine, and the host reads them from its memory ([`Message::Counters`]): no code of the kernel
    /// runs for it. Where guest time follows the instructions, its clock may jump meanwhile: see [`Counters::Held`].
    Stopped,
    /// The same, but the observer holds the thread of the vCPUs: exact, but only where all of them share that thread (guest
    /// time follows the instructions).
    Held,
    /// The agent reads `/sys/kernel/debug/gcov`, and gives the host archives as of [`gcov::Session`].
    Read,
}

/// A range of the guest's memory that the host reads: a file too large for a port.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Region {
    /// Length in bytes.
    pub len: u64,
    /// Physical pieces in order, `(address, bytes)`.
    pub runs: Vec<(u64, u64)>,
}

/// What the agent tells the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "m", rename_all = "snake_case")]
pub enum Message {
    /// The guest is up, and stops itself until there is a job. While it stands, `kallsyms` and `btf` can be read from its memory.
    Ready {
        /// `uname -r`.
        release: String,
        /// `/proc/kallsyms`.
        kallsyms: Option<Region>,
        /// `/sys/kernel/btf/vmlinux`.
        btf: Option<Region>,
        /// `/proc/modules`.
        modules: String,
        /// Build ID note of the kernel, lower-case hex.
        build_id: String,
    },
    /// A job was read.
    Accepted,
    /// The command runs.
    Started {
        /// Its process ID in the guest.
        pid: u32,
    },
    /// The job could not be carried out; no `Exit` follows.
    Failed {
        /// What went wrong.
        what: String,
    },
    /// One of the job's commands for afterwards ended.
    After {
        /// What it printed, with its errors.
        output: String,
    },
    /// The next piece of the `newc` archive of what is in [`Job::collect`], names relative to it. The guest stops
    /// itself until the host has read it and lets it go on.
    Piece {
        /// Where it is.
        region: Region,
    },
    /// The guest stops itself until the host has read the kernel's coverage counters from its memory.
    Counters {
        /// What they are kept as: the name of a file below `streams/gcov`.
        name: String,
    },
    /// The command ended.
    Exit {
        /// As a shell gives it: the exit code, or 128 + signal; 127 not found, 126 not executable.
        code: u8,
    },
    /// Modules after the run, if they are others than at [`Message::Ready`].
    Modules {
        /// `/proc/modules`.
        modules: String,
        /// The lines of `/proc/kallsyms` that belong to modules and BPF programs.
        kallsyms: String,
    },
}
