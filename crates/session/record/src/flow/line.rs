// SPDX-License-Identifier: MIT OR Apache-2.0
//! perf's command line (perf-intel-pt(1)). Plain data in and out; only [`find_perf`] looks at the machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use kprism_tracefs::path;

use super::settings::{Filter, Rings, Settings};

/// The event: Intel PT with its settings. What is not named is as perf has it: TSC, MTC where the processor can,
/// compressed returns.
fn event(settings: &Settings) -> String {
    let mut terms = Vec::new();
    if let Some(threshold) = settings.cyc {
        terms.push("cyc".to_owned());
        terms.extend(threshold.map(|n| format!("cyc_thresh={n}")));
    }
    terms.extend(settings.mtc_period.map(|n| format!("mtc_period={n}")));
    terms.extend(settings.psb_period.map(|n| format!("psb_period={n}")));
    let ring = match settings.rings {
        Rings::Kernel => "k",
        Rings::User => "u",
        Rings::Both => "",
    };
    format!("intel_pt/{}/{ring}", terms.join(","))
}

/// perf's arguments, for a recording into `data`.
pub fn perf(settings: &Settings, kcore: bool, data: &Path) -> Vec<OsString> {
    let mut line: Vec<OsString> = vec!["record".into(), "-o".into(), data.into()];
    if kcore {
        line.push("--kcore".into());
    }
    line.extend(["-e".into(), event(settings).into()]);
    if !settings.filter.is_empty() {
        let filters: Vec<_> = settings.filter.iter().map(Filter::text).collect();
        line.extend(["--filter".into(), filters.join(",").into()]);
    }
    if let Some(size) = settings.snapshot {
        // e: one at the end too, so that there is one at all.
        line.push(format!("--snapshot=e{}", size.map_or_else(String::new, |n| n.to_string())).into());
    }
    if let Some(buffer) = settings.buffer {
        // perf takes pages, or bytes with a suffix; the part before the comma is for records.
        line.extend(["-m".into(), format!(",{buffer}B").into()]);
    }
    if settings.all_cpus {
        line.push("-a".into());
    }
    if let Some(pid) = settings.pid {
        line.extend(["-p".into(), pid.to_string().into()]);
    }
    if !settings.command.is_empty() {
        line.push("--".into());
        line.extend(settings.command.iter().map(OsString::from));
    }
    line
}

/// perf as the shell would find it.
pub fn find_perf() -> Option<PathBuf> {
    path::find_here("perf").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(settings: &Settings, kcore: bool) -> String {
        let line = perf(settings, kcore, Path::new("run.perf.data"));
        line.iter().map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" | ")
    }

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|&w| w.to_owned()).collect()
    }

    #[test]
    fn a_command_with_its_kernel() {
        let settings = Settings { command: command(&["ls", "-l", "a b"]), ..Settings::default() };
        let told = "record | -o | run.perf.data | --kcore | -e | intel_pt// | -- | ls | -l | a b";
        assert_eq!(words(&settings, true), told);
    }

    #[test]
    fn packets_and_rings() {
        let settings = Settings {
            command: command(&["ls"]),
            rings: Rings::User,
            cyc: Some(None),
            mtc_period: Some(3),
            psb_period: Some(0),
            buffer: Some(1 << 20),
            ..Settings::default()
        };
        let told = "record | -o | run.perf.data | -e | intel_pt/cyc,mtc_period=3,psb_period=0/u | -m | ,1048576B | -- | ls";
        assert_eq!(words(&settings, false), told);
        let settings = Settings { cyc: Some(Some(9)), rings: Rings::Kernel, ..settings };
        assert!(words(&settings, false).contains("intel_pt/cyc,cyc_thresh=9,mtc_period=3,psb_period=0/k"));
    }

    #[test]
    fn filters_snapshots_and_targets() {
        let filter = ["vfs_read", "main@/bin/ls"].map(|f| Filter::parse(f).unwrap()).to_vec();
        let settings =
            Settings { all_cpus: true, snapshot: Some(Some(1 << 20)), filter, ..Settings::default() };
        let told = "record | -o | run.perf.data | --kcore | -e | intel_pt// | --filter | \
                    filter vfs_read,filter main @ /bin/ls | --snapshot=e1048576 | -a";
        assert_eq!(words(&settings, true), told);
        let settings = Settings { pid: Some(42), snapshot: Some(None), ..Settings::default() };
        let told = "record | -o | run.perf.data | -e | intel_pt// | --snapshot=e | -p | 42";
        assert_eq!(words(&settings, false), told);
    }

    #[test]
    fn functions() {
        let named = Filter::parse("_ZN3foo3barEv@lib.so").unwrap();
        assert_eq!(named.function, "_ZN3foo3barEv");
        assert!(named.file.is_some_and(|f| f.is_absolute() && f.ends_with("lib.so")));
        for wrong in ["", "@x", "a b", "a,filter b", "f@", "f@a b", "f@a,filter g", "f/8", "start:f"] {
            assert!(Filter::parse(wrong).is_err(), "{wrong}");
        }
    }
}
