// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rights to trace: `kernel.perf_event_paranoid`, and the capabilities that stand above it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

const CAP_SYS_ADMIN: u64 = 1 << 21;
const CAP_PERFMON: u64 = 1 << 38;

/// The facts by which the kernel decides on perf's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    /// `kernel.perf_event_paranoid`; none when the kernel has no perf events.
    pub paranoid: Option<i64>,
    /// perf's effective capabilities.
    pub caps: u64,
}

impl Rights {
    /// Of this user, with those that the file `perf` itself brings.
    pub fn here(perf: &Path) -> Self {
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let status = read("/proc/self/status");
        let own = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let own = own.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        let paranoid = read("/proc/sys/kernel/perf_event_paranoid").trim().parse().ok();
        Self { paranoid, caps: own | of_file(&xattr(perf)) }
    }

    /// Why the kernel would refuse, if so.
    pub fn refusal(&self, wide: bool, kernel: bool) -> Option<String> {
        let Some(paranoid) = self.paranoid else {
            return Some(
                "this kernel has no perf events: /proc/sys/kernel/perf_event_paranoid is missing (CONFIG_PERF_EVENTS)"
                    .to_owned(),
            );
        };
        if self.caps & (CAP_SYS_ADMIN | CAP_PERFMON) != 0 {
            return None;
        }
        // Debian and Ubuntu know levels above 2, at which nobody may record anything.
        let (what, needed, instead) = match () {
            () if paranoid > 2 => ("anything", 2, ""),
            () if wide && paranoid > 0 => ("all CPUs", 0, "; or leave out -a"),
            () if kernel && paranoid > 1 => ("the kernel", 1, "; or trace programs only, with --user"),
            () => return None,
        };
        Some(format!(
            "not permitted to trace {what}: kernel.perf_event_paranoid is {paranoid}\n\
             run as root, give perf the right (setcap cap_perfmon+ep), or sysctl kernel.perf_event_paranoid={needed}\
             {instead}"
        ))
    }
}

fn xattr(file: &Path) -> Vec<u8> {
    let Ok(name) = std::ffi::CString::new(file.as_os_str().as_bytes()) else { return Vec::new() };
    let mut bytes = vec![0u8; 64];
    // SAFETY: both names end in NUL, and at most the buffer's length is written.
    let len = unsafe {
        libc::getxattr(name.as_ptr(), c"security.capability".as_ptr(), bytes.as_mut_ptr().cast(), bytes.len())
    };
    bytes.truncate(usize::try_from(len).unwrap_or(0));
    bytes
}

/// The capabilities in force that a file brings (`struct vfs_cap_data`, version 2 on): a word of flags, then
/// permitted and inheritable, low words before high ones.
fn of_file(attribute: &[u8]) -> u64 {
    let word = |at: usize| {
        let bytes = attribute.get(4 * at..4 * at + 4)?;
        Some(u64::from(u32::from_le_bytes(bytes.try_into().ok()?)))
    };
    let effective = word(0).is_some_and(|flags| flags & 1 != 0);
    match (effective, word(1), word(3)) {
        (true, Some(low), Some(high)) => high << 32 | low,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_capabilities() {
        let may = |paranoid, caps, wide, kernel| {
            Rights { paranoid: Some(paranoid), caps }.refusal(wide, kernel).is_none()
        };
        assert!(may(-1, 0, true, true));
        assert!(may(0, 0, true, true));
        assert!(!may(1, 0, true, false));
        assert!(may(1, 0, false, true));
        assert!(!may(2, 0, false, true));
        assert!(may(2, 0, false, false));
        assert!(!may(3, 0, false, false));
        assert!(may(4, CAP_PERFMON, true, true));
        assert!(may(4, CAP_SYS_ADMIN, true, true));
        assert!(!may(4, 1 << 39, true, true));
        let said = Rights { paranoid: Some(2), caps: 0 }.refusal(false, true).unwrap();
        assert!(said.contains("is 2") && said.contains("cap_perfmon") && said.contains("--user"), "{said}");
        assert!(Rights { paranoid: None, caps: !0 }.refusal(false, false).is_some());
    }

    #[test]
    fn what_a_file_brings() {
        // setcap cap_perfmon+ep, as getfattr shows it.
        let mut attribute = [0u8; 20];
        (attribute[0], attribute[3], attribute[12]) = (1, 2, 0x40);
        assert_eq!(of_file(&attribute), CAP_PERFMON);
        attribute[0] = 0;
        assert_eq!(of_file(&attribute), 0, "+p alone is not in force");
        assert_eq!(of_file(&attribute[..7]), 0);
        assert_eq!(of_file(&[]), 0);
    }
}
