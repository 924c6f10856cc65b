// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a folder in which somebody built a kernel (Documentation/kbuild/kbuild.rst).

use std::io;
use std::path::{Component, Path, PathBuf};

/// Largest list of modules that is read, bytes: that of an `allmodconfig` is 0.5 MB.
const LARGEST_LIST: u64 = 16 << 20;

/// A kernel's build folder: that of `make`, or the one named by `O=`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelBuild {
    folder: PathBuf,
}

impl KernelBuild {
    /// The paths in this folder. It need not be there.
    pub fn of(folder: &Path) -> Self {
        KernelBuild { folder: folder.to_owned() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The bootable image.
    pub fn image(&self) -> PathBuf {
        self.folder.join("arch/x86/boot/bzImage")
    }

    /// The linked kernel, with debug information if it is configured.
    pub fn vmlinux(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    /// The configuration as it is edited.
    pub fn config(&self) -> PathBuf {
        self.folder.join(".config")
    }

    /// The configuration of the last build: lines `CONFIG_NAME=VALUE`.
    pub fn built_config(&self) -> PathBuf {
        self.folder.join("include/config/auto.conf")
    }

    /// The release of the last build, as `uname -r` says it.
    pub fn release(&self) -> PathBuf {
        self.folder.join("include/config/kernel.release")
    }

    /// The folder of the source.
    pub fn source(&self) -> PathBuf {
        // `make O=` puts the link there.
        let link = self.folder.join("source");
        if link.is_symlink() { link } else { self.folder.clone() }
    }

    /// The modules that were built. Those that are configured and not built are left out. Empty without a list.
    ///
    /// # Errors
    /// The list is there and cannot be read, or is not one.
    pub fn modules(&self) -> io::Result<Vec<PathBuf>> {
        let list = self.folder.join("modules.order");
        let text = match std::fs::metadata(&list) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
            Ok(facts) if !facts.is_file() || facts.len() > LARGEST_LIST => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "modules.order is no list of modules",
                ));
            }
            Ok(_) => std::fs::read(&list)?,
        };
        let text = String::from_utf8_lossy(&text);
        Ok(text.lines().filter_map(|line| self.module(line)).collect())
    }

    /// The module of a line of `modules.order`: `fs/minix/minix.o` since Linux 6.4, `fs/minix/minix.ko` since 5.3,
    /// `kernel/fs/minix/minix.ko` before. `None` if it is not there, or would be outside of the folder.
    fn module(&self, line: &str) -> Option<PathBuf> {
        let path = line.strip_suffix(".o").map_or_else(|| line.to_owned(), |stem| format!("{stem}.ko"));
        let older = path.strip_prefix("kernel/").map(str::to_owned);
        [Some(path), older].into_iter().flatten().map(PathBuf::from).find_map(|path| {
            let stays = path.components().all(|part| matches!(part, Component::Normal(_)));
            let is_module = stays && path.extension().is_some_and(|suffix| suffix == "ko");
            Some(self.folder.join(path)).filter(|path| is_module && path.is_file())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_in_the_lists_of_all_kernels() {
        let folder = tempfile::tempdir().unwrap();
        let build = KernelBuild::of(folder.path());
        assert_eq!(build.modules().unwrap(), [] as [PathBuf; 0]);
        for module in ["fs/a.ko", "kernel/b.ko", "out.ko"] {
            let path = folder.path().join(module);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let list = |text: &str| {
            std::fs::write(folder.path().join("modules.order"), text).unwrap();
            let found = build.modules().unwrap();
            found
                .iter()
                .map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(list("fs/a.o\nkernel/b.o\nnot/built.o\n"), ["fs/a.ko", "kernel/b.ko"]);
        assert_eq!(list("fs/a.ko\nkernel/b.ko\n"), ["fs/a.ko", "kernel/b.ko"]);
        assert_eq!(list("kernel/fs/a.ko\nkernel/kernel/b.ko\n"), ["fs/a.ko", "kernel/b.ko"]);
        assert_eq!(list("../../etc/passwd\n/etc/x.ko\nfs/../out.ko\n\u{fffd}\n\n"), [] as [&str; 0]);
        std::fs::remove_file(folder.path().join("modules.order")).unwrap();
        std::fs::create_dir(folder.path().join("modules.order")).unwrap();
        assert!(build.modules().is_err());
    }
}
