// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds a QEMU that fits, among all that are installed.
//!
//! Input: `$KPRISM_QEMU`, or the folders of PATH and the usual other places. Output: the first QEMU of a fitting release that exports
//! the plugin functions that the observer imports; or each QEMU found, with the reason why it does not fit, and the remedy for
//! this distribution. [`crate::qemu_known`] remembers one that fits.

use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::read::elf::FileHeader;
use object::{Endianness, ReadCache, elf};

use crate::error::{Error, Result, Unfit};
use crate::files::in_path;
use crate::qemu::Qemu;
use crate::qemu_known;

/// The first release with version 4 of the plugin interface: it has `qemu_plugin_read_memory_vaddr`, by which the observer reads
/// the guest's memory. 9.1 has version 3, without it.
const OLDEST: (u32, u32) = (9, 2);

/// The first release that refuses plugins of a version below 7 of the interface: callbacks get other arguments there.
const TOO_NEW: (u32, u32) = (11, 1);

/// The releases that fit.
const RANGE: &str = "9.2 to 11.0";

const NAME: &str = "qemu-system-x86_64";

impl Qemu {
    /// `$KPRISM_QEMU`; without it, the first that fits in PATH, `/usr/local/bin`, `~/.local/bin` and `/opt/*/bin`, and the
    /// `/usr/libexec/qemu-kvm` of Red Hat.
    ///
    /// # Errors
    /// There is none, or none fits.
    pub fn find() -> Result<Self> {
        if let Some(named) = std::env::var_os("KPRISM_QEMU") {
            return Self::of(named);
        }
        let mut unfit = Vec::new();
        for program in candidates() {
            match qemu_known::fits(&program) {
                Ok(version) => return Ok(Self { program, version }),
                Err(why) => unfit.push(Unfit { program, why }),
            }
        }
        Err(Error::NoQemu { program: NAME.into(), found: unfit, remedy: remedy() })
    }

    /// This program, a path or a name in PATH.
    ///
    /// # Errors
    /// It is not there, or does not fit.
    pub fn of(program: OsString) -> Result<Self> {
        let path = PathBuf::from(&program);
        let whole = match path.components().count() {
            1 => in_path(&path).into_iter().next(),
            _ => path.exists().then(|| path.clone()),
        };
        let found = match whole.as_deref().map(qemu_known::fits) {
            Some(Ok(version)) => return Ok(Self { program: path, version }),
            Some(Err(why)) => vec![Unfit { program: path.clone(), why }],
            None => Vec::new(),
        };
        Err(Error::NoQemu { program: path, found, remedy: remedy() })
    }
}

/// Every QEMU of this machine, each once.
fn candidates() -> Vec<PathBuf> {
    let mut all = in_path(Path::new(NAME));
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/bin"));
    let mut folders: Vec<PathBuf> = ["/usr/local/bin".into()].into_iter().chain(home).collect();
    let mut packages: Vec<PathBuf> = std::fs::read_dir("/opt")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path().join("bin"))
        .collect();
    packages.sort_unstable();
    folders.extend(packages);
    folders.push("/usr/bin".into());
    all.extend(folders.iter().map(|folder| folder.join(NAME)));
    all.push("/usr/libexec/qemu-kvm".into());
    let mut seen = Vec::new();
    all.retain(|file| match file.canonicalize() {
        Ok(whole) if whole.is_file() && !seen.contains(&whole) => {
            seen.push(whole);
            true
        }
        _ => false,
    });
    all
}

/// The version line of a QEMU that fits, or the reason why it does not.
pub(crate) fn fits(program: &Path) -> std::result::Result<String, String> {
    let output = Command::new(program)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.lines().next().unwrap_or_default().to_owned();
    let wanted = format!("{RANGE} is needed");
    let Some(found) = parse_version(&version) else {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or(&version).to_owned();
        return Err(format!("--version prints no version ({said}); {wanted}"));
    };
    if found < OLDEST {
        return Err(format!("{version} is too old, {wanted}"));
    }
    if found >= TOO_NEW {
        return Err(format!("{version} is too new, {wanted}: its plugin interface has changed (version 7)"));
    }
    let Ok(observer) = crate::files::find_observer() else { return Ok(version) };
    // A script that starts QEMU has no symbols; then QEMU itself says what is missing, when it loads the plugin.
    let (Some(wanted), Some(there)) = (symbols(&observer, Side::Imports), symbols(program, Side::Exports))
    else {
        return Ok(version);
    };
    let missing: Vec<&str> = wanted.iter().filter(|name| !there.contains(name)).map(String::as_str).collect();
    match (missing.is_empty(), there.is_empty()) {
        (true, _) => Ok(version),
        (false, true) => Err(format!("{version} is built without TCG plugins (configure --enable-plugins)")),
        (false, false) => {
            Err(format!("{version} lacks functions of the plugin interface: {}", missing.join(", ")))
        }
    }
}

/// Parses (major, minor) of "QEMU emulator version 10.0.2 (Debian …)".
pub(crate) fn parse_version(line: &str) -> Option<(u32, u32)> {
    let mut numbers = line.split("version ").nth(1)?.split(['.', ' ']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// A direction of dynamic symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    /// Others must define them.
    Imports,
    /// The file defines them.
    Exports,
}

/// Names of QEMU's plugin functions among the dynamic symbols of an ELF file; `None` if it is none. Only its tables are read.
fn symbols(file: &Path, side: Side) -> Option<Vec<String>> {
    let cache = ReadCache::new(File::open(file).ok()?);
    let data = &cache;
    let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, data).ok()?;
    let table = sections.symbols(endian, data, elf::SHT_DYNSYM).ok()?;
    let mut names = Vec::new();
    for symbol in table.iter() {
        let defined = symbol.st_shndx.get(endian) != elf::SHN_UNDEF;
        if defined != (side == Side::Exports) {
            continue;
        }
        let name = table.symbol_name(endian, symbol).unwrap_or_default();
        if name.starts_with(b"qemu_plugin_") {
            names.push(String::from_utf8_lossy(name).into_owned());
        }
    }
    Some(names)
}

/// The remedy on this machine.
fn remedy() -> String {
    let text =
        ["/etc/os-release", "/usr/lib/os-release"].iter().find_map(|file| std::fs::read_to_string(file).ok());
    remedy_for(&text.unwrap_or_default())
}

/// The remedy on a distribution, by its `os-release`.
fn remedy_for(os_release: &str) -> String {
    let value = |key: &str| {
        let line = os_release.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        line.unwrap_or_default().trim_matches(['"', '\'']).to_owned()
    };
    let like = value("ID_LIKE");
    let ids: Vec<String> =
        [value("ID")].into_iter().chain(like.split_whitespace().map(str::to_owned)).collect();
    let version = value("VERSION_ID");
    let wanted = RANGE;
    let known = ids.iter().find_map(|id| match id.as_str() {
        "debian" if version == "12" => Some(format!(
            "install qemu-system-x86 {wanted} from bookworm-backports (scripts/setup.sh of the source does it): \
             apt-get install -t bookworm-backports qemu-system-x86"
        )),
        "debian" => Some(format!("install QEMU {wanted}: apt-get install qemu-system-x86")),
        "ubuntu" => Some(format!(
            "install QEMU {wanted}: apt-get install qemu-system-x86; that of Ubuntu 24.04 and older is too old, then build \
             QEMU from its source"
        )),
        "fedora" => Some(format!("install QEMU {wanted}: dnf install qemu-system-x86-core")),
        "arch" => Some(format!("install QEMU {wanted}: pacman -S qemu-system-x86")),
        "opensuse" | "suse" => Some(format!("install QEMU {wanted}: zypper install qemu-x86")),
        _ => None,
    });
    let install =
        known.unwrap_or_else(|| format!("install QEMU {wanted} with TCG plugins (qemu-system-x86_64)"));
    format!("{install}; or name one in $KPRISM_QEMU")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        assert_eq!(parse_version("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)"), Some((10, 0)));
        for fitting in ["9.2.0", "10.0.2", "10.2.1", "11.0.0"] {
            let found = parse_version(&format!("QEMU emulator version {fitting}")).unwrap();
            assert!(found >= OLDEST && found < TOO_NEW, "{fitting}");
        }
        assert!(parse_version("QEMU emulator version 11.1.3 (Debian 1:11.1.3+ds-1)").unwrap() >= TOO_NEW);
        assert!(parse_version("QEMU emulator version 9.1.3").unwrap() < OLDEST);
        assert!(parse_version("QEMU emulator version 7.2.17 (Debian)").unwrap() < OLDEST);
        assert_eq!(parse_version("something else"), None);
    }

    #[test]
    fn remedies_name_the_packages_of_the_distribution() {
        let debian = remedy_for("ID=debian\nVERSION_ID=\"12\"\n");
        assert!(debian.contains("bookworm-backports"), "{debian}");
        assert!(!remedy_for("ID=debian\nVERSION_ID=\"13\"\n").contains("backports"));
        for (release, word) in [
            ("ID=ubuntu\nID_LIKE=debian\nVERSION_ID=\"24.04\"\n", "too old"),
            ("ID=fedora\nVERSION_ID=42\n", "dnf install"),
            ("ID=rocky\nID_LIKE=\"rhel centos fedora\"\n", "dnf install"),
            ("ID=arch\n", "pacman"),
            ("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n", "zypper"),
            ("ID=gentoo\n", "with TCG plugins"),
            ("", "with TCG plugins"),
        ] {
            let said = remedy_for(release);
            assert!(
                said.contains(word) && said.contains("9.2") && said.contains("KPRISM_QEMU"),
                "{release}: {said}"
            );
            assert!(!said.to_lowercase().contains("debian"), "{release}: {said}");
        }
    }

    #[test]
    fn a_program_that_is_no_qemu_exports_no_plugin_functions() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(symbols(&own, Side::Exports), Some(Vec::new()));
        assert_eq!(symbols(Path::new("/proc/self/status"), Side::Exports), None);
    }
}
