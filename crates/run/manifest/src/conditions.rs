// SPDX-License-Identifier: MIT OR Apache-2.0
//! Properties in which a guest differs from a machine, as far as they matter to the times and counts of a run.
//!
//! Input: a manifest, and the run's profile if there is one. Output: [`Condition`]s, each with its text, its numbers and what
//! to do about it. Every view asks here. A condition is a property of the guest and not a loss: the account stays whole.
//! `docs/guest-is-not.md` says how much each matters.

use std::collections::{BTreeMap, BTreeSet};

use kprism_profile::units::{counted, duration, grouped, printable, syscall_name};
use kprism_profile::{NO_PARENT, Profile};
use serde::Serialize;

use crate::{HugePageMode, HugePages, Instrument, Manifest, OptionKey, RunKind, StorageFacts};

/// System calls that wait for a disk on a machine.
const SYNCS: [&str; 6] = ["fsync", "fdatasync", "sync", "syncfs", "msync", "sync_file_range"];

/// The kernel's function for a page fault of any memory (mm/memory.c).
const FAULT: &str = "handle_mm_fault";

/// The kernel's function that gives anonymous memory a huge page at a fault (mm/huge_memory.c).
const HUGE_FAULT: &str = "do_huge_pmd_anonymous_page";

/// The kernel's functions behind the files `enabled` that set the mode of huge pages, of all sizes and of one (mm/huge_memory.c). Other
/// parts of the kernel have functions of the first name.
const SET_MODE: [&str; 3] = ["enabled_store", "thpsize_enabled_store", "anon_enabled_store"];

/// The pace at which guest time follows the instructions, as the lab writes it.
const EXACT: &str = "exact";

/// QEMU's option by which guest time follows the instructions.
const ICOUNT: [&str; 2] = ["-icount", "--icount"];

/// Beginning of a note on values that a guest did not take over from the recording machine.
pub const LIKE_HOST_NOTE: &str = "--like-host";

/// A property of the guest in which it differs from a machine, or from other guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ConditionKind {
    /// Files are in the guest's memory: nothing waits for a disk.
    FilesInMemory,
    /// The command's files are on a device of the guest each of whose requests takes the same time.
    StorageWithTime,
    /// CPUs run one after the other.
    CpusTakeTurns,
    /// Huge pages are given by another mode than the machine's.
    HugePages,
    /// Values of the recording machine were taken over.
    LikeHost,
    /// Time is the number of instructions.
    TimeIsWork,
}

impl ConditionKind {
    /// The name, as JSON has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::FilesInMemory => "files_in_memory",
            Self::StorageWithTime => "storage_with_time",
            Self::CpusTakeTurns => "cpus_take_turns",
            Self::HugePages => "huge_pages",
            Self::LikeHost => "like_host",
            Self::TimeIsWork => "time_is_work",
        }
    }
}

/// A property of the guest that matters to a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Condition {
    /// The property.
    pub what: ConditionKind,
    /// One line for the head of a report.
    pub text: String,
    /// Counts of the run by which it matters, by name. Those that are not known are absent.
    pub numbers: BTreeMap<String, u64>,
    /// The remedy: an option, or another measurement.
    pub remedy: String,
}

impl Condition {
    /// True if every run of such a guest has it. Heads of tables show it on request alone.
    #[must_use]
    pub fn is_of_every_run(&self) -> bool {
        self.what == ConditionKind::TimeIsWork
    }
}

impl Manifest {
    /// The properties of the guest that matter to this run. Without a profile, those that depend on calls are left out.
    /// Empty for recordings of a machine's own processors.
    #[must_use]
    pub fn conditions(&self, profile: Option<&Profile>) -> Vec<Condition> {
        let files = profile.and_then(|profile| self.files_in_memory(profile));
        let (turns, pages) = (self.cpus_take_turns(profile), self.other_huge_pages(profile));
        [files, turns, pages, self.like_host(), self.time_is_work()].into_iter().flatten().collect()
    }

    /// True if it is known that one instruction of the guest takes one nanosecond, and one CPU runs at a time.
    fn counts_instructions(&self) -> bool {
        match self.kind {
            RunKind::Lab => self.option_facts().pace.as_deref() == Some(EXACT),
            // The observer refuses any other value of the option.
            RunKind::Machine => self.command.iter().any(|word| ICOUNT.contains(&word.as_str())),
            RunKind::Import | RunKind::Host => false,
        }
    }

    fn files_in_memory(&self, profile: &Profile) -> Option<Condition> {
        if self.kind != RunKind::Lab {
            return None;
        }
        let storage = self.option_facts().storage;
        let mut by_func = vec![0_u64; profile.funcs.len()];
        for call in &profile.syscalls {
            if let Some(count) = by_func.get_mut(call.func as usize) {
                *count += 1;
            }
        }
        let mut counts: BTreeMap<String, u64> = BTreeMap::new();
        for (func, count) in profile.funcs.iter().zip(by_func).filter(|&(_, count)| count > 0) {
            let name = syscall_name(&func.name);
            // A call of a program of 32 bits has a suffix.
            let name = name.split(' ').next().unwrap_or_default();
            if SYNCS.contains(&name) {
                *counts.entry(name.to_owned()).or_default() += count;
            }
        }
        if counts.is_empty() {
            return None;
        }
        let calls: Vec<String> =
            counts.iter().map(|(name, &count)| format!("{} {name}", grouped(count))).collect();
        if let Some(device) = storage {
            return Some(on_a_device(&device, &calls, counts));
        }
        let has_disks = self.option(OptionKey::Disk).and_then(|disks| disks.as_array());
        let remedy = if has_disks.is_some_and(|disks| !disks.is_empty()) {
            "the work of the disks' file systems is in the run; measure the time of a device on a machine that has one"
        } else {
            "`--storage nvme` (ssd, hdd, or the time of a request) gives the command's files a device whose requests take time"
        };
        Some(Condition {
            what: ConditionKind::FilesInMemory,
            text: format!("files are in memory: {} took no time of a disk", calls.join(", ")),
            numbers: counts,
            remedy: remedy.to_owned(),
        })
    }

    fn cpus_take_turns(&self, profile: Option<&Profile>) -> Option<Condition> {
        if self.vcpus < 2 || !self.counts_instructions() {
            return None;
        }
        let calls = profile.map_or(&[][..], |profile| profile.syscalls.as_slice());
        let cpus: BTreeSet<u16> = calls.iter().map(|call| call.cpu).collect();
        let tasks: BTreeSet<u32> = calls.iter().map(|call| call.task).collect();
        // A task that is alone, or tasks of one CPU, wait for no other CPU.
        if !calls.is_empty() && (cpus.len() < 2 || tasks.len() < 2) {
            return None;
        }
        let mut numbers = BTreeMap::from([("cpus".to_owned(), u64::from(self.vcpus))]);
        let mut text = format!("{} CPUs take turns", self.vcpus);
        if !calls.is_empty() {
            numbers.insert("tasks".to_owned(), tasks.len() as u64);
            text += &format!(", and {} ran on them", counted(tasks.len() as u64, "tasks"));
        }
        // What the guest measures itself, by its clock, knows nothing of turns.
        let has_flow = !calls.is_empty() || self.instruments.contains(&Instrument::Flow);
        let (which, remedy) = match has_flow {
            true => (
                "wall times and waits contain the turns of others; times on a CPU and intervals do not",
                "compare instructions or times on a CPU, or record with `--smp 1`",
            ),
            false => ("times contain the turns of others", "compare counts, or record with `--smp 1`"),
        };
        Some(Condition {
            what: ConditionKind::CpusTakeTurns,
            text: format!("{text}: {which}"),
            numbers,
            remedy: remedy.to_owned(),
        })
    }

    fn other_huge_pages(&self, profile: Option<&Profile>) -> Option<Condition> {
        let pages = self.huge_pages.as_ref()?;
        let (guest, machine) = (pages.guest.rank()?, pages.machine.rank()?);
        // A command that may have set another mode makes the guest's unknown.
        if guest == machine || profile.and_then(sets_huge_pages).is_some() {
            return None;
        }
        let faults = profile.map(|profile| (calls_of(profile, FAULT), calls_of(profile, HUGE_FAULT)));
        let matters = match faults {
            _ if self.instruments.contains(&Instrument::Tlb) => true,
            Some((small, _)) if guest < machine => small > 0,
            Some((_, huge)) => huge > 0,
            None => false,
        };
        if !matters {
            return None;
        }
        let mode = |mode: &HugePageMode| mode.name().unwrap_or_default();
        let (of_guest, of_machine) = (mode(&pages.guest), mode(&pages.machine));
        let mut numbers = BTreeMap::new();
        let mut text = format!(
            "huge pages: `{of_guest}` in the guest before the command, `{of_machine}` on the recording machine"
        );
        if let Some((all, huge)) = faults {
            numbers.insert("page_faults".to_owned(), all);
            numbers.insert("huge_page_faults".to_owned(), huge);
            text += &format!("; {} of {} were for one", grouped(huge), counted(all, "page faults"));
        }
        Some(Condition {
            what: ConditionKind::HugePages,
            text,
            numbers,
            remedy: format!(
                "`--like-host` gives the guest the machine's mode, with its limits and locale; `--append transparent_hugepage={of_machine}` the mode alone"
            ),
        })
    }

    /// The guest of another machine may have other values, and so may a later guest of this one.
    fn like_host(&self) -> Option<Condition> {
        let taken = self.option_facts().like_host?;
        let named = |kind: &str| taken.get(kind).into_iter().flatten();
        let mut told = Vec::new();
        let pages: Vec<String> = named("huge_pages").map(|(name, value)| format!("{name} {value}")).collect();
        if !pages.is_empty() {
            told.push(format!("huge pages {}", pages.join(", ")));
        }
        let limits = named("limits").count();
        if limits > 0 {
            told.push(counted(limits as u64, "limits"));
        }
        told.extend(named("variables").map(|(name, value)| format!("{name}={value}")));
        let mut text = format!("values of the recording machine: {}", printable(&told.join("; ")));
        if self.notes.iter().any(|note| note.starts_with(LIKE_HOST_NOTE)) {
            text += "; not all were taken over: see the notes of `kprism info`";
        }
        let number = |kind: &str| named(kind).count() as u64;
        let numbers = ["huge_pages", "limits", "variables"].map(|kind| (kind.to_owned(), number(kind)));
        Some(Condition {
            what: ConditionKind::LikeHost,
            text,
            numbers: BTreeMap::from(numbers),
            remedy: "compare runs with the same values: `--like-host=RUN` takes those of a run, and without the option every machine's guest has the same"
                .to_owned(),
        })
    }

    fn time_is_work(&self) -> Option<Condition> {
        (self.clock.counts() && self.counts_instructions()).then(|| Condition {
            what: ConditionKind::TimeIsWork,
            text: "time is work: 1 ns an instruction, without caches or a pipeline".to_owned(),
            numbers: BTreeMap::from([("ns_per_instruction".to_owned(), 1)]),
            remedy: "compare instructions; for a processor's time record on one (`kprism record flow`, `kprism import`)"
                .to_owned(),
        })
    }
}

impl HugePages {
    /// The guest's mode for people: that before the command, which may have set another. Without a profile nobody knows whether it did.
    #[must_use]
    pub fn guest_text(&self, profile: Option<&Profile>) -> String {
        let text = self.guest.to_text();
        match (self.guest.name(), profile.and_then(sets_huge_pages)) {
            (None, _) => text,
            (Some(_), None) => format!("{text} before the command"),
            (Some(_), Some(setter)) => {
                format!("{text} before the command, which may have set another: `{setter}` ran")
            }
        }
    }
}

/// Syncs of a guest with a device: those of files that are elsewhere took no time, and no call tells where its file is.
fn on_a_device(device: &StorageFacts, calls: &[String], mut numbers: BTreeMap<String, u64>) -> Condition {
    let name = device.name.as_ref().map(|name| format!(" (`{}`)", printable(name))).unwrap_or_default();
    numbers.insert("request_ns".to_owned(), device.request_ns);
    Condition {
        what: ConditionKind::StorageWithTime,
        text: format!(
            "storage: {} on a model of a device{name}, each of whose requests takes {}",
            calls.join(", "),
            duration(device.request_ns)
        ),
        numbers,
        remedy: "`--storage TIME` gives a request the time that your device takes (docs/guest.md says how to measure it)"
            .to_owned(),
    }
}

/// The function by which a run may have set the mode of huge pages, if one was called.
fn sets_huge_pages(profile: &Profile) -> Option<&'static str> {
    SET_MODE.into_iter().find(|name| calls_of(profile, name) > 0)
}

/// Calls of the functions with this name.
fn calls_of(profile: &Profile, name: &str) -> u64 {
    let named: Vec<bool> = profile.funcs.iter().map(|func| func.name == name).collect();
    (profile.nodes.iter())
        .filter(|node| node.parent != NO_PARENT && named.get(node.func as usize) == Some(&true))
        .fold(0, |sum, node| sum.saturating_add(node.calls))
}

#[cfg(test)]
mod tests {
    use kprism_profile::{FrameKind, Func, Node, Syscall};

    use super::*;
    use crate::{Clock, NO_CLOCK};

    fn guest(vcpus: u32) -> Manifest {
        let mut manifest = Manifest::new(RunKind::Lab, vcpus);
        manifest.set(OptionKey::Pace, EXACT);
        manifest
    }

    /// A profile of these functions, each called so many times.
    fn profile(funcs: &[(&str, u64)]) -> Profile {
        let node = |(func, &(_, calls)): (usize, &(&str, u64))| Node {
            parent: 0,
            func: func as u32,
            calls,
            insns: 1,
            ns: 1,
            kind: FrameKind::Call,
        };
        let root = Node { parent: NO_PARENT, func: 0, calls: 0, insns: 0, ns: 0, kind: FrameKind::Root };
        Profile {
            funcs: funcs.iter().map(|(name, _)| Func { name: (*name).into(), ..Func::default() }).collect(),
            nodes: std::iter::once(root).chain(funcs.iter().enumerate().map(node)).collect(),
            ..Profile::default()
        }
    }

    fn call(func: u32, cpu: u16, task: u32) -> Syscall {
        Syscall { func, cpu, task, ..Syscall::default() }
    }

    fn kinds(conditions: &[Condition]) -> Vec<ConditionKind> {
        conditions.iter().map(|condition| condition.what).collect()
    }

    #[test]
    fn a_run_without_the_facts_has_the_line_of_every_run_alone() {
        let conditions = guest(1).conditions(Some(&profile(&[("__x64_sys_read", 1)])));
        assert_eq!(kinds(&conditions), [ConditionKind::TimeIsWork]);
        assert!(conditions[0].is_of_every_run());
        let mut fast = guest(2);
        fast.set(OptionKey::Pace, "fast");
        assert!(fast.conditions(None).is_empty());
        let without_clock = Clock { name: NO_CLOCK.into(), ..Clock::default() };
        let timeless = Manifest { clock: without_clock, ..guest(1) };
        assert!(timeless.conditions(None).is_empty());
    }

    #[test]
    fn a_machine_has_none_and_a_virtual_machine_the_turns_and_the_time_of_its_clock() {
        let mut calls = profile(&[("__x64_sys_fsync", 1)]);
        calls.syscalls = vec![call(0, 0, 0), call(0, 1, 1)];
        for kind in [RunKind::Import, RunKind::Host] {
            assert!(Manifest::new(kind, 2).conditions(Some(&calls)).is_empty(), "{kind:?}");
        }
        let mut machine = Manifest::new(RunKind::Machine, 2);
        machine.command = ["qemu-system-x86_64", "-smp", "2"].map(str::to_owned).to_vec();
        assert!(machine.conditions(Some(&calls)).is_empty());
        machine.command.extend(["-icount".to_owned(), "shift=0".to_owned()]);
        let conditions = machine.conditions(Some(&calls));
        assert_eq!(kinds(&conditions), [ConditionKind::CpusTakeTurns, ConditionKind::TimeIsWork]);
    }

    #[test]
    fn syncs_are_counted_by_name() {
        let mut calls = profile(&[("__x64_sys_fsync", 2), ("__x64_sys_msync", 1), ("__x64_sys_fstat", 1)]);
        calls.syscalls = vec![call(0, 0, 0), call(1, 0, 0), call(0, 0, 0), call(2, 0, 0), call(9, 0, 0)];
        let mut manifest = guest(1);
        let first = manifest.conditions(Some(&calls)).remove(0);
        assert_eq!(first.text, "files are in memory: 2 fsync, 1 msync took no time of a disk");
        assert_eq!(first.numbers, BTreeMap::from([("fsync".to_owned(), 2), ("msync".to_owned(), 1)]));
        assert!(first.remedy.contains("--storage"), "{}", first.remedy);
        // A disk of the guest is memory as well.
        manifest.set(OptionKey::Disk, serde_json::json!(["disk.ext4"]));
        let with_disk = manifest.conditions(Some(&calls)).remove(0);
        assert_eq!((with_disk.what, with_disk.remedy.contains("--storage")), (first.what, false));
        // A device's requests take time, which is the guest's own.
        manifest.set(
            OptionKey::Storage,
            serde_json::json!({"name": "nvme", "request_ns": 20_000, "depth": 64, "rotates": false}),
        );
        let timed = manifest.conditions(Some(&calls)).remove(0);
        assert_eq!(timed.what, ConditionKind::StorageWithTime);
        let text = "storage: 2 fsync, 1 msync on a model of a device (`nvme`), each of whose requests takes 20.000 µs";
        assert_eq!((timed.text.as_str(), timed.numbers["request_ns"]), (text, 20_000));
        manifest.set(OptionKey::Storage, "nvme");
        assert_eq!(manifest.option_facts().misread, ["storage"]);
        assert_eq!(kinds(&manifest.conditions(None)), [ConditionKind::TimeIsWork]);
    }

    #[test]
    fn turns_matter_to_several_tasks_on_several_cpus() {
        let told = |calls: &[Syscall], cpus: u32| {
            let profile = Profile { syscalls: calls.to_vec(), ..profile(&[("__x64_sys_read", 1)]) };
            let conditions = guest(cpus).conditions(Some(&profile));
            let turns = conditions.iter().find(|one| one.what == ConditionKind::CpusTakeTurns);
            turns.map(|one| one.text.clone())
        };
        assert_eq!(
            told(&[call(0, 0, 0), call(0, 1, 1)], 2).as_deref(),
            Some(
                "2 CPUs take turns, and 2 tasks ran on them: wall times and waits contain the turns of others; times on a CPU and \
                 intervals do not"
            )
        );
        assert_eq!(told(&[call(0, 0, 0), call(0, 1, 0)], 2), None, "one task");
        assert_eq!(told(&[call(0, 1, 0), call(0, 1, 1)], 2), None, "one CPU");
        assert_eq!(told(&[call(0, 0, 0), call(0, 1, 1)], 1), None);
        // Nobody counted system calls.
        assert_eq!(told(&[], 4).as_deref(), Some("4 CPUs take turns: times contain the turns of others"));
    }

    #[test]
    fn huge_pages_matter_where_the_modes_differ_and_pages_were_given() {
        use HugePageMode::{Always, Madvise, Never, Unknown};
        let told = |guest_mode: HugePageMode, machine: HugePageMode, faults: &[(&str, u64)]| {
            let huge_pages = Some(HugePages { guest: guest_mode, machine });
            let conditions = Manifest { huge_pages, ..guest(1) }.conditions(Some(&profile(faults)));
            let first = conditions.into_iter().find(|one| one.what == ConditionKind::HugePages)?;
            Some((first.text, first.remedy))
        };
        let (small, huge) = ((FAULT, 1234), (HUGE_FAULT, 3));
        let (text, remedy) = told(Always, Madvise, &[small, huge]).expect("a condition");
        assert_eq!(
            text,
            "huge pages: `always` in the guest before the command, `madvise` on the recording machine; 3 of 1,234 page faults were for one"
        );
        assert!(
            remedy.contains("transparent_hugepage=madvise") && remedy.contains("--like-host"),
            "{remedy}"
        );
        assert_eq!(told(Always, Madvise, &[small]), None, "no fault took a huge page");
        assert!(told(Never, Always, &[small]).is_some(), "the machine would have given huge pages");
        assert_eq!(told(Never, Always, &[]), None);
        assert_eq!(told(Always, Always, &[small, huge]), None);
        assert_eq!(told(Unknown("why".into()), Always, &[small, huge]), None);
        assert_eq!(told(Always, Unknown("why".into()), &[small, huge]), None);
        assert_eq!(
            told(Always, Madvise, &[small, huge, ("enabled_store", 1)]),
            None,
            "it may be another now"
        );
    }

    /// A script may set the mode, and nobody reads scripts: the calls tell.
    #[test]
    fn the_mode_of_the_guest_is_the_one_before_the_command() {
        let pages = |guest| HugePages { guest, machine: HugePageMode::Never };
        let always = pages(HugePageMode::Always);
        assert_eq!(always.guest_text(None), "always before the command");
        assert_eq!(always.guest_text(Some(&profile(&[(FAULT, 1)]))), "always before the command");
        let set = always.guest_text(Some(&profile(&[("thpsize_enabled_store", 1)])));
        assert_eq!(set, "always before the command, which may have set another: `thpsize_enabled_store` ran");
        assert_eq!(pages(HugePageMode::Unknown("why".into())).guest_text(None), "not known (why)");
    }

    #[test]
    fn values_of_the_recording_machine_are_told() {
        let mut manifest = guest(1);
        manifest.set(OptionKey::LikeHost, serde_json::Value::Null);
        assert_eq!(kinds(&manifest.conditions(None)), [ConditionKind::TimeIsWork]);
        let values = serde_json::json!({
            "huge_pages": {"defrag": "madvise", "enabled": "never"},
            "limits": {"nofile": "1024:4096", "stack": "8388608:unlimited"},
            "variables": {"LANG": "", "TZ": "Europe/Berlin"},
        });
        manifest.set(OptionKey::LikeHost, values);
        let told = manifest.conditions(None).remove(0);
        assert_eq!(told.what, ConditionKind::LikeHost);
        let text = "values of the recording machine: huge pages defrag madvise, enabled never; 2 limits; LANG=; TZ=Europe/Berlin";
        assert_eq!(told.text, text);
        assert_eq!(told.numbers["limits"], 2);
        manifest.notes.push("--like-host: not taken over: umask (0022 in the guest, 0077 here)".to_owned());
        let told = manifest.conditions(None).remove(0);
        assert!(told.text.starts_with(text) && told.text.contains("not all"), "{}", told.text);
        manifest.set(OptionKey::LikeHost, 1);
        assert_eq!(manifest.option_facts().misread, ["like_host"]);
    }

    #[test]
    fn huge_pages_matter_to_tlb_misses_without_a_profile() {
        let huge_pages = Some(HugePages { guest: HugePageMode::Always, machine: HugePageMode::Never });
        let mut manifest = Manifest { huge_pages, ..guest(1) };
        assert_eq!(kinds(&manifest.conditions(None)), [ConditionKind::TimeIsWork]);
        manifest.instruments.push(Instrument::Tlb);
        let conditions = manifest.conditions(None);
        assert_eq!(kinds(&conditions), [ConditionKind::HugePages, ConditionKind::TimeIsWork]);
        assert!(conditions[0].numbers.is_empty(), "no faults were counted");
    }

    #[test]
    fn json_has_the_kind_the_text_the_numbers_and_the_remedy() {
        let conditions = guest(1).conditions(None);
        let value = serde_json::to_value(&conditions).expect("JSON");
        assert_eq!(value[0]["what"], "time_is_work");
        assert_eq!(value[0]["numbers"], serde_json::json!({"ns_per_instruction": 1}));
        assert!(value[0]["text"].is_string() && value[0]["remedy"].is_string());
        use ConditionKind::{CpusTakeTurns, FilesInMemory, HugePages, LikeHost, StorageWithTime, TimeIsWork};
        for kind in [FilesInMemory, StorageWithTime, CpusTakeTurns, HugePages, LikeHost, TimeIsWork] {
            assert_eq!(serde_json::to_value(kind).expect("JSON"), kind.name());
        }
    }
}
