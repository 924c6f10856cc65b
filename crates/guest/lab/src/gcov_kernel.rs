// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds a small kernel whose every unit has gcov counters, from Debian's source, and keeps it in the cache.
//!
//! The build's folder is part of the kernel: it names its counters by their objects' paths. So the kernel is built at
//! its final place in the cache, and not renamed as other entries are. A file marks it as complete; an interrupted
//! build continues where it was.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::apt;
use crate::cache::{Cache, Key, Lock};
use crate::error::{Context, Error, Result};
use crate::options::{Progress, Report};
use crate::program::run;

/// The source package of the series to which the lab's stock kernel belongs.
const PACKAGE: &str = "linux-source-6.12";

/// Configuration added to `make tinyconfig`.
pub const CONFIG: &str = include_str!("gcov_kernel.config");

/// Folders that no build of this kernel reads: a fifth of the source.
const LEFT_OUT: [&str; 2] = ["*/Documentation/devicetree", "*/drivers/gpu/drm/amd/include/asic_reg"];

const TOOLS: [&str; 5] = ["make", "gcc", "flex", "bison", "bc"];

const INSTALL: &str =
    "building a kernel takes make, gcc, flex, bison, bc and libelf-dev: install them with apt";

/// A kernel with gcov, and its build folder.
#[derive(Debug, Clone)]
pub struct GcovKernel {
    /// The bootable image.
    pub image: PathBuf,
    /// The folder it was built in: sources, objects, notes.
    pub folder: PathBuf,
}

/// Options of a build.
#[derive(Debug, Clone, Default)]
pub struct BuildOptions {
    /// Lines for the kernel's configuration, after [`CONFIG`].
    pub config: Vec<String>,
    /// If not empty: only units below these folders of the source have counters, or use the profile.
    pub only: Vec<String>,
    /// Number of parallel compilers; 0 for as many as CPUs.
    pub jobs: usize,
    /// Use of the counters.
    pub counting: Counting,
}

/// A kernel's use of counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Counting {
    /// It has counters.
    #[default]
    On,
    /// The same kernel without counters, for comparison.
    Off,
    /// Without counters, compiled with `-fprofile-use` of the files in this folder, whose names are relative to the
    /// build's folder.
    Used(PathBuf),
}

impl GcovKernel {
    /// Finds the kernel, and builds it if needed: eleven minutes of one CPU.
    pub fn find(options: &BuildOptions, refresh: bool, report: Report<'_>) -> Result<Self> {
        let cache = Cache::open()?;
        let source = cache.remembered("gcov-kernel", "source", refresh, newest_source)?;
        let config = options.config();
        let compiler = compiler()?;
        let mut key = Key::default().add("gcov-kernel 1").add(&source).add(&config).add(&compiler);
        for folder in &options.only {
            key = key.add(folder);
        }
        let mut profile = None;
        if let Counting::Used(folder) = &options.counting {
            let folder = folder.canonicalize().at("read", folder)?;
            for (name, bytes) in profile_files(&folder)? {
                key = key.add("profile").add(name.as_encoded_bytes()).add(bytes);
            }
            profile = Some(folder);
        }
        let place = cache.folder().join("gcov-kernel").join(key.finish());
        let folder = place.join("linux");
        let found = GcovKernel { image: folder.join("arch/x86/boot/bzImage"), folder };
        let whole = place.join("whole");
        if whole.exists() {
            return Ok(found);
        }
        fs::create_dir_all(&place).at("create", &place)?;
        let _lock = Lock::take(&place.join("lock"))?;
        if whole.exists() {
            return Ok(found);
        }
        crate::cache::require_space(&place, 2500)?;
        check_tools()?;
        if !found.folder.exists() {
            unpack_source(&source, &place, report)?;
        }
        build(&found.folder, options, &config, profile.as_deref(), report)?;
        File::create(&whole).at("create", &whole)?;
        Ok(found)
    }
}

impl BuildOptions {
    fn config(&self) -> String {
        let mut text = CONFIG.to_owned();
        if self.counting != Counting::On {
            text = text.replace("CONFIG_GCOV_KERNEL=y", "# CONFIG_GCOV_KERNEL is not set");
            text = text.replace("CONFIG_GCOV_PROFILE_ALL=y\n", "");
        } else if !self.only.is_empty() {
            text = text.replace("CONFIG_GCOV_PROFILE_ALL=y", "# CONFIG_GCOV_PROFILE_ALL is not set");
        }
        for line in &self.config {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// `PACKAGE_VERSION_all`, the name of the newest .deb.
fn newest_source() -> Result<String> {
    let version = apt::candidate(PACKAGE)?;
    Ok(format!("{PACKAGE}_{version}_all"))
}

fn compiler() -> Result<Vec<u8>> {
    let output = Command::new("gcc").arg("--version").output();
    let output = output.map_err(|_| missing("gcc"))?;
    Ok(output.stdout.split(|&byte| byte == b'\n').next().unwrap_or_default().to_vec())
}

fn missing(programs: &str) -> Error {
    Error::MissingProgram { program: programs.into(), remedy: INSTALL }
}

/// Reports all missing tools at once.
fn check_tools() -> Result<()> {
    let runs = |program: &str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let mut absent: Vec<&str> = TOOLS.into_iter().filter(|program| !runs(program)).collect();
    if !Path::new("/usr/include/libelf.h").exists() {
        absent.push("libelf.h");
    }
    if absent.is_empty() { Ok(()) } else { Err(missing(&absent.join(", "))) }
}

fn unpack_source(source: &str, place: &Path, report: Report<'_>) -> Result<()> {
    report(Progress::Step(&format!("downloading {PACKAGE} (about 145 MB)")));
    let scratch = place.join("download");
    crate::cache::remove(&scratch)?;
    fs::create_dir_all(&scratch).at("create", &scratch)?;
    let version = source.split('_').nth(1).unwrap_or_default();
    let files = apt::download(&[format!("{PACKAGE}={version}")], &scratch)?;
    let [package] = &files[..] else {
        return Err(Error::BadFile { path: scratch, reason: "one package was to come".into() });
    };
    report(Progress::Step("unpacking the kernel's source"));
    apt::unpack(package, &scratch)?;
    let mut tar = Command::new("tar");
    tar.arg("-xJf").arg(scratch.join(format!("usr/src/{PACKAGE}.tar.xz"))).arg("-C").arg(&scratch);
    tar.args(LEFT_OUT.map(|pattern| format!("--exclude={pattern}")));
    run(&mut tar, "unpacking the kernel's source", &place.join("log"))?;
    let unpacked = scratch.join(PACKAGE);
    fs::rename(&unpacked, place.join("linux")).at("rename", &unpacked)?;
    crate::cache::remove(&scratch)
}

/// Names and contents of a profile's files.
fn profile_files(folder: &Path) -> Result<Vec<(std::ffi::OsString, Vec<u8>)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).at("read", folder)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|suffix| suffix == "gcda") {
            files.push((entry.file_name(), fs::read(&path).at("read", &path)?));
        }
    }
    if files.is_empty() {
        return Err(Error::BadFile { path: folder.to_owned(), reason: "no .gcda files in it".into() });
    }
    files.sort_unstable();
    Ok(files)
}

/// gcc's flags to use a profile. Its files are named relative to the build's folder. Counters that changed while they
/// were read may be inconsistent. Code that did not run in training, or was not counted, is no error.
fn use_of(profile: &Path, folder: &Path) -> String {
    format!(
        "-fprofile-use={} -fprofile-prefix-path={} -fprofile-correction -Wno-missing-profile \
         -Wno-coverage-mismatch",
        profile.display(),
        folder.display()
    )
}

fn build(
    folder: &Path,
    options: &BuildOptions,
    config: &str,
    profile: Option<&Path>,
    report: Report<'_>,
) -> Result<()> {
    let log = folder.with_file_name("log");
    let flags = profile.map(|profile| use_of(profile, folder));
    for below in &options.only {
        match &flags {
            Some(flags) => use_below(folder, below, flags)?,
            None => count_below(folder, below)?,
        }
    }
    report(Progress::Step("configuring the kernel"));
    let make = |targets: &[&str]| {
        let mut make = Command::new("make");
        make.arg("-C").arg(folder).arg("-s").args(targets);
        // The user's own settings for building kernels do not apply here.
        for name in ["MAKEFLAGS", "KBUILD_OUTPUT", "ARCH", "CROSS_COMPILE", "KCFLAGS", "LLVM"] {
            make.env_remove(name);
        }
        make
    };
    run(&mut make(&["tinyconfig"]), "make tinyconfig", &log)?;
    let path = folder.join(".config");
    let tiny = fs::read_to_string(&path).at("read", &path)?;
    fs::write(&path, tiny + config).at("write", &path)?;
    run(&mut make(&["olddefconfig"]), "make olddefconfig", &log)?;
    let got = fs::read_to_string(&path).at("read", &path)?;
    if options.counting == Counting::On && !got.contains("CONFIG_GCOV_KERNEL=y") {
        let reason = "this source and compiler cannot have CONFIG_GCOV_KERNEL".into();
        return Err(Error::BadFile { path, reason });
    }
    let jobs = match options.jobs {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        jobs => jobs,
    };
    report(Progress::Step(match options.counting {
        Counting::On => "building the kernel with gcov, once: 11 minutes of one CPU",
        Counting::Off => "building the kernel without gcov, once",
        Counting::Used(_) => "building the kernel with the profile, once",
    }));
    let jobs = format!("-j{jobs}");
    let mut targets = vec![jobs.as_str(), "bzImage", "modules", "headers"];
    let everywhere = flags.filter(|_| options.only.is_empty()).map(|flags| format!("KCFLAGS={flags}"));
    targets.extend(everywhere.as_deref());
    run(&mut make(&targets), "building the kernel", &log)
}

fn makefile_of(folder: &Path, below: &str) -> Result<PathBuf> {
    let makefile = folder.join(below).join("Makefile");
    match makefile.exists() {
        true => Ok(makefile),
        false => {
            Err(Error::BadFile { path: makefile, reason: "no such folder of the kernel's source".into() })
        }
    }
}

/// Makes the units in a folder and below use the profile.
fn use_below(folder: &Path, below: &str, flags: &str) -> Result<()> {
    let makefile = makefile_of(folder, below)?;
    let text = fs::read_to_string(&makefile).at("read", &makefile)?;
    let line = format!("subdir-ccflags-y += {flags}\n");
    // An interrupted build continues where it was.
    if text.starts_with(&line) {
        return Ok(());
    }
    fs::write(&makefile, line + &text).at("write", &makefile)
}

/// A folder whose Makefile others include. Its settings would also apply to the vDSO, which cannot have counters.
const INCLUDED: &str = "lib/vdso";

/// Adds counters below a folder only, in its own Makefile and those below it.
fn count_below(folder: &Path, below: &str) -> Result<()> {
    let makefile = makefile_of(folder, below)?;
    let mut folders: Vec<PathBuf> = makefile.parent().map(Path::to_owned).into_iter().collect();
    while let Some(folder) = folders.pop() {
        if folder.ends_with(INCLUDED) {
            continue;
        }
        let makefile = folder.join("Makefile");
        if let Ok(text) = fs::read_to_string(&makefile)
            && !text.starts_with("GCOV_PROFILE := y")
        {
            fs::write(&makefile, format!("GCOV_PROFILE := y\n{text}")).at("write", &makefile)?;
        }
        for entry in fs::read_dir(&folder).at("read", &folder)?.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    Ok(())
}
