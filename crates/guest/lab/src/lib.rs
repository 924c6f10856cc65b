// SPDX-License-Identifier: MIT OR Apache-2.0
//! The guest lab: runs commands on a stock kernel in QEMU, from a snapshot taken just before a command would run.
//!
//! Input: [`Options`] (the guest) and a [`Job`] (the command). Output: the command's output as it comes, its exit code,
//! and a run folder with the recording of an observer in QEMU, and the symbols to decode it. Kernel and programs are
//! Debian packages, which apt downloads without root; the kernel may be an own image or tree, the programs those of a disk
//! image, folder, archive or container image. Everything made from them is kept in a [`cache`], by content.
//!
//! Design:
//! - With [`Pace::Exact`] a run depends on its inputs only: time counts instructions, CPUs take turns, and no device of
//!   the machine acts by itself. Command and output pass through ports that only the guest accesses.
//! - [`prepare`] ends with a snapshot, so that [`run`] starts in a fraction of a second.
//! - QEMU cannot outlive this process, however it ends ([`run`]'s QEMU is killed with its parent).
//!
//! The crate does not print. Messages for the user go to a callback, as [`Progress`].

pub mod cache;
pub mod error;
pub mod files;
pub mod gcov_kernel;
pub mod guest_image;
pub mod hooks;
pub mod machine;

mod apt;
mod archive;
mod collect;
mod counters;
mod cpu;
mod disk;
mod drivers;
mod hold;
mod huge_pages;
mod image_format;
mod initramfs;
mod kernel;
mod kernel_package;
mod kernel_reports;
pub mod kselftest;
mod lab;
mod layers;
mod like_host;
mod memory_root;
mod modules;
mod network;
mod options;
mod packed;
mod partitions;
mod program;
mod qemu;
mod qemu_find;
mod qemu_known;
mod qmp;
mod ready;
pub mod replay;
mod rootfs;
mod run;
mod snapshot;
mod stop_time;
mod storage;
mod symbols;
mod tail;
mod tree;
mod written;

pub use counters::CountedWindows;
pub use cpu::CpuFeature;
pub use error::{Error, Result, Unfit};
pub use files::{
    content, find_agent, find_observer, find_qemu_user, find_recorder, find_recorder_for, find_sql,
    find_user_plugin,
};
pub use kernel::{Kernel, packages as kernel_packages};
pub use kernel_reports::{KernelReport, KernelReports, MOST_REPORTS, ReportKind};
pub use kprism_agent::{CounterReading, INIT_READY, Warm};
pub use lab::{Prepared, prepare};
pub use like_host::{LikeHost, NotTaken, TakenOver};
pub use modules::{ModuleFile, is_path as is_module_file, name_of as module_name};
pub use network::{Forward, Network};
pub use options::{
    CounterWindows, Job, KernelSource, ObserverOptions, Options, Pace, Progress, Report, Share, Span,
};
pub use qemu::Qemu;
pub use ready::{can_be_ready, made_ready};
pub use run::{Ended, MissingFile, Outcome, accepts, fetch, run};
pub use snapshot::{KernelFacts, Snapshot};
pub use storage::{Storage, StorageDevice};
pub use symbols::{inside, mapped_files};
pub use tree::{TreeFacts, require as require_options};
pub use written::{Full, Meter, RESERVE, Written};

/// The kernel's command line, with these words of the user's at its end.
pub fn command_line(append: &[String]) -> String {
    qemu::Machine::command_line(append)
}

/// The initramfs of a tar archive or a container image, as a guest gets it.
///
/// # Errors
/// It is damaged, or an image for another processor.
pub fn initramfs_of_archive(path: &std::path::Path) -> Result<Vec<u8>> {
    use error::Context as _;
    let mut archive = archive::Archive::new(Vec::new());
    layers::write(path, &mut archive)?;
    archive.finish().at("read", path)
}
