// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks what this machine allows, and names the remedy where it does not.

use std::io;
use std::path::{Path, PathBuf};

use kprism_image::BuildId;

use crate::error::Error;

/// Bit numbers of Linux capabilities.
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Conditions that tracing depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Release of the running kernel.
    pub release: String,
    /// Lockdown mode: `none`, `integrity`, `confidentiality`, or `unknown`.
    pub lockdown: String,
    /// Effective capabilities of this process.
    pub capabilities: u64,
    /// True if `/sys/kernel/btf/vmlinux` exists.
    pub btf: bool,
    /// True if the BPF JIT is enabled.
    pub jit: bool,
    /// Mount point of tracefs.
    pub tracefs: Option<PathBuf>,
    /// True if the list of traceable functions exists, but the kernel does not allow it to be read.
    pub list_refused: bool,
}

impl Host {
    /// Examines this machine.
    pub fn here() -> Self {
        let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let lockdown = std::fs::read_to_string("/sys/kernel/security/lockdown");
        // Without securityfs the mode is unknown. If only the file is missing, the kernel has no lockdown.
        let unknown = lockdown.is_err() && !Path::new("/sys/kernel/security/lsm").exists();
        let lockdown = lockdown.unwrap_or_default();
        let lockdown = lockdown.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
        let otherwise = if unknown { "unknown" } else { "none" };
        let tracefs = tracefs();
        let status = text("/proc/self/status");
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        Self {
            release: text("/proc/sys/kernel/osrelease").trim().to_owned(),
            lockdown: lockdown.map_or(otherwise, |(mode, _)| mode).to_owned(),
            capabilities: capabilities.and_then(|c| u64::from_str_radix(c.trim(), 16).ok()).unwrap_or(0),
            btf: Path::new("/sys/kernel/btf/vmlinux").exists(),
            jit: text("/proc/sys/net/core/bpf_jit_enable").trim() != "0",
            list_refused: tracefs.as_ref().is_some_and(|tracefs| refuses(&tracefs.join(FUNCTIONS))),
            tracefs,
        }
    }

    fn has(&self, capability: u32) -> bool {
        self.capabilities >> capability & 1 == 1
    }

    /// Returns the reason why no programs can be loaded, with the remedy.
    pub fn refusal(&self) -> Option<String> {
        let enough = self.has(CAP_SYS_ADMIN) || (self.has(CAP_BPF) && self.has(CAP_PERFMON));
        if !enough {
            return Some(format!(
                "CAP_BPF and CAP_PERFMON are needed (effective capabilities: {:#x}): run as root, or give the \
                 program both with setcap cap_bpf,cap_perfmon,cap_dac_read_search=ep (a copy that only you may run)",
                self.capabilities
            ));
        }
        if self.lockdown == "confidentiality" {
            return Some(
                "the kernel is locked down (confidentiality), which forbids reading its memory: boot with \
                 lockdown=none or lockdown=integrity, or use kprism lab run"
                    .into(),
            );
        }
        None
    }

    /// Returns the reason why kernel functions cannot be traced, with the remedy.
    pub fn function_refusal(&self) -> Option<String> {
        if let Some(why) = self.refusal() {
            return Some(why);
        }
        if self.list_refused {
            return Some(format!(
                "the kernel does not let {FUNCTIONS} be read (lockdown {}): it is locked down, or tracing is shut to this \
                 process: boot with lockdown=none, or watch a guest with kprism lab run",
                self.lockdown
            ));
        }
        if !["none", "unknown"].contains(&self.lockdown.as_str()) {
            return Some(format!(
                "the kernel is locked down ({}), which forbids kprobes and BPF at its functions: boot with \
                 lockdown=none (or without Secure Boot), or watch a guest with kprism lab run",
                self.lockdown
            ));
        }
        None
    }
}

/// File that lists the traceable functions.
const FUNCTIONS: &str = "available_filter_functions";

/// Returns true if the file exists but cannot be opened for lack of permission.
fn refuses(file: &Path) -> bool {
    let refused = |error: io::Error| error.kind() == io::ErrorKind::PermissionDenied;
    std::fs::File::open(file).err().is_some_and(refused)
}

/// Places at which tracefs is mounted.
const TRACEFS: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];

/// Returns the mount point of tracefs, without mounting it.
pub fn tracefs() -> Option<PathBuf> {
    TRACEFS.iter().map(PathBuf::from).find(|place| place.join("trace").exists())
}

/// Why [`tracefs`] found none, with the remedy: it is not mounted, or its folder (mode 0700 as a rule) is root's.
pub fn no_tracefs() -> String {
    no_tracefs_in(&TRACEFS.map(Path::new))
}

fn no_tracefs_in(places: &[&Path]) -> String {
    let is_closed = |place: &&&Path| {
        let looked = place.join("trace").symlink_metadata();
        looked.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    match places.iter().find(is_closed) {
        Some(place) => format!(
            "no permission to look into {}: run as root, or let root open tracefs (mount -o remount,mode=755 {})",
            place.display(),
            places[0].display()
        ),
        None => "tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing (as root)".to_owned(),
    }
}

/// Reads the monotonic clock, which programs read too, in ns.
pub fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Reads the time of day, in ns since the epoch.
pub fn real_ns() -> u64 {
    clock_ns(libc::CLOCK_REALTIME)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it fills the structure that is given; both clocks are always there.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Number of possible CPUs: per-CPU values have a part for each.
pub fn possible_cpus() -> usize {
    static COUNT: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *COUNT.get_or_init(|| {
        let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
        let cpus = cpu_list(&text);
        // Without sysfs, use the number of online CPUs.
        cpus.last()
            .map_or_else(|| std::thread::available_parallelism().map_or(1, usize::from), |&last| last + 1)
    })
}

/// Returns the online CPUs.
pub fn online_cpus() -> Vec<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = cpu_list(&text);
    if cpus.is_empty() { (0..possible_cpus()).collect() } else { cpus }
}

/// Parses `0-3,8`, as in sysfs. CPU numbers above the kernel's limit (8192) are skipped.
fn cpu_list(text: &str) -> Vec<usize> {
    const MOST: usize = 8192;
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend((first..=last).take_while(|&cpu| cpu < MOST));
        }
    }
    cpus
}

/// Returns the address of the running kernel's code.
pub fn kernel_text() -> Result<u64, Error> {
    let path = PathBuf::from("/proc/kallsyms");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let line = text.lines().find(|line| line.ends_with(" _text"));
    match line.and_then(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok()) {
        Some(address) if address != 0 => Ok(address),
        _ => Err(Error::refused(
            "/proc/kallsyms",
            "it does not tell where the kernel is: run as root, or sysctl kernel.kptr_restrict=0",
        )),
    }
}

/// Returns the running kernel's build id.
pub fn kernel_build_id() -> Option<BuildId> {
    BuildId::of_notes(&std::fs::read("/sys/kernel/notes").ok()?)
}

/// Returns the build id of a loaded module of the running kernel.
pub fn module_build_id(module: &str) -> Option<BuildId> {
    BuildId::of_notes(&std::fs::read(format!("/sys/module/{module}/notes/.note.gnu.build-id")).ok()?)
}

/// Returns the type number of a PMU such as `kprobe`.
pub(crate) fn pmu_type(pmu: &str) -> Result<u32, Error> {
    let path = PathBuf::from(format!("/sys/bus/event_source/devices/{pmu}/type"));
    let text = std::fs::read_to_string(&path).map_err(|e| {
        let config = pmu.to_uppercase();
        let why = format!("{}: {e}: the kernel needs CONFIG_{config}_EVENTS=y", path.display());
        Error::refused(format!("the {pmu} PMU"), why)
    })?;
    text.trim().parse().map_err(|_| Error::refused(format!("the {pmu} PMU"), format!("its type is {text:?}")))
}

/// Returns the ID of a tracepoint.
pub(crate) fn tracepoint_id(system: &str, name: &str) -> Result<u64, Error> {
    let what = format!("tracepoint {system}:{name}");
    let Some(tracefs) = tracefs() else {
        return Err(Error::refused(what, no_tracefs()));
    };
    let path = tracefs.join("events").join(system).join(name).join("id");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    text.trim().parse().map_err(|_| Error::refused(what, format!("its id is {text:?}")))
}

/// Wraps an error of bpf(2) or perf_event_open(2), with the reason if it is known.
pub(crate) fn explain(what: String, source: io::Error) -> Error {
    let host = Host::here();
    let why = match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => match host.function_refusal() {
            Some(why) => why,
            None if !host.has(CAP_SYS_ADMIN) => {
                "this kernel asks for CAP_SYS_ADMIN here: run as root, or setcap \
                 cap_sys_admin,cap_bpf,cap_perfmon,cap_dac_read_search=ep on a copy of the program that only you may run"
                    .to_owned()
            }
            None => return Error::System { what, source },
        },
        Some(libc::ENOSYS) => "this kernel has no BPF: it needs CONFIG_BPF_SYSCALL=y".to_owned(),
        // ENOTSUPP, which has no name in user space: no JIT, or no trampolines on this architecture.
        Some(524) if !host.jit => "the BPF JIT is off: sysctl net.core.bpf_jit_enable=1".to_owned(),
        Some(524) => {
            "this kernel cannot do that: CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y is needed".to_owned()
        }
        Some(libc::ENOMEM) => "no memory, or RLIMIT_MEMLOCK reached (kernels before 5.11 count maps there): \
                               ulimit -l unlimited"
            .to_owned(),
        Some(libc::EBUSY) => {
            "the kernel lets nobody be there, or another tracer is: see available_filter_functions and \
             enabled_functions in /sys/kernel/tracing"
                .to_owned()
        }
        _ => return Error::System { what, source },
    };
    Error::Refused { what, why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus() {
        assert_eq!(cpu_list("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(cpu_list("5"), [5]);
        assert_eq!(cpu_list(""), [0usize; 0]);
        assert_eq!(cpu_list("0-99999999999").len(), 8192);
        assert_eq!(cpu_list("x-3,7-y,2"), [2]);
    }

    #[test]
    fn refusals_name_the_remedy() {
        let root = Host {
            release: "6.12".into(),
            lockdown: "none".into(),
            capabilities: u64::MAX,
            btf: true,
            jit: true,
            tracefs: None,
            list_refused: false,
        };
        let refused = Host { list_refused: true, lockdown: "unknown".into(), ..root.clone() };
        assert!(
            refused.function_refusal().unwrap().contains("does not let available_filter_functions be read")
        );
        assert_eq!(Host { lockdown: "unknown".into(), ..root.clone() }.function_refusal(), None);
        assert_eq!(root.function_refusal(), None);
        let user = Host { capabilities: 1 << CAP_BPF, ..root.clone() };
        assert!(user.refusal().unwrap().contains("CAP_PERFMON"));
        let locked = Host { lockdown: "integrity".into(), ..root.clone() };
        assert_eq!(locked.refusal(), None);
        assert!(locked.function_refusal().unwrap().contains("locked down (integrity)"));
        assert!(Host { lockdown: "confidentiality".into(), ..root }.refusal().is_some());
    }
}
