// SPDX-License-Identifier: MIT OR Apache-2.0
//! Prepares a guest, up to the moment before a command runs.

use std::path::{Path, PathBuf};

use kprism_agent::RootPlan;
use kprism_debuginfo::separate;

use crate::cache::Cache;
use crate::disk::{self, Image};
use crate::drivers::Drivers;
use crate::error::{Error, Result};
use crate::guest_image::GuestImage;
use crate::initramfs::{Base, Initramfs, Overlay};
use crate::kernel::Kernel;
use crate::memory_root::MemoryRoot;
use crate::modules::{Module, ModuleFile};
use crate::options::{KernelSource, Options, Report};
use crate::qemu::{Machine, Qemu};
use crate::rootfs::RootFs;
use crate::snapshot::{Boot, KernelFacts, Snapshot};
use crate::tree::{self, TreeFacts};
use crate::{files, modules, partitions};

/// A prepared guest, which can be started any number of times.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(crate) qemu: Qemu,
    pub(crate) machine: Machine,
    pub(crate) kernel: Kernel,
    pub(crate) rootfs: Option<RootFs>,
    pub(crate) initramfs: Initramfs,
    pub(crate) images: Vec<Image>,
    pub(crate) command_line: String,
    pub(crate) snapshot: Snapshot,
    pub(crate) agent: PathBuf,
    pub(crate) module_files: Vec<ModuleFile>,
    /// Folders with separate debug files of the guest's programs: the guest's own as far as they are here, then this machine's.
    pub(crate) debug_folders: Vec<PathBuf>,
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

    /// The package of Debian's that the kernel is from, if it is from one. Of a meta package, the one it depends on.
    pub fn kernel_package(&self) -> Option<&str> {
        self.kernel.package()
    }

    /// The folder with the guest's programs, unless the user gave an initramfs or a root file system.
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
        if self.snapshot.kernel.time_jumped {
            parts.push(("snapshot".to_owned(), "guest time jumped while it was made".to_owned()));
        }
        for (i, image) in self.images.iter().enumerate() {
            parts.push((format!("disk {i}"), image.key.clone()));
        }
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
            images: &self.images,
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
    let image = GuestImage::find(options, &cache, report)?;
    let of_image = image.as_ref().map(|image| image.kernel(&options.kernel)).transpose()?.flatten();
    let mut kernel = match of_image {
        Some(kernel) => kernel,
        None => Kernel::find(options, &cache, report)?,
    };
    let memory_root = match &options.root {
        Some(path) => MemoryRoot::find(path, options.mem_mib, &cache, report)?,
        None => None,
    };
    let on_disk = options.root.is_some() && memory_root.is_none();
    let images: Vec<Image> = options
        .root
        .iter()
        .filter(|_| on_disk)
        .chain(&options.disks)
        .map(|path| Image::find(path, &cache, report))
        .collect::<Result<_>>()?;
    if let (true, Some(image), Some(path)) = (on_disk, images.first(), &options.root) {
        partitions::require_root(&image.raw, path)?;
    }
    has_room_for(&images, options.mem_mib)?;
    let rootfs = match options.initrd.is_some() || options.root.is_some() {
        true => None,
        false => {
            let tools = options.storage.device().map(|_| FILE_SYSTEM_TOOLS.to_owned());
            let packages: Vec<String> = options.packages.iter().cloned().chain(tools).collect();
            Some(match &image {
                Some(image) => image.programs(&packages)?,
                None => RootFs::find(&packages, &cache, options.refresh, report)?,
            })
        }
    };
    let base = match (&rootfs, &options.initrd, &memory_root) {
        (Some(rootfs), ..) => Base::Root(rootfs),
        (None, Some(path), _) => Base::File(path),
        (None, None, Some(root)) => Base::Memory(root),
        (None, None, None) => Base::Disk,
    };
    let mut drivers = if images.is_empty() { Drivers::default() } else { Drivers::find(&kernel, &cache)? };
    // The user's first: those are the ones that stay.
    let mut modules = modules::collect(&kernel, &options.modules, &options.with_modules)?;
    if on_disk && !modules.is_empty() {
        drivers.add_overlay(&kernel)?;
    }
    drivers.add_network(options.network, &kernel)?;
    let device = options.storage.device();
    if device.is_some() {
        drivers.add_storage(&kernel)?;
    }
    drivers.merge_into(&mut modules);
    let storage = device.map(|device| device.plan(options.mem_mib, drivers.storage));
    let has_init = options.root.is_some() || options.init.is_some();
    let root = (has_init || options.initrd.is_some() || !images.is_empty()).then(|| RootPlan {
        disks: images.len(),
        on_disk,
        // Without a root of the user's there is no init, unless the user names that of an initrd.
        init: if has_init { options.init.clone() } else { Some(String::new()) },
        tells_unused_init: options.initrd.is_some() && options.init.is_none(),
        filesystems: drivers.filesystems,
    });
    let overlay =
        Overlay { agent: &agent, modules: &modules, root: root.as_ref(), storage: storage.as_ref() };
    let initramfs = Initramfs::find(&base, &overlay, &cache)?;
    let disks = images.iter().map(|image| image.bytes).collect();
    let machine = Machine {
        smp: options.smp,
        mem_mib: options.mem_mib,
        pace: options.pace,
        monitor: None,
        disks,
        network: options.network,
        features: options.cpu_features.clone(),
    };
    let mut command_line = Machine::command_line(&options.append);
    if initramfs.is_the_users_root {
        command_line.push_str(&format!(" rdinit={}", kprism_agent::OWN_INIT));
    }
    let boot = Boot {
        qemu: &qemu,
        machine: &machine,
        kernel: &kernel,
        initramfs: &initramfs,
        images: &images,
        command_line: command_line.clone(),
    };
    let snapshot = Snapshot::find(&boot, &cache, options.boot_timeout, report)?;
    if let Some(facts) = &mut kernel.tree {
        tree::compare_vmlinux(facts, &snapshot.kernel.build_id);
    }
    let module_files = modules.iter().filter_map(Module::file).collect();
    // A disk image is not looked into.
    let roots = rootfs.as_ref().map(|rootfs| &rootfs.root).into_iter().chain(&options.root);
    let debug_folders = separate::folders(roots.map(PathBuf::as_path));
    Ok(Prepared {
        qemu,
        machine,
        kernel,
        rootfs,
        initramfs,
        images,
        command_line,
        snapshot,
        agent,
        module_files,
        debug_folders,
    })
}

/// The package with `mkfs.ext4`.
const FILE_SYSTEM_TOOLS: &str = "e2fsprogs";

fn check(options: &Options) -> Result<()> {
    let wrong = |text: &str| Err(Error::Option(text.into()));
    if !(1..=64).contains(&options.smp) {
        return wrong("the number of CPUs must be 1 to 64");
    }
    if options.mem_mib < 256 {
        return wrong("a guest with Debian's kernel needs 256 MiB of memory at least");
    }
    if (options.initrd.is_some() || options.root.is_some()) && !options.packages.is_empty() {
        return wrong(
            "packages go into Debian's programs, which the given initrd or root file system replaces",
        );
    }
    if (options.initrd.is_some() || options.root.is_some()) && options.storage.device().is_some() {
        return wrong(
            "storage with time is made by mkfs.ext4 of Debian's programs, which the given initrd or root file system \
             replaces: leave out --storage",
        );
    }
    if options.initrd.is_some() && options.root.is_some() {
        return wrong("of an initrd and a root file system, only one can be the guest's");
    }
    if options.disks.len() + usize::from(options.root.is_some()) > disk::KEPT {
        return wrong(&format!("the cache keeps {} disk images, and a guest has no more disks", disk::KEPT));
    }
    let is_own = matches!(options.kernel, KernelSource::Image(_) | KernelSource::Tree(_));
    if options.guest_image.is_some() && is_own && (options.initrd.is_some() || options.root.is_some()) {
        return wrong("nothing would come from the guest image: kernel and root file system are given");
    }
    if options.module_folder.is_some() && !matches!(options.kernel, KernelSource::Image(_)) {
        return wrong(
            "a folder of modules (--modules) is for a kernel image (--kernel FILE): a package of Debian's and a build \
             folder have their own",
        );
    }
    if options.init.is_some() && options.root.is_none() && options.initrd.is_none() {
        return wrong("an init is that of a root file system or an initrd of your own: give that too");
    }
    Ok(())
}

/// The guest's kernel describes each page of a disk with 64 bytes of its memory (`struct page`).
fn has_room_for(images: &[Image], mem_mib: u64) -> Result<()> {
    let bytes: u64 = images.iter().map(|image| image.bytes).sum();
    let need_mib = (bytes / 64) >> 20;
    if need_mib * 2 <= mem_mib {
        return Ok(());
    }
    Err(Error::Option(format!(
        "disks of {} MiB take {need_mib} MiB of the guest's memory, more than half of its {mem_mib} MiB: give it more \
         with --mem {}M, or shrink the images",
        bytes >> 20,
        (need_mib * 2 + 1).next_multiple_of(512)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_modules_is_for_an_image_only() {
        let with = |kernel| Options { kernel, module_folder: Some("modules".into()), ..Options::default() };
        check(&with(KernelSource::Image("vmlinuz".into()))).unwrap();
        for own in [
            KernelSource::Newest,
            KernelSource::Package("linux-image-x".into()),
            KernelSource::Tree("linux".into()),
        ] {
            let error = check(&with(own)).unwrap_err().to_string();
            assert!(error.contains("--modules") && error.contains("--kernel FILE"), "{error}");
        }
    }
}
