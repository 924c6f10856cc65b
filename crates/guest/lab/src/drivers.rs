// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel modules that a guest with disks needs.
//!
//! Unpacking them takes longer than a guest takes to start from its snapshot. So those of a kernel whose modules do not change
//! are kept in the cache, unpacked.

use std::fs;
use std::path::Path;

use kprism_agent::{OPTIONAL_MODULE, OVERLAY};
use serde::{Deserialize, Serialize};

use crate::cache::Cache;
use crate::error::{Context, Error, Result};
use crate::kernel::Kernel;
use crate::modules::{self, Module, ModuleFolder};
use crate::network::Network;

/// Drivers of the disks, which are NVDIMMs.
const DISK: [&str; 3] = ["libnvdimm", "nfit", "nd_pmem"];

/// Drivers of the network device.
const NETWORK: [&str; 2] = ["virtio_pci", "virtio_net"];

/// File systems that may hold a root.
const FILE_SYSTEMS: [&str; 3] = ["ext4", "xfs", "btrfs"];

/// Driver and file system of storage whose requests take time. The driver comes with the file system that configures it.
const STORAGE: [(&str, &str); 2] =
    [("null_blk", "CONFIG_BLK_DEV_NULL_BLK and CONFIG_CONFIGFS_FS"), ("ext4", "CONFIG_EXT4_FS")];

/// Modules of what most images mount: an EFI system partition, and systemd's automounts. They are loaded if the kernel
/// has them, because the image's own modules are those of another kernel.
const COMMON: [&str; 5] = ["vfat", "nls_cp437", "nls_ascii", "nls_iso8859_1", "autofs4"];

/// Modules for disks, and for a root on the first of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Drivers {
    /// The modules. Those of file systems are not marked to be loaded.
    pub modules: Vec<Module>,
    /// File systems with the paths of their modules, for [`kprism_agent::RootPlan`].
    pub filesystems: Vec<(String, Vec<String>)>,
    /// Lines of the modules of storage whose requests take time, for [`kprism_agent::StoragePlan`].
    pub storage: Vec<String>,
}

/// The file `list` of a cache entry. The contents of its modules lie beside it, under their numbers.
#[derive(Serialize, Deserialize)]
struct List {
    modules: Vec<Listed>,
    filesystems: Vec<(String, Vec<String>)>,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    guest: String,
    load: bool,
    optional: bool,
}

impl Drivers {
    /// Those of this kernel.
    ///
    /// # Errors
    /// It has no driver of NVDIMMs, or a module cannot be read.
    pub fn find(kernel: &Kernel, cache: &Cache) -> Result<Self> {
        // A package's modules never change under one version. Those of a tree, or of this machine, may be built again.
        match &kernel.modules {
            Some(ModuleFolder::Installed(folder))
                if folder.starts_with(cache.folder()) && kernel.package().is_some() => {}
            _ => return Self::collect(kernel),
        }
        let key = format!("{}.1", kernel.key);
        let folder = cache.entry("drivers", &key, 40, |folder| Self::collect(kernel)?.write(folder))?;
        Self::read(&folder)
    }

    fn write(&self, folder: &Path) -> Result<()> {
        let listed = |module: &Module| Listed {
            guest: module.guest.clone(),
            load: module.load,
            optional: module.optional,
        };
        let modules = self.modules.iter().map(listed).collect();
        let list = serde_json::to_vec(&List { modules, filesystems: self.filesystems.clone() });
        fs::write(folder.join("list"), list.map_err(std::io::Error::other).at("write", folder)?)
            .at("write", folder)?;
        for (i, module) in self.modules.iter().enumerate() {
            let path = folder.join(i.to_string());
            fs::write(&path, &module.contents).at("write", &path)?;
        }
        Ok(())
    }

    fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("list");
        let list = fs::read(&path).at("read", &path)?;
        let list: List = serde_json::from_slice(&list).map_err(|error| Error::BadFile {
            path: path.clone(),
            reason: format!("{error}; delete {} and try again", folder.display()),
        })?;
        let mut modules = Vec::new();
        for (i, Listed { guest, load, optional }) in list.modules.into_iter().enumerate() {
            let path = folder.join(i.to_string());
            let contents = fs::read(&path).at("read", &path)?;
            modules.push(Module { guest, contents, load, users: None, optional });
        }
        Ok(Self { modules, filesystems: list.filesystems, storage: Vec::new() })
    }

    fn collect(kernel: &Kernel) -> Result<Self> {
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

    /// Adds what lays modules over those of an image, which may be of the same kernel.
    ///
    /// # Errors
    /// A module cannot be read.
    pub fn add_overlay(&mut self, kernel: &Kernel) -> Result<()> {
        // Of a kernel without it the agent says so, if it is needed.
        let found = modules::of(kernel, OVERLAY)?.unwrap_or_default();
        let paths = found.iter().map(|module| format!("/{}", module.guest)).collect();
        self.filesystems.push((OVERLAY.to_owned(), paths));
        self.add(found, false, true);
        Ok(())
    }

    /// Adds the drivers of a network's device.
    ///
    /// # Errors
    /// The kernel has none.
    pub fn add_network(&mut self, network: Network, kernel: &Kernel) -> Result<()> {
        for name in NETWORK.iter().filter(|_| network == Network::User) {
            let found = modules::of(kernel, name)?.ok_or_else(|| {
                Error::Option(format!(
                    "{} has no driver {name}: a guest with a network needs CONFIG_VIRTIO_PCI and CONFIG_VIRTIO_NET",
                    kernel.name()
                ))
            })?;
            self.add(found, true, false);
        }
        Ok(())
    }

    /// Adds what storage whose requests take time needs. The agent loads it.
    ///
    /// # Errors
    /// The kernel has no such driver, or no such file system.
    pub fn add_storage(&mut self, kernel: &Kernel) -> Result<()> {
        for (name, options) in STORAGE {
            let found = modules::of(kernel, name)?.ok_or_else(|| {
                Error::Option(format!(
                    "{} has no module {name}: storage with time needs {options}",
                    kernel.name()
                ))
            })?;
            let line = |module: &Module| {
                let mark = if module.optional { OPTIONAL_MODULE } else { "" };
                format!("{mark}/{}", module.guest)
            };
            self.storage.extend(found.iter().map(line));
            self.add(found, false, true);
        }
        Ok(())
    }

    /// Adds the drivers to modules of the user's. Of two with one name the user's is loaded, in place of the driver.
    pub fn merge_into(&mut self, modules: &mut Vec<Module>) {
        for driver in std::mem::take(&mut self.modules) {
            let (guest, name) = (driver.guest.clone(), driver.name());
            merge(modules, driver);
            let users = modules.iter().find(|module| module.name() == name);
            let paths = self.filesystems.iter_mut().flat_map(|(_, paths)| paths);
            for path in paths.chain(&mut self.storage) {
                if let (Some(users), true) = (users, path.ends_with(&format!("/{guest}"))) {
                    *path = path.replace(&guest, &users.guest);
                }
            }
        }
    }

    fn add(&mut self, found: Vec<Module>, load: bool, optional: bool) {
        for mut module in found {
            (module.load, module.optional) = (load, optional);
            merge(&mut self.modules, module);
        }
    }
}

/// Adds a module. One of the same name that is there stays at its place, and is loaded if either is.
fn merge(modules: &mut Vec<Module>, module: Module) {
    match modules.iter_mut().find(|other| other.name() == module.name()) {
        Some(other) => {
            other.load |= module.load;
            other.optional &= module.optional;
        }
        None => modules.push(module),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_of_the_users_is_the_one_that_is_loaded() {
        let module = |guest: &str, contents: &str, load| Module {
            guest: guest.into(),
            contents: contents.as_bytes().to_vec(),
            load,
            users: None,
            optional: false,
        };
        let mut drivers = Drivers {
            modules: vec![
                module("kernel/fs/jbd2.ko", "", false),
                module("kernel/fs/ext4.ko", "packaged", false),
            ],
            filesystems: vec![(
                "ext4".into(),
                vec!["/kernel/fs/jbd2.ko".into(), "/kernel/fs/ext4.ko".into()],
            )],
            storage: vec!["?/kernel/fs/ext4.ko".into()],
        };
        let mut modules = vec![module("updates/mine.ko", "", true), module("updates/ext4.ko", "mine", true)];
        drivers.merge_into(&mut modules);
        let found: Vec<_> = modules.iter().map(|module| module.guest.as_str()).collect();
        assert_eq!(found, ["updates/mine.ko", "updates/ext4.ko", "kernel/fs/jbd2.ko"]);
        assert_eq!(modules[1].contents, b"mine");
        assert_eq!(drivers.filesystems[0].1, ["/kernel/fs/jbd2.ko", "/updates/ext4.ko"]);
        assert_eq!(drivers.storage, ["?/updates/ext4.ko"]);
    }

    #[test]
    fn what_was_kept_reads_back_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let module = |guest: &str, load| Module {
            guest: guest.into(),
            contents: guest.as_bytes().to_vec(),
            load,
            users: None,
            optional: !load,
        };
        let drivers = Drivers {
            modules: vec![module("a.ko", true), module("b.ko", false)],
            filesystems: vec![("ext4".into(), vec!["/b.ko".into()])],
            storage: Vec::new(),
        };
        drivers.write(folder.path()).unwrap();
        assert_eq!(Drivers::read(folder.path()).unwrap(), drivers);
    }
}
