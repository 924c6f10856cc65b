// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds a small kernel whose every unit has gcov counters, from Debian's source, and keeps it in the cache.
//!
//! The build's folder is part of the kernel: it names its counters by their objects' paths. So the kernel is built at
//! its final place in the cache, and not renamed as other entries are. A file marks it as complete, and says how many
//! units were compiled; an interrupted build, or one that reached its limit of time, continues where it was.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::apt;
use crate::cache::{Cache, Key, Lock};
use crate::error::{Context, Error, Result};
use crate::options::{Progress, Report};
use crate::program::{run, watched};

/// The source package of the series to which the lab's stock kernel belongs.
const PACKAGE: &str = "linux-source-6.12";

/// Configuration added to `make tinyconfig`.
pub const CONFIG: &str = include_str!("gcov_kernel.config");

/// Folders that no build of this kernel reads: a fifth of the source.
const LEFT_OUT: [&str; 2] = ["*/Documentation/devicetree", "*/drivers/gpu/drm/amd/include/asic_reg"];

const TOOLS: [&str; 5] = ["make", "gcc", "flex", "bison", "bc"];

/// The line of the configuration that adds the kernel's types.
const TYPES: &str = "CONFIG_DEBUG_INFO_BTF=y";

const INSTALL_PAHOLE: &str = "conditions on values need the kernel's types, which pahole makes of its debug information: \
    install it with apt; a place alone, as FUNC or FUNC%return, needs none";

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
    /// Time after which compiling stops, so that it can be continued another time.
    pub limit: Option<Duration>,
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
        asked(&options.config)?;
        let cache = Cache::open()?;
        let source = cache.remembered("gcov-kernel", "source", refresh, newest_source)?;
        let compiler = compiler()?;
        let place = |options: &BuildOptions, files: &[(OsString, Vec<u8>)]| {
            let mut key =
                Key::default().add("gcov-kernel 1").add(&source).add(options.config()).add(&compiler);
            for folder in &options.only {
                key = key.add(folder);
            }
            for (name, bytes) in files {
                key = key.add("profile").add(name.as_encoded_bytes()).add(bytes);
            }
            cache.folder().join("gcov-kernel").join(key.finish())
        };
        // The same kernel without a profile has the same units.
        let plain = BuildOptions { counting: Counting::Off, only: Vec::new(), ..options.clone() };
        let plain = place(&plain, &[]);
        let (place, profile) = match &options.counting {
            Counting::Used(folder) => {
                let folder = folder.canonicalize().at("read", folder)?;
                (place(options, &profile_files(&folder)?), Some(folder))
            }
            Counting::On | Counting::Off => (place(options, &[]), None),
        };
        let folder = place.join("linux");
        let found = GcovKernel { image: folder.join("arch/x86/boot/bzImage"), folder };
        let whole = place.join("whole");
        // Also of a kernel that is there already: an older version may have built it although a line was dropped.
        if whole.exists() {
            return came_out(&found.folder, options).map(|()| found);
        }
        fs::create_dir_all(&place).at("create", &place)?;
        let _lock = Lock::take(&place.join("lock"))?;
        if whole.exists() {
            return came_out(&found.folder, options).map(|()| found);
        }
        crate::cache::require_space(&place, 2500)?;
        check_tools()?;
        if options.config.iter().any(|line| line == TYPES) && !runs("pahole") {
            return Err(Error::MissingProgram { program: "pahole".into(), remedy: INSTALL_PAHOLE });
        }
        if !found.folder.exists() {
            unpack_source(&source, &place, report)?;
        }
        let total = match options.counting {
            Counting::Used(_) => units_of(&plain.join("whole")),
            Counting::On | Counting::Off => None,
        };
        if let Err(error) = configure(&found.folder, options, profile.as_deref(), report) {
            // Other lines have another place: nobody would come back to this tree.
            if matches!(error, Error::Option(_)) {
                crate::cache::remove(&found.folder)?;
            }
            return Err(error);
        }
        let units = compile(&found.folder, options, profile.as_deref(), total, report)?;
        fs::write(&whole, format!("{units}\n")).at("write", &whole)?;
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

fn runs(program: &str) -> bool {
    Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Reports all missing tools at once.
fn check_tools() -> Result<()> {
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
fn profile_files(folder: &Path) -> Result<Vec<(OsString, Vec<u8>)>> {
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

/// `make` in the build's folder.
fn make(folder: &Path, arguments: &[&str]) -> Command {
    let mut make = Command::new("make");
    make.arg("-C").arg(folder).args(arguments);
    // The user's own settings for building kernels do not apply here.
    for name in ["MAKEFLAGS", "KBUILD_OUTPUT", "ARCH", "CROSS_COMPILE", "KCFLAGS", "KBUILD_VERBOSE", "LLVM"] {
        make.env_remove(name);
    }
    make
}

/// Writes the configuration, and the flags into Makefiles. What is there already is left as it is: `make` would compile
/// again what depends on it.
fn configure(
    folder: &Path,
    options: &BuildOptions,
    profile: Option<&Path>,
    report: Report<'_>,
) -> Result<()> {
    let log = folder.with_file_name("log");
    for below in &options.only {
        match profile {
            Some(profile) => use_below(folder, below, &use_of(profile, folder))?,
            None => count_below(folder, below)?,
        }
    }
    let (path, done) = (folder.join(".config"), folder.with_file_name("configured"));
    if done.exists() && path.exists() {
        return came_out(folder, options);
    }
    report(Progress::Step("configuring the kernel"));
    run(&mut make(folder, &["-s", "tinyconfig"]), "make tinyconfig", &log)?;
    let tiny = fs::read_to_string(&path).at("read", &path)?;
    fs::write(&path, tiny + &options.config()).at("write", &path)?;
    run(&mut make(folder, &["-s", "olddefconfig"]), "make olddefconfig", &log)?;
    let got = fs::read_to_string(&path).at("read", &path)?;
    if options.counting == Counting::On && !got.contains("CONFIG_GCOV_KERNEL=y") {
        let reason = "this source and compiler cannot have CONFIG_GCOV_KERNEL".into();
        return Err(Error::BadFile { path, reason });
    }
    if options.config.iter().any(|line| line == TYPES) && !got.lines().any(|line| line == TYPES) {
        let reason = "with these options the kernel cannot have its types (CONFIG_DEBUG_INFO_BTF), which conditions on \
                      values need; they take pahole 1.21 or newer"
            .into();
        return Err(Error::BadFile { path, reason });
    }
    came_out(folder, options)?;
    File::create(&done).map(drop).at("create", &done)
}

/// Refuses a configuration in which a line of the user's is not as asked for: `make olddefconfig` drops such lines without a
/// word.
fn came_out(folder: &Path, options: &BuildOptions) -> Result<()> {
    let path = folder.join(".config");
    let got = fs::read_to_string(&path).at("read", &path)?;
    let differ = differ(&asked(&options.config)?, &got);
    match differ.is_empty() {
        true => Ok(()),
        false => Err(Error::Option(format!(
            "the kernel's configuration is not as asked for: {}\n\
             an option is dropped if what it depends on is off, or if there is none of its name; one that others select stays on",
            differ.join("; ")
        ))),
    }
}

/// The value that each line sets, by its option's name. The last of several lines for one option counts, as for `make
/// olddefconfig`.
///
/// # Errors
/// A line sets no option.
fn asked(lines: &[String]) -> Result<BTreeMap<&str, &str>> {
    let mut asked = BTreeMap::new();
    for line in lines {
        let (name, value) = setting(line).ok_or_else(|| {
            Error::Option(format!(
                "`{line}` is no line of a kernel's configuration: give CONFIG_NAME=VALUE, such as CONFIG_PSI=y"
            ))
        })?;
        asked.insert(name, value);
    }
    Ok(asked)
}

/// Name and value of a line of a configuration. An option that is "not set" has the value `n`.
fn setting(line: &str) -> Option<(&str, &str)> {
    let (name, value) = match line.strip_prefix("# ").and_then(|rest| rest.strip_suffix(" is not set")) {
        Some(name) => (name, "n"),
        None => line.split_once('=')?,
    };
    let of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_name =
        name.strip_prefix("CONFIG_").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(of_name));
    (is_name && !value.is_empty() && !value.contains('\n')).then_some((name, value))
}

/// Each setting that the written configuration has not, with what it has. An option that it does not have at all is off.
fn differ(asked: &BTreeMap<&str, &str>, written: &str) -> Vec<String> {
    let got: BTreeMap<&str, &str> = written.lines().filter_map(setting).collect();
    let differs = asked.iter().filter_map(|(name, value)| {
        let is = got.get(name).copied().unwrap_or("n");
        (is != *value).then(|| match got.get(name) {
            Some(is) => format!("{name}={value} came out as {name}={is}"),
            None => format!("{name}={value} was dropped"),
        })
    });
    differs.collect()
}

/// Compiles what is not compiled yet. Returns the number of units compiled, now and before.
fn compile(
    folder: &Path,
    options: &BuildOptions,
    profile: Option<&Path>,
    total: Option<u64>,
    report: Report<'_>,
) -> Result<u64> {
    let jobs = match options.jobs {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        jobs => jobs,
    };
    let words = match options.counting {
        Counting::On => "building the kernel with gcov, once: 11 minutes of one CPU",
        Counting::Off => "building the kernel without gcov, once",
        Counting::Used(_) => "building the kernel with the profile, once",
    };
    // Units of earlier calls; those that make compiles again, as it was ended in the middle of them, count once.
    let kept = folder.with_file_name("units");
    let mut units: BTreeSet<String> = match fs::read_to_string(&kept) {
        Ok(text) => text.lines().map(str::to_owned).collect(),
        Err(_) => BTreeSet::new(),
    };
    let amount = |units: usize| match total {
        Some(total) => format!("{units} of {total} units compiled"),
        None => format!("{units} units compiled"),
    };
    report(Progress::Step(&match units.len() {
        0 => words.to_owned(),
        before => format!("{words}; {} before", amount(before)),
    }));
    let jobs = format!("-j{jobs}");
    let mut arguments = vec![jobs.as_str(), "bzImage", "modules", "headers"];
    let everywhere = profile.filter(|_| options.only.is_empty());
    let everywhere = everywhere.map(|profile| format!("KCFLAGS={}", use_of(profile, folder)));
    arguments.extend(everywhere.as_deref());
    let mut line = |line: &str| {
        let Some(unit) = compiled(line) else { return };
        if units.insert(unit.to_owned()) && units.len().is_multiple_of(EVERY) {
            report(Progress::Step(&format!("{words}; {}", amount(units.len()))));
        }
        report(Progress::Console(&format!("{}: {unit}", amount(units.len()))));
    };
    let limit = options.limit.map(|limit| Instant::now() + limit);
    let log = folder.with_file_name("log");
    let made = watched(&mut make(folder, &arguments), "building the kernel", &log, &mut line, limit);
    let text: Vec<&str> = units.iter().map(String::as_str).collect();
    fs::write(&kept, text.join("\n")).at("write", &kept)?;
    match made? {
        true => Ok(units.len() as u64),
        false => Err(Error::Unfinished(amount(units.len()))),
    }
}

/// Units after which a line tells how many there are.
const EVERY: usize = 100;

/// The object that a line of make's tells to be compiled, from C or assembler, for the kernel and not for the host.
fn compiled(line: &str) -> Option<&str> {
    let mut words = line.split_whitespace();
    let command = words.next()?;
    let object = words.find(|word| *word != "[M]")?;
    (line.starts_with(' ') && matches!(command, "CC" | "AS") && object.ends_with(".o")).then_some(object)
}

/// The number of units of a kernel that is whole, if it says so.
fn units_of(whole: &Path) -> Option<u64> {
    fs::read_to_string(whole).ok()?.trim().parse().ok()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &[&str]) -> Vec<String> {
        text.iter().map(|line| (*line).to_owned()).collect()
    }

    const WRITTEN: &str = "\
#
# Automatically generated file; DO NOT EDIT.
#
CONFIG_CC_VERSION_TEXT=\"gcc (Debian 12.2.0) 12.2.0\"
CONFIG_SMP=y
CONFIG_NR_CPUS=64
CONFIG_EXT2_FS=m
# CONFIG_PREEMPT_RT is not set
CONFIG_PHYSICAL_START=0x1000000
CONFIG_CMDLINE=\"a=b\"
";

    /// What differs of a configuration that was asked for with these lines.
    fn differing(text: &[&str]) -> Vec<String> {
        let lines = lines(text);
        differ(&asked(&lines).unwrap(), WRITTEN)
    }

    #[test]
    fn lines_that_came_out_as_asked_pass() {
        for line in [
            "CONFIG_SMP=y",
            "CONFIG_NR_CPUS=64",
            "CONFIG_EXT2_FS=m",
            "CONFIG_PREEMPT_RT=n",
            "# CONFIG_PREEMPT_RT is not set",
            "CONFIG_NOT_THERE=n",
            "# CONFIG_NOT_THERE is not set",
            "CONFIG_CMDLINE=\"a=b\"",
        ] {
            assert_eq!(differing(&[line]), [""; 0], "{line}");
        }
        assert_eq!(differing(&["CONFIG_SMP=n", "CONFIG_SMP=y"]), [""; 0], "the last line counts");
    }

    #[test]
    fn lines_that_did_not_come_out_as_asked_are_named() {
        for (line, told) in [
            ("CONFIG_PREEMPT_RT=y", "CONFIG_PREEMPT_RT=y came out as CONFIG_PREEMPT_RT=n"),
            ("CONFIG_PREEMPT_RT_TYPO=y", "CONFIG_PREEMPT_RT_TYPO=y was dropped"),
            ("CONFIG_SMP=n", "CONFIG_SMP=n came out as CONFIG_SMP=y"),
            ("# CONFIG_SMP is not set", "CONFIG_SMP=n came out as CONFIG_SMP=y"),
            ("CONFIG_EXT2_FS=y", "CONFIG_EXT2_FS=y came out as CONFIG_EXT2_FS=m"),
            ("CONFIG_NR_CPUS=640", "CONFIG_NR_CPUS=640 came out as CONFIG_NR_CPUS=64"),
        ] {
            assert_eq!(differing(&[line]), [told]);
        }
        let both = differing(&["CONFIG_SMP=n", "CONFIG_NR_CPUS=64", "CONFIG_ABSENT=m"]);
        assert_eq!(both, ["CONFIG_ABSENT=m was dropped", "CONFIG_SMP=n came out as CONFIG_SMP=y"]);
        assert_eq!(differing(&["CONFIG_SMP=y", "CONFIG_SMP=n"]).len(), 1, "the last line counts");
    }

    #[test]
    fn what_sets_no_option_is_refused() {
        for line in [
            "PREEMPT_RT=y",
            "CONFIG_PREEMPT_RT",
            "CONFIG_=y",
            "CONFIG_A B=y",
            "CONFIG_A=",
            "# CONFIG_A",
            "",
            "CONFIG_A=y\nCONFIG_B=y",
        ] {
            assert!(asked(&lines(&[line])).is_err_and(|error| error.to_string().contains(line)), "{line}");
        }
    }

    #[test]
    fn units_are_told_from_what_else_make_does() {
        for (line, unit) in [
            ("  CC      kernel/fork.o", Some("kernel/fork.o")),
            ("  CC [M]  fs/minix/inode.o", Some("fs/minix/inode.o")),
            ("  AS      arch/x86/lib/getuser.o", Some("arch/x86/lib/getuser.o")),
            ("  HOSTCC  scripts/kallsyms", None),
            ("  AR      kernel/built-in.a", None),
            ("  CC      ", None),
            ("kernel/fork.c:1: CC x.o", None),
            ("", None),
        ] {
            assert_eq!(compiled(line), unit, "{line}");
        }
    }
}
