// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel modules that a guest with disks needs.

use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::modules::{self, Module};

/// Drivers of the disks, which are NVDIMMs.
const DISK: [&str; 3] = ["libnvdimm", "nfit", "nd_pmem"];

/// File systems that may hold a root.
const FILE_SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// Modules of what most images mount: an EFI system partition, and systemd's automounts. They are loaded if the kernel
/// has them, because the image's own modules are those of another kernel.
const COMMON: [&str; 5] = ["vfat", "nls_cp437", "nls_ascii", "nls_iso8859_1", "autofs4"];

/// Modules for disks, and for a root on the first of them.
#[derive(Debug, Default)]
pub(crate) struct Drivers {
    /// The modules. Those of file systems are not marked to be loaded.
    pub modules: Vec<Module>,
    /// File systems with the paths of their modules, for [`kprism_agent::RootPlan`].
    pub filesystems: Vec<(String, Vec<String>)>,
}

impl Drivers {
    /// Those of this kernel.
    ///
    /// # Errors
    /// It has no driver of NVDIMMs, or a module cannot be read.
    pub fn find(kernel: &Kernel) -> Result<Self> {
        let mut drivers = Self::default();
        for name in DISK {
            match modules::of(kernel, name)? {
                Some(found) => drivers.add(found, true, false),
                None => {
                    return Err(Error::Option(format!(
                        "{} has no module {name}: a guest with disks needs CONFIG_ACPI_NFIT and CONFIG_BLK_DEV_PMEM",
                        kernel.name()
                    )));
                }
            }
        }
        for name in COMMON {
            drivers.add(modules::of(kernel, name)?.unwrap_or_default(), true, true);
        }
        for name in FILE_SYSTEMS {
            let Some(found) = modules::of(kernel, name)? else { continue };
            let paths = found.iter().map(|module| format!("/{}", module.guest)).collect();
            drivers.filesystems.push((name.to_owned(), paths));
            drivers.add(found, false, true);
        }
        Ok(drivers)
    }

    fn add(&mut self, found: Vec<Module>, load: bool, optional: bool) {
        for mut module in found {
            (module.load, module.optional) = (load, optional);
            merge(&mut self.modules, module);
        }
    }
}

/// Adds a module. One that is there stays at its place, and is loaded if either is.
pub(crate) fn merge(modules: &mut Vec<Module>, module: Module) {
    match modules.iter_mut().find(|other| other.guest == module.guest) {
        Some(other) => {
            other.load |= module.load;
            other.optional &= module.optional;
        }
        None => modules.push(module),
    }
}
