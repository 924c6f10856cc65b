// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens a kernel tree that the user built: checks that it can run in the lab, and says what it will not show.
//!
//! Input: the build folder. Output: its paths, and the commit it was built from.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_layout::KernelBuild;

use kprism_image::BuildId;

use crate::error::{Context, Error, Result};

/// The tree that a kernel was built in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeFacts {
    /// The build folder, absolute.
    pub folder: PathBuf,
    /// The commit that is checked out, if the source is a git repository.
    pub commit: Option<String>,
    /// True if tracked files differ from that commit; `None` if that is not known.
    pub changed: Option<bool>,
    /// Options that the kernel was built without, each with what will not be seen.
    pub gaps: Vec<String>,
    /// Sentences on what could not be found out about the tree, and on files in it that are not of this kernel.
    pub notes: Vec<String>,
}

/// An option of the kernel, and what it is for.
type Need = (&'static str, &'static str);

/// Without these the guest does not come up.
const NEEDED: [Need; 14] = [
    ("CONFIG_64BIT", "the lab's machine is an x86-64"),
    ("CONFIG_BLK_DEV_INITRD", "the guest's programs are an initramfs"),
    ("CONFIG_BINFMT_ELF", "to run programs"),
    ("CONFIG_BINFMT_SCRIPT", "to run scripts"),
    ("CONFIG_MULTIUSER", "to run programs"),
    ("CONFIG_PROC_FS", "the agent needs /proc"),
    ("CONFIG_SYSFS", "the agent needs /sys"),
    ("CONFIG_DEVTMPFS", "the agent needs /dev"),
    ("CONFIG_TMPFS", "the agent needs /tmp"),
    ("CONFIG_TTY", "for the console"),
    ("CONFIG_PRINTK", "for the console"),
    ("CONFIG_SERIAL_8250", "for the console"),
    ("CONFIG_SERIAL_8250_CONSOLE", "for the console"),
    ("CONFIG_KALLSYMS", "for the names of functions"),
];

/// Since Linux 5.5. Kernels before always let a process use I/O ports.
const PORTS: Need = ("CONFIG_X86_IOPL_IOPERM", "the agent talks through I/O ports");

/// Without these something is not seen.
const WANTED: [Need; 4] = [
    ("CONFIG_DEBUG_INFO_BTF", "names of tasks and of mapped programs"),
    ("CONFIG_PERF_EVENTS", "functions of programs"),
    ("CONFIG_KALLSYMS_ALL", "names of variables, and gcov's counters"),
    ("CONFIG_DEBUG_INFO", "source lines of the kernel"),
];

/// Opens the tree for a guest with `smp` CPUs.
///
/// # Errors
/// It is not built, not for x86-64, not built since it was configured, or lacks what the lab needs: the error has the
/// configuration to add.
pub(crate) fn open(folder: &Path, smp: u32) -> Result<(KernelBuild, TreeFacts)> {
    let folder = folder.canonicalize().at("find", folder)?;
    let build = KernelBuild::of(&folder);
    let bad = |reason: &str| Err(Error::BadFile { path: folder.clone(), reason: reason.into() });
    if folder.to_str().is_none() {
        return bad("the path is not UTF-8, as the run's manifest has to be");
    }
    if !folder.join("Kbuild").is_file() && !build.config().is_file() {
        return bad(
            "no kernel was configured here: give the folder of .config (that of `make O=` if there is one)",
        );
    }
    if !build.config().is_file() {
        return bad("the kernel is not configured: no .config. With `make O=DIR` the tree is DIR");
    }
    let edited = read_text(&build.config())?;
    let (path, built) = match read_text(&build.built_config()) {
        Ok(config) => (build.built_config(), config),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            (build.config(), edited.clone())
        }
        Err(other) => return Err(other),
    };
    let set = options(&built);
    let knows_ports = edited.contains(PORTS.0);
    suits(&path, &set, (smp, knows_ports))?;
    let image = build.image();
    if !image.is_file() {
        return bad("no arch/x86/boot/bzImage: build it with `make bzImage` (and `make modules`)");
    }
    let mut notes = Vec::new();
    let (commit, changed) = match commit(&build.source()) {
        Ok(Some((commit, changed))) => (Some(commit), Some(changed)),
        Ok(None) => (None, None),
        Err(reason) => {
            notes.push(format!("the tree's commit is not known: git: {reason}"));
            (None, None)
        }
    };
    Ok((build, TreeFacts { folder, commit, changed, gaps: gaps(&set), notes }))
}

/// Notes it if the tree's `vmlinux` is not the kernel that booted, whose build id this is.
pub(crate) fn compare_vmlinux(facts: &mut TreeFacts, booted: &str) {
    let vmlinux = KernelBuild::of(&facts.folder).vmlinux();
    let note = match BuildId::of_file(&vmlinux) {
        Some(id) if id.to_string() == booted => return,
        Some(_) => "is not the kernel of bzImage: source lines will be refused; run `make bzImage`",
        None => "is missing or has no build id: there will be no source lines of the kernel",
    };
    facts.notes.push(format!("{} {note}", vmlinux.display()));
}

/// The release of the tree's kernel: that in the image's boot header, if it can be read, and of the last build.
///
/// # Errors
/// They differ, or there is none.
pub(crate) fn release(build: &KernelBuild, in_image: Option<String>) -> Result<String> {
    let path = build.release();
    let built = match fs::read_to_string(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        read => Some(read.at("read", &path)?.trim().to_owned()),
    };
    let reason = match (in_image, built) {
        (Some(image), Some(built)) if image != built => {
            format!("the image is {image} and the tree {built}: run `make bzImage modules`")
        }
        (Some(release), _) | (None, Some(release)) => return Ok(release),
        (None, None) => "its release is not known: run `make bzImage modules`".to_owned(),
    };
    Err(Error::BadFile { path: build.image(), reason })
}

/// Refuses a kernel that was built without one of these options: each is named with its purpose. As a module it will do.
///
/// # Errors
/// Names those that are missing, and where the configuration is. Without a configuration nothing is refused here.
pub fn require(folder: &Path, options: &[(&str, &str)]) -> Result<()> {
    let build = KernelBuild::of(folder);
    let mut paths = [build.built_config(), build.config()].into_iter();
    let Some((config, path)) = paths.find_map(|path| Some((read_text(&path).ok()?, path))) else {
        return Ok(());
    };
    let has = |name: &str| {
        let value = |line: &str| line.trim_end().strip_prefix(name).is_some_and(|v| v == "=y" || v == "=m");
        config.lines().any(value)
    };
    let missing: Vec<&(&str, &str)> = options.iter().filter(|(name, _)| !has(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut reason = String::from("these tests need more of the kernel. Add to its configuration:\n");
    for (name, why) in missing {
        writeln!(reason, "  {name}=y\t# {why}").ok();
    }
    reason += "then run `make olddefconfig bzImage modules`";
    Err(Error::BadFile { path, reason })
}

fn read_text(path: &Path) -> Result<String> {
    fs::read(path).at("read", path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Options with the value `y`.
fn options(config: &str) -> BTreeSet<&str> {
    config.lines().filter_map(|line| line.trim_end().strip_suffix("=y")).collect()
}

fn suits(path: &Path, set: &BTreeSet<&str>, (smp, knows_ports): (u32, bool)) -> Result<()> {
    let bad = |reason: &str| Err(Error::BadFile { path: path.to_owned(), reason: reason.into() });
    if !set.contains("CONFIG_X86") {
        return bad("this kernel is for another processor: the lab's machine is an x86-64");
    }
    if set.contains("CONFIG_X86_32") {
        return bad("this kernel has 32 bits: configure it with ARCH=x86_64");
    }
    let cpus = [("CONFIG_SMP", "--smp asks for several CPUs")];
    let needed = NEEDED.iter().chain(Some(&PORTS).filter(|_| knows_ports));
    let needed = needed.chain(if smp > 1 { &cpus[..] } else { &[] });
    let missing: Vec<&Need> = needed.filter(|(name, _)| !set.contains(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let mut reason = String::from("this kernel cannot run in the lab. Add to its configuration:\n");
    for (name, why) in &missing {
        writeln!(reason, "  {name}=y\t# {why}").ok();
    }
    reason += "then run `make olddefconfig bzImage modules`";
    Err(Error::BadFile { path: path.to_owned(), reason })
}

fn gaps(set: &BTreeSet<&str>) -> Vec<String> {
    let missing = WANTED.iter().filter(|(name, _)| !set.contains(name));
    missing.map(|(name, what)| format!("the kernel was built without {name}: not seen are {what}")).collect()
}

/// The commit that is checked out in the source's folder, and whether tracked files were changed since. A source that is
/// not a repository by itself, as one unpacked inside another repository, has none.
fn commit(source: &Path) -> std::result::Result<Option<(String, bool)>, String> {
    if !source.join(".git").exists() {
        return Ok(None);
    }
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        // Git's index is the user's: it is not refreshed. A hook's variables name another repository.
        git.arg("--no-optional-locks").arg("-C").arg(source).args(arguments).env("LC_ALL", "C");
        git.env_remove("GIT_DIR").env_remove("GIT_WORK_TREE").env_remove("GIT_INDEX_FILE");
        match git.output() {
            Ok(output) if output.status.success() => {
                Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
            }
            Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
            Err(error) => Err(error.to_string()),
        }
    };
    let commit = git(&["rev-parse", "--verify", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Ok(Some((commit, !changes.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> String {
        let needed = NEEDED.iter().chain([&PORTS, &("CONFIG_X86", "")]);
        needed.map(|(name, _)| format!("{name}=y\n")).collect()
    }

    fn error(folder: &Path, smp: u32) -> String {
        open(folder, smp).unwrap_err().to_string()
    }

    #[test]
    fn a_tree_that_cannot_run_is_refused_with_the_way_to_mend_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        assert!(error(path, 1).contains("no kernel was configured here"));
        fs::write(path.join("Kbuild"), "").unwrap();
        assert!(error(path, 1).contains("no .config"));
        fs::write(path.join(".config"), whole().replace("CONFIG_TTY=y", "CONFIG_TTY=m")).unwrap();
        let text = error(path, 1);
        assert!(text.contains("  CONFIG_TTY=y\t# for the console\nthen run `make olddefconfig"), "{text}");
        assert_eq!(text.matches("=y").count(), 1, "{text}");
        fs::write(path.join(".config"), whole()).unwrap();
        assert!(error(path, 2).contains("CONFIG_SMP=y"));
        assert!(error(path, 1).contains("make bzImage"));
        // What counts is what was built.
        fs::create_dir_all(path.join("include/config")).unwrap();
        let built = path.join("include/config/auto.conf");
        fs::write(&built, whole().replace("CONFIG_X86=y", "CONFIG_ARM64=y")).unwrap();
        assert!(error(path, 1).contains("another processor"));
        fs::write(&built, whole() + "CONFIG_X86_32=y\n").unwrap();
        assert!(error(path, 1).contains("ARCH=x86_64"));
        // Kernels before 5.5 do not have this option.
        fs::write(&built, whole().replace("CONFIG_X86_IOPL_IOPERM=y\n", "")).unwrap();
        assert!(error(path, 1).contains("CONFIG_X86_IOPL_IOPERM=y"));
        fs::write(path.join(".config"), whole().replace("CONFIG_X86_IOPL_IOPERM=y\n", "")).unwrap();
        assert!(error(path, 1).contains("make bzImage"));
    }

    #[test]
    fn gaps_of_the_configuration_are_noted() {
        let folder = tempfile::tempdir().unwrap();
        let build = KernelBuild::of(folder.path());
        fs::write(build.config(), whole() + "CONFIG_PERF_EVENTS=y\nCONFIG_DEBUG_INFO=y\n").unwrap();
        fs::create_dir_all(build.image().parent().unwrap()).unwrap();
        fs::write(build.image(), "").unwrap();
        let (_, mut facts) = open(folder.path(), 1).unwrap();
        assert_eq!((facts.commit.as_deref(), facts.changed), (None, None));
        assert_eq!((facts.gaps.len(), facts.notes.len()), (2, 0), "{facts:?}");
        assert!(facts.gaps[0].contains("CONFIG_DEBUG_INFO_BTF: not seen are names of tasks"));
        compare_vmlinux(&mut facts, "12ab");
        assert!(facts.notes[0].contains("no source lines"), "{:?}", facts.notes);
        assert!(release(&build, None).unwrap_err().to_string().contains("not known"));
        fs::create_dir_all(build.release().parent().unwrap()).unwrap();
        fs::write(build.release(), "6.12.0\n").unwrap();
        assert_eq!(release(&build, None).unwrap(), "6.12.0");
        assert_eq!(release(&build, Some("6.12.0".into())).unwrap(), "6.12.0");
        let differs = release(&build, Some("6.12.1".into())).unwrap_err().to_string();
        assert!(differs.contains("make bzImage modules"), "{differs}");
    }
}
