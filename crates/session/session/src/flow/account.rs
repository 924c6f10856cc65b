// SPDX-License-Identifier: MIT OR Apache-2.0
//! Step 4: the account of a decoded flow: the recorder's own counts beside the decoder's.
//!
//! In: what the recorder counted (`streams/counts.json`), what the decoder counted, how long the streams are. Out: an
//! [`Account`]. A stream that is shorter than its recorder wrote is named here: its packets decode without an error.

use std::collections::BTreeMap;

use kprism_flow::Stats;
use kprism_image::sideband::Record;
use kprism_image::symbols::Checked;
use kprism_profile::units::{grouped, printable};
use kprism_profile::{NO_PARENT, Node, Profile};
use kprism_store::{Account, Clock, Fate};

use super::load::Loaded;
use super::recorded::Recorded;

/// Lengths of the streams in bytes, by CPU.
type Lengths = [u64];

/// The account of `profile`: the part of the recording that is in it.
pub(super) fn of(loaded: &Loaded, profile: &Profile) -> Account {
    let mut account = account(loaded.recorded.as_ref(), &loaded.lengths(), profile, &loaded.all_notes());
    account = enter_nowhere(account, profile);
    account = enter_modules(account, loaded.recorded.as_ref());
    // Without any task switch, no task is expected to be known.
    if loaded.records.iter().any(|record| matches!(record, Record::Switch(_))) {
        account = enter_no_task(account, profile);
    }
    account = enter_checked(account, &loaded.checked);
    // Programs alone have no preemption to count.
    let in_kernel = |node: &Node| profile.funcs.get(node.func as usize).is_some_and(|func| func.kernel);
    let kernel_ran = || profile.nodes.iter().any(|node| node.insns > 0 && in_kernel(node));
    if loaded.preemption.count.is_none() && kernel_ran() {
        let why = vec![NO_PREEMPTION.to_owned()];
        account = account.at(Fate::NotUnderstood, "times with preemption off", None, why);
    }
    enter_clock(account, &loaded.manifest.clock)
}

/// Adds the instructions of programs on a CPU that is idle as far as task switches tell: the idle task runs none.
fn enter_no_task(account: Account, profile: &Profile) -> Account {
    let task_of = profile.task_of_nodes();
    let is_idle = |task: &Option<u32>| task.is_some_and(|task| profile.tasks[task as usize].pid == 0);
    let of_program = |node: &Node| profile.funcs.get(node.func as usize).is_some_and(|func| !func.kernel);
    let nodes = profile.nodes.iter().zip(&task_of).filter(|(node, _)| node.parent != NO_PARENT);
    let insns: u64 =
        nodes.filter(|(node, task)| is_idle(task) && of_program(node)).map(|(node, _)| node.insns).sum();
    match insns {
        0 => account,
        n => account.with(Fate::NotUnderstood, "instructions of programs in no known task", n),
    }
}

/// Unit of the mappings whose code is not that of the file at their path.
const OTHER_CODE: &str = "mappings whose code is not the file's";

/// Unit of the mappings of which it is not known whether their code is that of the file at their path.
const NOT_COMPARED: &str = "mappings whose code was not compared with the file's";

/// Adds the mappings of files that are not those at their paths, or need not be.
fn enter_checked(account: Account, checked: &Checked) -> Account {
    let lists = [(OTHER_CODE, &checked.others), (NOT_COMPARED, &checked.not_compared)];
    lists.into_iter().fold(account, |account, (unit, mappings)| match mappings.len() as u64 {
        0 => account,
        n => account.at(Fate::NotUnderstood, unit, n, mappings.clone()),
    })
}

/// Unit of the instructions in the kernel's row without a name.
const NAMELESS: &str = "instructions of kernel code that has no name";

/// Adds the instructions that no row of a list of functions has, and those in the kernel's row `[unknown]`: of modules that were
/// unloaded unseen, of BPF programs that are gone. A program's file without symbols has a note of its own.
fn enter_nowhere(account: Account, profile: &Profile) -> Account {
    let in_rows = profile.funcs.iter().zip(profile.self_instructions());
    let nameless: u64 = in_rows.filter(|(func, _)| func.is_nameless_kernel_code()).map(|(_, own)| own).sum();
    [("instructions in no known function", profile.insns_in_no_function()), (NAMELESS, nameless)]
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .fold(account, |account, (unit, n)| account.with(Fate::NotUnderstood, unit, n))
}

/// Adds the modules that came while it was recorded, and whose functions have no names, or not all of them.
fn enter_modules(account: Account, recorded: Option<&Recorded>) -> Account {
    let Some(modules) = recorded.and_then(|recorded| recorded.modules) else { return account };
    [
        ("modules whose functions the recorder could not read", modules.unnamed),
        ("functions of modules beyond the recorder's limit", modules.cut_functions),
    ]
    .into_iter()
    .filter(|(_, n)| *n > 0)
    .fold(account, |account, (unit, n)| account.with(Fate::NotUnderstood, unit, n))
}

/// The account of the streams that a profile was decoded from, without the recorder's counts: they are of the whole run, and
/// the profile may be of a part.
pub(super) fn of_streams(loaded: &Loaded, profile: &Profile) -> Account {
    let guessed = &profile.totals.guessed;
    let account = loaded.account(Undecoded::of_profile(profile));
    guessed.iter().fold(account, |account, (unit, n)| account.with(Fate::Guessed, unit, *n))
}

/// Why times are not nanoseconds.
const NO_FREQUENCY: &str =
    "the recording does not tell it: a tick is shown as a nanosecond (import --tsc-hz)";

/// Adds a clock of unknown frequency.
pub(crate) fn enter_clock(account: Account, clock: &Clock) -> Account {
    if !clock.is_guessed() {
        return account;
    }
    account.at(Fate::Guessed, "frequency of the clock", None, vec![NO_FREQUENCY.to_owned()])
}

/// Why an interval with preemption off is not known.
pub const NO_PREEMPTION: &str = "the kernel's symbols do not tell where it counts preemption: neither __preempt_count nor pcpu_hot is among them";

/// Adds up what is known of a decode. `notes` are faults that the loader found beside the packets.
fn account(recorded: Option<&Recorded>, lengths: &Lengths, profile: &Profile, notes: &[String]) -> Account {
    let totals = &profile.totals;
    let decoded = totals.instructions();
    let counted = recorded.and_then(|r| r.instructions);
    let mut account = Account::new()
        .with(Fate::Seen, "instructions", counted)
        .with(Fate::Seen, "bytes of packets", lengths.iter().sum::<u64>())
        .with(Fate::Kept, "instructions", decoded);
    for (kind, n) in &totals.packet_events {
        account = account.with(Fate::Seen, &format!("{kind} events"), *n);
    }
    account = Undecoded::of_profile(profile).enter(account, notes);
    for (unit, n) in totals.unended.units() {
        account = account.with(Fate::Seen, unit, n);
    }
    for (unit, n) in &totals.guessed {
        account = account.with(Fate::Guessed, unit, *n);
    }
    if let Some(counted) = counted {
        account = account.with(Fate::Lost, "instructions", counted.saturating_sub(decoded));
    }
    if let Some(recorded) = recorded.filter(|r| r.knows_lengths()) {
        account = enter_cut(account, recorded, lengths);
        if let Some(unexplained) = recorded.unexplained {
            account =
                account.with(Fate::Guessed, "branches that the recorder could not explain", unexplained);
        }
    }
    account
}

/// Adds the bytes that the streams lack.
fn enter_cut(account: Account, recorded: &Recorded, lengths: &Lengths) -> Account {
    let cut: Vec<(usize, u64)> = missing(recorded, lengths);
    let places = cut.iter().map(|(cpu, n)| format!("streams/cpu{cpu}.pt is {n} bytes shorter than recorded"));
    let sum = cut.iter().map(|(_, n)| n).sum::<u64>();
    account.at(Fate::Lost, "bytes cut off the streams", sum, places.collect())
}

impl Loaded {
    /// The account of the streams alone, for those who replay them: what was not decoded, and what files lack.
    pub fn account(&self, undecoded: Undecoded) -> Account {
        let account = enter_clock(undecoded.enter(Account::new(), &self.all_notes()), &self.manifest.clock);
        let account = enter_checked(account, &self.checked);
        match self.recorded.as_ref().filter(|recorded| recorded.knows_lengths()) {
            Some(recorded) => enter_cut(account, recorded, &self.lengths()),
            None => account,
        }
    }

    /// What the import could not use, and faults of the run's files.
    fn all_notes(&self) -> Vec<String> {
        let imported = self.manifest.option_facts().import_notes;
        imported.into_iter().chain(self.notes.iter().cloned()).collect()
    }

    /// Remarks on what no decoder finds: faults of files, and streams that are shorter than recorded, whose packets decode without
    /// an error. Whoever prints as it decodes has to say them.
    pub fn remarks(&self) -> Vec<String> {
        let mut remarks = self.notes.clone();
        let Checked { others, not_compared } = &self.checked;
        for (unit, effect, mappings) in [
            (OTHER_CODE, "their functions are not known", others),
            (NOT_COMPARED, "their functions may be another file's", not_compared),
        ] {
            if let Some(first) = mappings.first() {
                let n = grouped(mappings.len() as u64);
                remarks.push(format!("{n} {unit}: {effect}; the first is {first}"));
            }
        }
        if let Some(recorded) = self.recorded.as_ref().filter(|recorded| recorded.knows_lengths()) {
            let cut = missing(recorded, &self.lengths()).into_iter().map(|(cpu, n)| {
                format!(
                    "streams/cpu{cpu}.pt is {} bytes shorter than recorded: what it held is not in this",
                    grouped(n)
                )
            });
            remarks.extend(cut);
        }
        remarks
    }
}

/// Parts of the streams that were not decoded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct Undecoded {
    /// Places at which the decoder lost the flow.
    pub errors: u64,
    /// Overflows of the recorder's buffer.
    pub overflows: u64,
    /// Bytes of packets skipped until the flow was known again.
    pub lost_bytes: u64,
    /// The first of the errors.
    pub places: Vec<String>,
}

impl Undecoded {
    /// Adds up the counters of all CPUs' decoders.
    pub(super) fn of(stats: &[Stats]) -> Self {
        let mut missing = BTreeMap::new();
        stats.iter().fold(Undecoded::default(), |sum, of| {
            let mut of = of.clone();
            of.enter_missing(&mut missing);
            Undecoded {
                errors: sum.errors + of.errors,
                overflows: sum.overflows + of.overflows,
                lost_bytes: sum.lost_bytes + of.lost_bytes,
                places: Vec::new(),
            }
        })
    }

    /// The same, as a profile has them.
    fn of_profile(profile: &Profile) -> Self {
        let places = profile.errors.iter().map(|e| {
            format!(
                "streams/cpu{}.pt, byte {:#x}, after {:#x}: {}",
                e.cpu,
                e.offset,
                e.ip,
                printable(&e.kind)
            )
        });
        let totals = &profile.totals;
        Undecoded {
            errors: totals.errors(),
            overflows: totals.overflows(),
            lost_bytes: totals.lost_bytes(),
            places: places.take(4).collect(),
        }
    }

    /// A remark on them; `None` if everything was decoded.
    pub fn note(&self) -> Option<String> {
        let Undecoded { errors, overflows, lost_bytes, .. } = *self;
        (errors + overflows + lost_bytes > 0).then(|| {
            format!(
                "not all is decoded: {} decode errors, {} overflows of the recorder's buffer, {} bytes of packets skipped",
                grouped(errors),
                grouped(overflows),
                grouped(lost_bytes)
            )
        })
    }

    /// Adds them to an account, with the loader's remarks on files.
    fn enter(self, account: Account, notes: &[String]) -> Account {
        account
            .with(Fate::Lost, "bytes of packets skipped", self.lost_bytes)
            .with(Fate::Lost, "overflows of the recorder's buffer", self.overflows)
            .at(Fate::NotUnderstood, "decode errors", self.errors, self.places)
            .at(Fate::NotUnderstood, "damaged or missing files", notes.len() as u64, notes.to_vec())
    }
}

/// CPUs whose stream is shorter than the recorder says it wrote, and by how much.
fn missing(recorded: &Recorded, lengths: &Lengths) -> Vec<(usize, u64)> {
    let both = recorded.pt_bytes.iter().zip(lengths).enumerate();
    let short = both.map(|(cpu, (written, &there))| (cpu, written.map_or(0, |n| n.saturating_sub(there))));
    short.filter(|(_, missing)| *missing > 0).collect()
}

#[cfg(test)]
mod tests {
    use kprism_profile::{FrameKind, Func, Task};

    use super::*;

    #[test]
    fn a_stream_cut_short_is_a_loss_without_a_decode_error() {
        let mut recorded = Recorded::default();
        (recorded.instructions, recorded.pt_bytes) = (Some(100), vec![Some(64)]);
        let mut profile = Profile::default();
        profile.totals.per_cpu = vec![kprism_profile::CpuTotals { instructions: 40, ..Default::default() }];
        let account = account(Some(&recorded), &[24], &profile, &[]);
        assert!(!account.is_whole());
        assert_eq!(account.count(Fate::Lost, "instructions"), Some(60));
        assert_eq!(account.count(Fate::Lost, "bytes cut off the streams"), Some(40));
        assert!(
            account.to_text().contains("cpu0.pt is 40 bytes shorter than recorded"),
            "{}",
            account.to_text()
        );
    }

    #[test]
    fn a_guess_of_the_decoder_is_no_whole_result() {
        let mut profile = Profile::default();
        let of = |profile: &Profile| account(None, &[24], profile, &[]).count(Fate::Guessed, "tasks");
        assert_eq!(of(&profile), None);
        profile.totals.guessed.insert("tasks".into(), 2);
        assert_eq!(of(&profile), Some(2));
        assert!(!account(None, &[24], &profile, &[]).is_whole());
    }

    /// A program runs where the records say that the CPU is idle: nothing tells whose instructions they are.
    #[test]
    fn programs_in_the_idle_task_are_told() {
        let node = |parent, func, insns, kind| Node { parent, func, calls: 0, insns, ns: 0, kind };
        let func = |kernel| Func { kernel, ..Func::default() };
        let task = |pid, root| Task { pid, tgid: pid, comm: String::new(), root };
        let mut profile = Profile {
            funcs: vec![func(true), func(false)],
            tasks: vec![task(0, 0), task(7, 1)],
            nodes: vec![
                node(NO_PARENT, 0, 0, FrameKind::Root),
                node(NO_PARENT, 0, 0, FrameKind::Root),
                node(0, 0, 100, FrameKind::Call),
                node(1, 1, 100, FrameKind::Call),
            ],
            ..Profile::default()
        };
        let of = |profile: &Profile| {
            let account = enter_no_task(Account::new(), profile);
            account.count(Fate::NotUnderstood, "instructions of programs in no known task")
        };
        assert_eq!(of(&profile), None);
        profile.nodes.push(node(2, 1, 4, FrameKind::Call));
        assert_eq!(of(&profile), Some(4));
    }

    #[test]
    fn mappings_of_other_files_are_told_with_their_places() {
        assert_eq!(enter_checked(Account::new(), &Checked::default()), Account::new());
        let others = vec!["/lib/x.so at 0x1000".to_owned()];
        let account = enter_checked(Account::new(), &Checked { others, ..Checked::default() });
        assert!(!account.is_whole());
        assert!(
            account.to_text().contains("1 mapping whose code is not the file's\n"),
            "{}",
            account.to_text()
        );
        assert!(account.to_text().contains("/lib/x.so at 0x1000"), "{}", account.to_text());
        let not_compared = vec!["/lib/y.so at 0x2000: the file ends before its code".to_owned()];
        let account = enter_checked(Account::new(), &Checked { not_compared, ..Checked::default() });
        assert_eq!(account.count(Fate::NotUnderstood, NOT_COMPARED), Some(1));
        assert!(!account.is_whole() && account.to_text().contains("/lib/y.so"), "{}", account.to_text());
    }

    #[test]
    fn instructions_in_no_function_are_told() {
        let node = |parent, insns, kind| Node { parent, func: 0, calls: 0, insns, ns: 0, kind };
        let nodes = vec![node(NO_PARENT, 0, FrameKind::Root), node(0, 5, FrameKind::Call)];
        let mut profile = Profile { nodes, ..Profile::default() };
        let of = |profile: &Profile| {
            let account = enter_nowhere(Account::new(), profile);
            account.count(Fate::NotUnderstood, "instructions in no known function")
        };
        assert_eq!(of(&profile), None);
        profile.nodes[0].insns = 3;
        assert_eq!(of(&profile), Some(3));
    }

    #[test]
    fn instructions_of_a_module_without_names_are_told() {
        let func = |name: &str, module: &str, kernel| Func {
            name: name.to_owned(),
            module: module.to_owned(),
            kernel,
            ..Func::default()
        };
        let funcs = vec![
            func("[unknown]", "[kernel]", true),
            func("vfs_read", "[kernel]", true),
            func("[unknown]", "/bin/x", false),
        ];
        let node = |parent, func, insns, kind| Node { parent, func, calls: 0, insns, ns: 0, kind };
        let mut nodes = vec![node(NO_PARENT, 0, 0, FrameKind::Root)];
        nodes.extend([(0, 7), (1, 20), (2, 300)].map(|(func, insns)| node(0, func, insns, FrameKind::Call)));
        let profile = Profile { funcs, nodes, ..Profile::default() };
        let account = enter_nowhere(Account::new(), &profile);
        assert_eq!(account.count(Fate::NotUnderstood, NAMELESS), Some(7));
        assert_eq!(account.count(Fate::NotUnderstood, "instructions in no known function"), None);
    }

    #[test]
    fn modules_without_names_are_told() {
        let of = |counts: &str| {
            let mut recorded = Recorded::default();
            recorded.modules = serde_json::from_str(counts).unwrap();
            enter_modules(Account::new(), Some(&recorded))
        };
        assert!(of(r#"{"named": 3, "unnamed": 0, "cut_functions": 0}"#).is_empty());
        assert!(of("null").is_empty());
        let told = of(r#"{"named": 3, "unnamed": 1, "cut_functions": 9}"#).to_text();
        assert!(
            told.contains("1 module whose functions") && told.contains("9 functions of modules"),
            "{told}"
        );
    }

    #[test]
    fn a_stream_of_unknown_length_moves_no_other() {
        let mut recorded = Recorded::default();
        recorded.pt_bytes = vec![None, Some(64)];
        assert_eq!(missing(&recorded, &[24, 60]), [(1, 4)]);
    }

    #[test]
    fn without_a_recorder_the_instructions_seen_are_not_known() {
        let account = account(None, &[24], &Profile::default(), &[]);
        assert_eq!(account.count(Fate::Seen, "instructions"), None);
        assert!(account.to_text().contains("instructions not known"));
    }
}
