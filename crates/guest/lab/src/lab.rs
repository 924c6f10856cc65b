// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares a guest, up to the moment before a command runs.

use std::path::Path;

use crate::cache::Cache;
use crate::error::{Error, Result};
use crate::initramfs::{Base, Initramfs};
use crate::kernel::Kernel;
use crate::modules::{Module, ModuleFile};
use crate::options::{Options, Report};
use crate::qemu::{Machine, Qemu};
use crate::rootfs::RootFs;
use crate::snapshot::{Boot, KernelFacts, Snapshot};
use crate::tree::{self, TreeFacts};
use crate::{files, modules};

/// A prepared guest, which can be started any number of times.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(crate) qemu: Qemu,
    pub(crate) machine: Machine,
    pub(crate) kernel: Kernel,
    pub(crate) rootfs: Option<RootFs>,
    pub(crate) initramfs: Initramfs,
    pub(crate) command_line: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) agent: std::path::PathBuf,
    pub(crate) module_files: Vec<ModuleFile>,
}

impl Prepared {
    /// Returns true if the guest's kernel is at its link address, so that observed addresses can be named.
    pub fn is_where_linked(&self) -> bool {
        self.command_line.split(' ').any(|word| word == "nokaslr")
    }

    /// The guest's kernel's release and build ID.
    pub fn kernel(&self) -> &KernelFacts {
        &self.snapshot.kernel
    }

    /// The tree that the kernel was built in, if the user named it.
    pub fn tree(&self) -> Option<&TreeFacts> {
        self.kernel.tree.as_ref()
    }

    /// The modules in the guest that the user built.
    pub fn module_files(&self) -> &[ModuleFile] {
        &self.module_files
    }

    /// The kernel's command line.
    pub fn command_line(&self) -> &str {
        &self.command_line
    }

    /// Adds words to the command line of a recorded boot. The snapshot stays unchanged.
    pub fn boot_with(&mut self, words: &str) {
        self.command_line = format!("{} {words}", self.command_line);
    }

    /// Gives a guest that boots (not one from a snapshot) 256 MiB more memory behind a CXL window. QEMU writes every
    /// access to it, and to devices, to `trace`, one line each (its events `memory_region_ops_*`).
    pub fn monitor_bus(&mut self, trace: &Path) {
        self.machine.monitor = Some(trace.to_owned());
        // Memory added later goes online by itself, for the kernel's own use too. Allocating a page does not clear it,
        // which would write all of it on the bus.
        self.boot_with("memhp_default_state=online_kernel no_timer_check init_on_alloc=0");
    }

    /// QEMU's version line.
    pub fn qemu_version(&self) -> &str {
        &self.qemu.version
    }

    /// The folder with the guest's programs, unless the user gave an initramfs.
    pub fn root(&self) -> Option<&Path> {
        self.rootfs.as_ref().map(|rootfs| rootfs.root.as_path())
    }

    /// The snapshot's folder: `kallsyms`, `btf`, `modules`, `hooks`, and `console.log` of the boot.
    pub fn snapshot_folder(&self) -> &Path {
        &self.snapshot.folder
    }

    /// All that the guest's instructions depend on beside the command, as names and values: the kernel, each package of the
    /// root file system, the initramfs that holds both modules and agent, QEMU, its machine and the kernel's command line.
    ///
    /// # Errors
    /// A file of the cache cannot be read.
    pub fn environment(&self) -> Result<Vec<(String, String)>> {
        let mut parts = vec![
            ("kernel".to_owned(), self.kernel.key.clone()),
            ("kernel build id".to_owned(), self.snapshot.kernel.build_id.clone()),
            ("kernel command line".to_owned(), self.command_line.clone()),
            ("initramfs".to_owned(), self.initramfs.key.clone()),
            ("agent".to_owned(), files::content(&self.agent)?),
            ("qemu".to_owned(), self.qemu.version.clone()),
            ("machine".to_owned(), self.machine.arguments().join(" ")),
        ];
        if let Some(rootfs) = &self.rootfs {
            for package in rootfs.packages()?.lines() {
                let (name, version) = package.split_once('=').unwrap_or((package, ""));
                parts.push((format!("package {name}"), version.to_owned()));
            }
        }
        Ok(parts)
    }

    pub(crate) fn boot(&self) -> Boot<'_> {
        Boot {
            qemu: &self.qemu,
            machine: &self.machine,
            kernel: &self.kernel,
            initramfs: &self.initramfs,
            command_line: self.command_line.clone(),
        }
    }
}

/// Gets everything that a guest needs, from the cache or, the first time, from apt, and boots it until it waits for a
/// command. This takes seconds to minutes the first time, and milliseconds after that.
pub fn prepare(options: &Options, report: Report<'_>) -> Result<Prepared> {
    check(options)?;
    let qemu = Qemu::find()?;
    let agent = files::find_agent()?;
    let cache = Cache::open()?;
    let mut kernel = Kernel::find(options, &cache, report)?;
    let rootfs = match options.initrd {
        Some(_) => None,
        None => Some(RootFs::find(&options.packages, &cache, options.refresh, report)?),
    };
    let base = match (&rootfs, &options.initrd) {
        (Some(rootfs), _) => Base::Root(rootfs),
        (None, Some(path)) => Base::File(path),
        (None, None) => return Err(Error::Option("no root file system".into())),
    };
    let modules = modules::collect(&kernel, &options.modules, &options.with_modules)?;
    let initramfs = Initramfs::find(&base, &agent, &modules, &cache)?;
    let machine = Machine { smp: options.smp, mem_mib: options.mem_mib, pace: options.pace, monitor: None };
    let command_line = Machine::command_line(&options.append);
    let boot = Boot {
        qemu: &qemu,
        machine: &machine,
        kernel: &kernel,
        initramfs: &initramfs,
        command_line: command_line.clone(),
    };
    let snapshot = Snapshot::find(&boot, &cache, options.boot_timeout, report)?;
    if let Some(facts) = &mut kernel.tree {
        tree::compare_vmlinux(facts, &snapshot.kernel.build_id);
    }
    let module_files = modules.iter().filter_map(Module::file).collect();
    Ok(Prepared { qemu, machine, kernel, rootfs, initramfs, command_line, snapshot, agent, module_files })
}

fn check(options: &Options) -> Result<()> {
    let wrong = |text: &str| Err(Error::Option(text.into()));
    if !(1..=64).contains(&options.smp) {
        return wrong("the number of CPUs must be 1 to 64");
    }
    if options.mem_mib < 256 {
        return wrong("a guest with Debian's kernel needs 256 MiB of memory at least");
    }
    if options.initrd.is_some() && !options.packages.is_empty() {
        return wrong("packages go into Debian's root file system, which the given initrd replaces");
    }
    Ok(())
}
