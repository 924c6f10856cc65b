// SPDX-License-Identifier: MIT OR Apache-2.0
//! The manifest of a run. The input is the facts that the recorder and the decoder know: the command, the machine, the
//! clock, and the losses. The output is `manifest.json`. These facts are in one small file so that a run can be
//! described without reading its streams.

use crate::hash::hex;
use crate::{
    Account, DurationFacts, Environment, Fate, HugePages, Instrument, KernelTests, OptionKey, ProbeFacts,
};
use kprism_profile::units::grouped;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};

/// Said of a run of which nobody knows whether it is whole.
const NO_ACCOUNT: &str = "it has no account of what was lost";

/// Unit of recorded files that are missing or shorter than recorded.
const FILES: &str = "files of the recording";

/// Unit of recorded files that have more bytes than were recorded: something was appended, or they are another run's.
const GROWN: &str = "files longer than recorded";

/// Unit of tables of which the manifest does not tell that they are the run's.
const UNMARKED: &str = "tables without a mark";

/// Why nobody knows which files are missing.
const NO_FILES: &str =
    "manifest.json lists no files: it is of an older version, or they were taken out of it";

/// Unit of options whose values are of another type than expected.
const OPTIONS: &str = "options of the manifest";

/// Unit of facts that this version does not know: the layout's version, and keys of the manifest.
const FACTS: &str = "facts of another version";

/// Version of the run folder's layout.
pub const VERSION: u32 = 1;

/// Unit of what a recording lacks that ended early.
const AFTER_END: &str = "events after the early end of the recording";

/// Origin of the streams of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RunKind {
    /// A guest of the lab, usually observed from outside.
    #[default]
    Lab,
    /// A machine of the user's in QEMU, observed from outside.
    Machine,
    /// Streams that were recorded elsewhere.
    Import,
    /// This machine, recorded by its kernel's tracers or QEMU's user mode.
    Host,
}

/// The clock of every `_ns` value in the run, and the ratios needed to interpret time packets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Name for people: `guest-virtual`, `host-tsc`, …
    pub name: String,
    /// Frequency of the time stamp counter, in Hz. 0 if it is not known: a tick then stands for a nanosecond.
    pub tsc_hz: u64,
    /// perf's conversion of TSC to its own time. If it is there, times of the flow are perf's, to the nanosecond.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub perf: Option<PerfClock>,
    /// Numerator in TSC = ART · `art_num` / `art_den` (CPUID leaf 15H EBX and EAX).
    pub art_num: u32,
    /// Denominator; see `art_num`.
    pub art_den: u32,
    /// An MTC packet is sent every 2^`mtc_freq` ART ticks (`IA32_RTIT_CTL.MTCFreq`).
    pub mtc_freq: u8,
    /// Maximum non-turbo ratio (`MSR_PLATFORM_INFO` bits 15:8), the reference for CBR packets.
    pub nom_ratio: u8,
    /// Minimum number of cycles between two CYC packets (`IA32_RTIT_CTL.CycThresh`). 0 if all were sent or the value is
    /// unknown.
    #[serde(default)]
    pub cyc_threshold: u64,
}

/// perf's conversion of TSC ticks to ns, as it stands in a recording: ns = `zero` + TSC · `mult` / 2^`shift`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerfClock {
    /// Multiplier.
    pub mult: u64,
    /// Binary digits by which the product is shifted.
    pub shift: u32,
    /// perf's time at TSC 0, ns. It is negative on a machine whose TSC ran before its kernel's clock.
    pub zero: i64,
}

impl Clock {
    /// False if the run has no times.
    #[must_use]
    pub fn counts(&self) -> bool {
        self.name != NO_CLOCK
    }

    /// True if the run has times, and nothing tells how long a tick is: one stands for a nanosecond.
    #[must_use]
    pub fn is_guessed(&self) -> bool {
        self.counts() && self.tsc_hz == 0 && self.perf.is_none()
    }

    /// Name and frequency for people.
    #[must_use]
    pub fn to_text(&self) -> String {
        match (self.counts(), self.tsc_hz) {
            (false, _) => "none: the run has no times".to_owned(),
            (true, 0) => format!("{}, of a frequency that is not known", self.name),
            (true, hz) => format!("{}, {} Hz", self.name, grouped(hz)),
        }
    }
}

/// Name of the clock of a run without times.
pub const NO_CLOCK: &str = "none";

impl Default for Clock {
    fn default() -> Self {
        Clock {
            name: "guest-virtual".into(),
            tsc_hz: 1_000_000_000,
            perf: None,
            art_num: 40,
            art_den: 1,
            mtc_freq: 3,
            nom_ratio: 10,
            cyc_threshold: 0,
        }
    }
}

/// The kernel of the traced machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// Release, as `uname -r` prints it.
    pub release: String,
    /// GNU build ID in hexadecimal; empty if unknown.
    #[serde(default)]
    pub build_id: String,
    /// The tree in which the user built it, if they named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tree: Option<KernelTree>,
    /// Modules that the user built: those put into the guest by file or from a tree, and those that the command loaded from a
    /// shared folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<KernelModule>,
}

/// A kernel module that the user built.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelModule {
    /// Its name, as in `/proc/modules`.
    pub name: String,
    /// Its file on the machine that recorded. The run has a copy, if it was not too large. The file may have been built again since:
    /// it is only used if its build id is this.
    pub file: PathBuf,
    /// GNU build ID in hexadecimal; empty if it has none.
    #[serde(default)]
    pub build_id: String,
}

/// The tree that a kernel was built in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelTree {
    /// The build folder on the machine that recorded. It may have been built again since: files in it are only used if
    /// their build id is the kernel's.
    pub folder: PathBuf,
    /// The commit that was checked out, if the source is a git repository.
    #[serde(default)]
    pub commit: Option<String>,
    /// True if tracked files differed from that commit; `None` if that is not known.
    #[serde(default)]
    pub changed: Option<bool>,
    /// Options that the kernel was built without, each with what is not seen of the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gaps: Vec<String>,
}

/// The processor that a trace of hardware comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Processor {
    /// Family, including the extended family (CPUID leaf 1).
    pub family: u16,
    /// Model, including the extended model.
    pub model: u8,
    /// Stepping.
    pub stepping: u8,
    /// Errata of its Intel PT that the decoder works around, by their numbers; `None` if the model is not known.
    #[serde(default)]
    pub errata: Option<Vec<String>>,
    /// First and last address of the ranges that its address filter let through; empty without a filter, or if unknown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filter: Vec<(u64, u64)>,
}

/// Contents of `manifest.json`. It is the only file of a run that contains wall-clock dates.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the run folder's layout. The account says if it is another one than this program's.
    pub version: u32,
    /// Program that made the run, with its version.
    #[serde(default)]
    pub tool: String,
    /// Names this recording among all others: 32 hexadecimal digits. Empty in runs of older versions; see
    /// [`Manifest::run_id`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run_id: String,
    /// Origin of the streams.
    pub kind: RunKind,
    /// The instruments that recorded into the run; the files of older runs tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instruments: Vec<Instrument>,
    /// Command that was observed; empty if there was none.
    #[serde(default)]
    pub command: Vec<String>,
    /// Kernel on which the run was recorded, if known.
    #[serde(default)]
    pub kernel: Option<Kernel>,
    /// All that an exact run depends on beside the command; `None` of other runs, and of older ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<Environment>,
    /// Modes of transparent huge pages, of the guest and of the machine that recorded it; `None` of other runs, and of older ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub huge_pages: Option<HugePages>,
    /// The processor, if it was one and the recording names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processor: Option<Processor>,
    /// Time of creation, as RFC 3339 in UTC.
    #[serde(default)]
    pub created: String,
    /// Clock of all times.
    #[serde(default)]
    pub clock: Clock,
    /// Number of CPUs that have a stream.
    pub vcpus: u32,
    /// Exit code of the command, if it ended.
    #[serde(default)]
    pub exit_code: Option<i32>,
    /// Number of instructions decoded, if the run has been decoded.
    #[serde(default)]
    pub instructions: Option<u64>,
    /// Number of instructions according to the recorder, if it counts them.
    #[serde(default)]
    pub instructions_recorded: Option<u64>,
    /// Number of places that could not be decoded, if the run has been decoded.
    #[serde(default)]
    pub decode_errors: Option<u64>,
    /// Bytes lost by the recorder or skipped by the decoder.
    #[serde(default)]
    pub lost_bytes: u64,
    /// Reason for an early end of the recording, if there was one.
    #[serde(default)]
    pub stopped: Option<String>,
    /// What else a reader of the run has to know, in sentences: what was changed for the recording, and what has no names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Everything needed to repeat the run, such as command-line options and versions of tools.
    #[serde(default)]
    pub options: BTreeMap<String, serde_json::Value>,
    /// Facts of a recording of durations.
    #[serde(flatten)]
    pub durations: DurationFacts,
    /// Facts of a recording of probes.
    #[serde(flatten)]
    pub probe: ProbeFacts,
    /// The tests that the command was, if they are the kernel's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests: Option<KernelTests>,
    /// Files that were recorded, by path below the run's folder, with their lengths in bytes; empty in runs of older
    /// versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, u64>,
    /// Tables that were made of the run, by name, each with its mark: the start of the SHA-256 of its file. Empty in runs of
    /// older versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tables: BTreeMap<String, String>,
    /// Recorded files that were missing, or shorter than recorded, when the manifest was read. Not a part of the file.
    #[serde(skip)]
    pub absent: Vec<String>,
    /// Recorded files that were longer than recorded when the manifest was read, with what is there.
    #[serde(skip)]
    pub grown: BTreeMap<String, String>,
    /// True if the manifest, when it was read, listed no files although its recording had ended.
    #[serde(skip)]
    pub unlisted: bool,
    /// Tables that were there when the manifest was read, and of which it has no mark.
    #[serde(skip)]
    pub unmarked: Vec<String>,
    /// Account of each instrument, as far as it is known from its recorder and reader. [`Manifest::account`] adds what is
    /// known of the recording.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub accounts: BTreeMap<Instrument, Account>,
    /// Fields of later versions, which are kept when the manifest is written again.
    #[serde(flatten)]
    pub other: BTreeMap<String, serde_json::Value>,
}

impl Manifest {
    /// Names tables that were just written, with their marks.
    pub fn name_tables(&mut self, marks: impl IntoIterator<Item = (String, String)>) {
        for (name, mark) in marks {
            self.unmarked.retain(|path| *path != table_path(&name));
            self.tables.insert(name, mark);
        }
    }

    /// True if there is at least one account, all accounts are whole (see [`Account::is_whole`]), and so is the recording.
    pub fn is_whole(&self) -> bool {
        self.fault().is_none()
    }

    /// The account of an instrument, with what is known of the recording; `None` if it has none, or one without a count.
    pub fn account(&self, instrument: Instrument) -> Option<Account> {
        let account = self.accounts.get(&instrument).filter(|account| !account.is_empty())?;
        Some(self.with_recording(account.clone()))
    }

    /// This account, with what is known of the recording: files that are missing, shorter, longer or not listed, tables
    /// without a mark, and an early end. An account that has these already gets them anew.
    #[must_use]
    pub fn with_recording(&self, mut account: Account) -> Account {
        let own = [FILES, AFTER_END, OPTIONS, FACTS, GROWN, UNMARKED];
        account.entries.retain(|entry| !own.contains(&entry.unit.as_str()));
        // Where no files are listed, those that are known to be missing may be a few of many: one entry, whose count is not known.
        if self.unlisted {
            account = account.at(Fate::Lost, FILES, None, vec![NO_FILES.to_owned()]);
        }
        if !self.absent.is_empty() {
            account = account.at(Fate::Lost, FILES, self.absent.len() as u64, self.absent.clone());
        }
        if !self.grown.is_empty() {
            let places = self.grown.values().cloned().collect();
            account = account.at(Fate::NotUnderstood, GROWN, self.grown.len() as u64, places);
        }
        if !self.unmarked.is_empty() {
            account = account.at(Fate::Guessed, UNMARKED, self.unmarked.len() as u64, self.unmarked.clone());
        }
        if self.stopped.is_some() {
            account = account.with(Fate::Lost, AFTER_END, None);
        }
        let misread = self.option_facts().misread;
        if !misread.is_empty() {
            account = account.at(Fate::NotUnderstood, OPTIONS, misread.len() as u64, misread);
        }
        let facts = self.facts_of_another_version();
        if !facts.is_empty() {
            account = account.at(Fate::NotUnderstood, FACTS, facts.len() as u64, facts);
        }
        account
    }

    /// What another version wrote that this one does not know. A fact that this one looks for may be among it: that it finds
    /// none under its own name says nothing.
    fn facts_of_another_version(&self) -> Vec<String> {
        let version = (self.version != VERSION)
            .then(|| format!("version {} of the run folder; this kprism reads {VERSION}", self.version));
        version.into_iter().chain(self.other.keys().map(|key| format!("manifest.json: {key}"))).collect()
    }

    /// Why the run is not whole, in words; `None` if it is.
    pub fn fault(&self) -> Option<String> {
        self.recording_fault().or_else(|| self.accounts.is_empty().then(|| NO_ACCOUNT.into()))
    }

    /// The same, of a run that need not have an account: an early end, files that are missing, or the first account that is
    /// not whole.
    pub fn recording_fault(&self) -> Option<String> {
        if let Some(reason) = &self.stopped {
            return Some(format!("recording ended early: {reason}"));
        }
        if let Some(first) = self.absent.first() {
            return Some(self.files_and_faults(first));
        }
        if let Some(first) = self.grown.values().next() {
            let more = if self.grown.len() > 1 { ", …" } else { "" };
            return Some(format!("not understood: longer than recorded: {first}{more}"));
        }
        let facts = self.facts_of_another_version();
        if let Some(first) = facts.first() {
            let more = if facts.len() > 1 { ", …" } else { "" };
            return Some(format!("not understood: {first}{more}"));
        }
        // Tables without an account: of an older version, or what was written of them is lost.
        let has_tables = self.instructions.is_some() || self.option(OptionKey::Durations).is_some();
        let has_account =
            [Instrument::Flow, Instrument::Durations].iter().any(|of| self.accounts.contains_key(of));
        if has_tables && !has_account {
            return Some(NO_ACCOUNT.into());
        }
        if self.unlisted {
            return Some(NO_FILES.into());
        }
        if let Some(table) = self.unmarked.first() {
            return Some(format!("guessed: a table without a mark: {table}"));
        }
        self.accounts.iter().find_map(|(name, account)| Some(format!("{name}: {}", account.fault()?)))
    }

    /// The faults of the recording, the first missing file with its own.
    fn files_and_faults(&self, first: &str) -> String {
        let more = if self.absent.len() > 1 { ", …" } else { "" };
        let account = self.with_recording(Account::new());
        let faults = account.entries.iter().filter(|entry| entry.is_fault()).map(|entry| {
            let text = format!("{} {}", entry.fate.name(), entry.to_text());
            if entry.unit == FILES { format!("{text}: {first}{more}") } else { text }
        });
        faults.collect::<Vec<_>>().join(", ")
    }

    /// Names this recording among all others: 32 hexadecimal digits. For a run of an older version, which has none, those of a
    /// hash over what does not change when it is decoded again.
    pub fn run_id(&self) -> String {
        if !self.run_id.is_empty() {
            return self.run_id.clone();
        }
        let facts = (&self.created, &self.command, self.kind, &self.kernel, self.vcpus, &self.clock);
        id_of(&serde_json::to_vec(&facts).unwrap_or_default())
    }

    /// A manifest with only a kind and a number of CPUs.
    pub fn new(kind: RunKind, vcpus: u32) -> Self {
        Manifest {
            version: VERSION,
            tool: concat!("kprism ", env!("CARGO_PKG_VERSION")).into(),
            run_id: new_id(),
            kind,
            instruments: Vec::new(),
            command: Vec::new(),
            kernel: None,
            environment: None,
            huge_pages: None,
            processor: None,
            created: String::new(),
            clock: Clock::default(),
            vcpus,
            exit_code: None,
            instructions: None,
            instructions_recorded: None,
            decode_errors: None,
            lost_bytes: 0,
            stopped: None,
            notes: Vec::new(),
            options: BTreeMap::new(),
            durations: DurationFacts::default(),
            probe: ProbeFacts::default(),
            tests: None,
            files: BTreeMap::new(),
            tables: BTreeMap::new(),
            absent: Vec::new(),
            grown: BTreeMap::new(),
            unlisted: false,
            unmarked: Vec::new(),
            accounts: BTreeMap::new(),
            other: BTreeMap::new(),
        }
    }
}

/// Path of a table below the run's folder.
pub fn table_path(name: &str) -> String {
    format!("tables/{name}.parquet")
}

/// An id that no other recording has: of the time, this process, and a count.
fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    let host = std::fs::read("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    id_of(format!("{time} {} {count} {host:?}", std::process::id()).as_bytes())
}

fn id_of(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_have_ids_of_their_own() {
        let (one, other) = (Manifest::new(RunKind::Lab, 1), Manifest::new(RunKind::Lab, 1));
        assert_ne!(one.run_id(), other.run_id());
        let mut old = Manifest { run_id: String::new(), ..one };
        let id = old.run_id();
        assert_eq!((id.len(), id.bytes().all(|byte| byte.is_ascii_hexdigit())), (32, true));
        old.instructions = Some(1);
        assert_eq!(old.run_id(), id);
    }

    #[test]
    fn whole_runs_pass_and_others_say_why() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        assert_eq!(manifest.fault().as_deref(), Some("it has no account of what was lost"));
        let whole = Account::new().with(Fate::Lost, "bytes", 0);
        manifest.accounts.insert(Instrument::Flow, whole.clone());
        assert_eq!(manifest.fault(), None);
        manifest.accounts.insert(Instrument::Tlb, whole.with(Fate::Lost, "records", None));
        assert_eq!(manifest.fault().as_deref(), Some("tlb: lost records not known"));
        // A list without a count is no account.
        manifest.accounts.insert(Instrument::Tlb, Account::new());
        assert_eq!(manifest.fault().as_deref(), Some("tlb: nothing is known of what was lost"));
        assert_eq!(manifest.account(Instrument::Tlb), None);
        manifest.stopped = Some("the disk is full".into());
        assert_eq!(manifest.fault().as_deref(), Some("recording ended early: the disk is full"));
    }

    #[test]
    fn a_missing_file_is_in_every_account() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        manifest.accounts.insert(Instrument::Flow, Account::new().with(Fate::Lost, "bytes", 0));
        assert!(manifest.account(Instrument::Flow).is_some_and(|account| account.is_whole()));
        assert_eq!(manifest.account(Instrument::Tlb), None);
        manifest.absent = vec!["streams/cpu1.pt: missing".into()];
        let account = manifest.account(Instrument::Flow).expect("an account");
        assert_eq!(account.fault().as_deref(), Some("lost 1 file of the recording"));
        assert!(account.head().contains("streams/cpu1.pt: missing"), "{}", account.head());
        assert_eq!(
            manifest.fault().as_deref(),
            Some("lost 1 file of the recording: streams/cpu1.pt: missing")
        );
        // Where no files are listed, nobody knows how many others are missing, too.
        manifest.unlisted = true;
        let account = manifest.account(Instrument::Flow).expect("an account");
        assert_eq!(account.count(Fate::Lost, FILES), None);
        assert_eq!(account.fault().as_deref(), Some("lost files of the recording not known"));
        let of_files = account.entries.iter().find(|entry| entry.unit == FILES).expect("an entry");
        assert_eq!(of_files.places, [NO_FILES, "streams/cpu1.pt: missing"]);
        manifest.unmarked = vec![table_path("nodes")];
        assert_eq!(
            manifest.fault().as_deref(),
            Some(
                "lost files of the recording not known: streams/cpu1.pt: missing, guessed 1 table without a mark"
            )
        );
        (manifest.unlisted, manifest.unmarked) = (false, Vec::new());
        manifest.absent.clear();
        manifest.stopped = Some("killed".into());
        assert!(!manifest.account(Instrument::Flow).is_some_and(|account| account.is_whole()));
    }

    #[test]
    fn files_that_grew_or_are_not_listed_and_tables_without_a_mark_are_told() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        manifest.accounts.insert(Instrument::Flow, Account::new().with(Fate::Lost, "bytes", 0));
        let told = |manifest: &Manifest| {
            let account = manifest.account(Instrument::Flow).expect("an account");
            (manifest.fault().expect("a fault"), account.fault().expect("a fault"))
        };
        let grown = "streams/cpu0.pt: 60 of 40 bytes";
        manifest.grown.insert("streams/cpu0.pt".into(), grown.into());
        let (run, account) = told(&manifest);
        assert_eq!(run, format!("not understood: longer than recorded: {grown}"));
        assert_eq!(account, "not understood 1 file longer than recorded");
        manifest.grown.clear();
        manifest.unlisted = true;
        let (run, account) = told(&manifest);
        assert!(run.starts_with("manifest.json lists no files"), "{run}");
        assert_eq!(account, "lost files of the recording not known");
        manifest.unlisted = false;
        manifest.unmarked = vec![table_path("nodes"), table_path("tasks")];
        manifest.name_tables([("tasks".to_owned(), "00".to_owned())]);
        let (run, account) = told(&manifest);
        assert_eq!(run, "guessed: a table without a mark: tables/nodes.parquet");
        assert_eq!(account, "guessed 1 table without a mark");
    }

    /// Facts stand beside the other fields, and fields of later versions stay.
    #[test]
    fn facts_and_unknown_fields_come_back() {
        let text = r#"{"version": 1, "kind": "host", "vcpus": 2, "events": 7, "lost_events": 0,
            "tracing_cost": {"call_ns": 500, "dropped": true}, "not_attached": ["a: b"], "of_later": [1]}"#;
        let manifest: Manifest = serde_json::from_str(text).expect("a manifest");
        assert_eq!((manifest.durations.events, manifest.durations.lost_events), (Some(7), Some(0)));
        assert_eq!(
            manifest.durations.tracing_cost.map(|cost| (cost.call_ns, cost.dropped)),
            Some((500, true))
        );
        assert_eq!((manifest.durations.losses, manifest.probe.records), (None, None));
        assert_eq!(manifest.probe.not_attached, ["a: b"]);
        assert_eq!(manifest.other.keys().collect::<Vec<_>>(), ["of_later"]);
        // What it tells is not known.
        assert_eq!(manifest.fault().as_deref(), Some("not understood: manifest.json: of_later"));
        assert!(!manifest.with_recording(Account::new().with(Fate::Lost, "events", 0)).is_whole());
        let again = serde_json::to_value(&manifest).expect("JSON");
        assert_eq!((&again["events"], &again["of_later"][0]), (&7.into(), &1.into()));
        assert_eq!(again.get("records"), None);
    }
}
