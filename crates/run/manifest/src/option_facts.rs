// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a manifest that readers of a run depend on, typed.
//!
//! Input: the manifest's map of options, as any version of kprism or another tool wrote it. Output: [`OptionFacts`]: each a
//! value, or none because the recorder wrote none. A value of another type than expected is none of either: it is listed, and
//! enters the account, because a reader that took it for absent would take a condition for no condition, or a count for zero.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use crate::{Manifest, OptionKey, SettingKey};

/// Options that readers depend on. `None`: the recorder wrote none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OptionFacts {
    /// The condition that recorded calls, misses or records meet.
    pub condition: Option<String>,
    /// The duration below which calls were left out.
    pub longer_than: Option<Duration>,
    /// Calls that the condition left out.
    pub filtered: Option<u64>,
    /// Times that the condition could not be computed, by kind.
    pub condition_errors: Option<BTreeMap<String, u64>>,
    /// The condition at which the windows of a recording begin.
    pub from: Option<String>,
    /// The condition at which they end.
    pub until: Option<String>,
    /// Number of turns of the command before the recorded one.
    pub warm: Option<u64>,
    /// Values of the recording machine that the guest took over, by kind and name.
    pub like_host: Option<BTreeMap<String, BTreeMap<String, String>>>,
    /// The device that the command's files were on. `None`: memory.
    pub storage: Option<StorageFacts>,
    /// Number of windows.
    pub windows: Option<u64>,
    /// Number of snapshots.
    pub snapshots: Option<u64>,
    /// Number of those that lack the begin of the call or the interval that triggered them.
    pub short_snapshots: Option<u64>,
    /// The condition at which snapshots were taken.
    pub snapshot_when: Option<String>,
    /// True if only snapshots were asked for, at requests of the user's.
    pub snapshot: bool,
    /// Times that the condition of windows or snapshots could not be evaluated.
    pub condition_faults: Option<u64>,
    /// Calls and intervals that it did not follow to their end.
    pub condition_forgotten: Option<u64>,
    /// Number of records kept, if only the last were asked for.
    pub last: Option<u64>,
    /// Bytes of a record of a call that BPF kept.
    pub record_bytes: Option<u64>,
    /// The method of a recording of TLB misses.
    pub method: Option<String>,
    /// The machine that recorded, as it was reached.
    pub on: Option<String>,
    /// Its own name.
    pub machine: Option<String>,
    /// The pace of the guest's clock: `exact`, or another.
    pub pace: Option<String>,
    /// Functions that the kernel let nobody hook, each with the reason.
    pub left_out: Vec<(String, String)>,
    /// Functions at which the condition has no meaning, each with the reason.
    pub without_condition: Vec<(String, String)>,
    /// Remarks of the importer on what it could not use.
    pub import_notes: Vec<String>,
    /// Keys whose value is of another type than expected.
    pub misread: Vec<String>,
}

/// A device of a guest whose requests take time ([`OptionKey::Storage`]).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StorageFacts {
    /// Name of the preset; `None`: the user gave the time.
    pub name: Option<String>,
    /// Time that a request takes, ns.
    pub request_ns: u64,
}

/// Reads options one by one, and keeps the keys of those that are of another type.
struct Reader<'m> {
    manifest: &'m Manifest,
    misread: Vec<String>,
}

impl Reader<'_> {
    fn read<T>(&mut self, key: OptionKey, parse: impl Fn(&Value) -> Option<T>) -> Option<T> {
        let value = self.manifest.option(key).filter(|value| !value.is_null())?;
        let parsed = parse(value);
        if parsed.is_none() {
            self.misread.push(key.name().to_owned());
        }
        parsed
    }

    fn text(&mut self, key: OptionKey) -> Option<String> {
        self.read(key, |value| value.as_str().map(str::to_owned))
    }

    fn number(&mut self, key: OptionKey) -> Option<u64> {
        self.read(key, Value::as_u64)
    }
}

impl Manifest {
    /// The options that readers depend on.
    pub fn option_facts(&self) -> OptionFacts {
        let mut reader = Reader { manifest: self, misread: Vec::new() };
        let counts = |value: &Value| {
            let each = |(kind, count): (&String, &Value)| Some((kind.clone(), count.as_u64()?));
            value.as_object()?.iter().map(each).collect::<Option<BTreeMap<_, _>>>()
        };
        let texts = |value: &Value| {
            value.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let named = |value: &Value| {
            let each = |one: &Value| Some((text(one.get("name")?)?, text(one.get("why")?)?));
            value.as_array()?.iter().map(each).collect::<Option<Vec<_>>>()
        };
        let pairs = |value: &Value| {
            let each = |one: &Value| Some((text(one.get(0)?)?, text(one.get(1)?)?));
            value.as_array()?.iter().map(each).collect::<Option<Vec<_>>>()
        };
        // A recorder without such a setting left out none.
        let longer_than = |settings: &Value| {
            let value = settings.as_object()?.get(SettingKey::LongerThan.name()).cloned();
            serde_json::from_value::<Option<Duration>>(value.unwrap_or_default()).ok()
        };
        let mut facts = OptionFacts {
            condition: reader.text(OptionKey::Condition),
            longer_than: reader.read(OptionKey::Settings, longer_than).flatten(),
            filtered: reader.number(OptionKey::Filtered),
            condition_errors: reader.read(OptionKey::ConditionErrors, counts),
            from: reader.text(OptionKey::From),
            until: reader.text(OptionKey::Until),
            warm: reader.number(OptionKey::Warm),
            like_host: reader.read(OptionKey::LikeHost, |value| serde_json::from_value(value.clone()).ok()),
            storage: reader.read(OptionKey::Storage, |value| serde_json::from_value(value.clone()).ok()),
            windows: reader.number(OptionKey::Windows),
            snapshots: reader.number(OptionKey::Snapshots),
            short_snapshots: reader.number(OptionKey::ShortSnapshots),
            snapshot_when: reader.text(OptionKey::SnapshotWhen),
            snapshot: reader.read(OptionKey::Snapshot, Value::as_bool).unwrap_or_default(),
            condition_faults: reader.number(OptionKey::ConditionFaults),
            condition_forgotten: reader.number(OptionKey::ConditionForgotten),
            last: reader.number(OptionKey::Last),
            record_bytes: reader.number(OptionKey::RecordBytes),
            method: reader.text(OptionKey::Method),
            on: reader.text(OptionKey::On),
            machine: reader.text(OptionKey::Machine),
            pace: reader.text(OptionKey::Pace),
            left_out: reader.read(OptionKey::LeftOut, named).unwrap_or_default(),
            without_condition: reader.read(OptionKey::WithoutCondition, pairs).unwrap_or_default(),
            import_notes: reader.read(OptionKey::ImportNotes, texts).unwrap_or_default(),
            misread: Vec::new(),
        };
        facts.misread = reader.misread;
        facts
    }
}

impl OptionFacts {
    /// Returns true if only what meets a condition was kept, whether the condition can be read or not.
    #[must_use]
    pub fn is_chosen(&self) -> bool {
        self.condition.is_some() || self.misread.iter().any(|option| *option == OptionKey::Condition.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Account, RunKind};

    #[test]
    fn a_threshold_is_a_duration_or_none_or_misread() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        let mut told = |settings: Value| {
            manifest.options.insert("settings".into(), settings);
            let facts = manifest.option_facts();
            (facts.longer_than, facts.misread.len())
        };
        assert_eq!(told(serde_json::json!({"longer_than": null})), (None, 0));
        assert_eq!(told(serde_json::json!({"others": 1})), (None, 0));
        let time = Duration::from_micros(100);
        assert_eq!(told(serde_json::json!({"longer_than": {"secs": 0, "nanos": 100_000}})), (Some(time), 0));
        assert_eq!(told(serde_json::json!({"longer_than": "100us"})), (None, 1));
        assert_eq!(told(serde_json::json!("100us")), (None, 1), "no settings at all");
    }

    #[test]
    fn a_fact_is_a_value_or_absent_or_named_as_misread() {
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        assert_eq!(manifest.option_facts(), OptionFacts::default());
        manifest.options.insert("windows".into(), 3.into());
        manifest.options.insert("from".into(), "vfs_read".into());
        manifest.options.insert("until".into(), Value::Null);
        manifest.options.insert("last".into(), "3".into());
        let facts = manifest.option_facts();
        assert_eq!((facts.windows, facts.from.as_deref(), facts.until), (Some(3), Some("vfs_read"), None));
        assert_eq!((facts.last, facts.misread), (None, vec!["last".to_owned()]));
        manifest.options.remove("last");
        manifest.options.insert("left_out".into(), serde_json::json!([{"name": "f", "why": "no"}]));
        manifest.options.insert("without_condition".into(), serde_json::json!([["g", "no `x`"]]));
        let facts = manifest.option_facts();
        assert_eq!(
            (facts.left_out, facts.without_condition),
            (vec![("f".into(), "no".into())], vec![("g".into(), "no `x`".into())])
        );
        manifest.options.insert("left_out".into(), serde_json::json!([{"name": "f"}]));
        assert_eq!(manifest.option_facts().misread, ["left_out"]);
        assert!(!manifest.option_facts().is_chosen());
        manifest.options.insert("condition".into(), 1.into());
        assert!(manifest.option_facts().is_chosen());
        manifest.options.remove("condition");
        manifest.options.remove("left_out");
        manifest.options.insert("last".into(), "3".into());
        let account = manifest.with_recording(Account::new());
        assert_eq!(account.fault().as_deref(), Some("not understood 1 option of the manifest"));
        assert_eq!(account.entries[0].places, ["last"]);
    }
}
