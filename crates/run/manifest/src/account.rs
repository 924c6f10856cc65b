// SPDX-License-Identifier: MIT OR Apache-2.0
//! The account of an instrument: how much it saw and kept, and how much it lost, did not understand or guessed.
//!
//! The input is counts from the recorder or the reader of a stream. The output is the same counts in the manifest
//! (`accounts`), and a text that ends every report. A count of zero was measured. A count that could not be taken is
//! `None` and is shown as "not known", because a missing measurement must not look like a zero.

use kprism_profile::units::{counted, printable};
use serde::{Deserialize, Serialize};

/// Maximum number of places named for one count. The count itself is not limited.
pub const PLACES: usize = 16;

/// The head of a report on a run of which nothing is missing.
pub const WHOLE: &str = "whole: nothing lost, guessed or not understood";

/// Begins the head of every other report.
pub const NOT_WHOLE: &str = "not whole";

/// Said of an account without a count: that nothing was counted is not that nothing was lost.
const NOTHING_KNOWN: &str = "nothing is known of what was lost";

/// Effect of a count on the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// Events within the instrument's reach.
    Seen,
    /// Events that are in the result.
    Kept,
    /// Events that happened but are not in the result.
    Lost,
    /// Events that are in the recording but that the reader could not interpret.
    NotUnderstood,
    /// Events that are in the result by inference instead of measurement.
    Guessed,
}

impl Fate {
    /// All values, in the order in which they are shown.
    pub const ALL: [Fate; 5] = [Fate::Seen, Fate::Kept, Fate::Lost, Fate::NotUnderstood, Fate::Guessed];

    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Fate::Seen => "seen",
            Fate::Kept => "kept",
            Fate::Lost => "lost",
            Fate::NotUnderstood => "not understood",
            Fate::Guessed => "guessed",
        }
    }

    /// True if a count above zero makes the result incomplete.
    pub fn is_fault(self) -> bool {
        matches!(self, Fate::Lost | Fate::NotUnderstood | Fate::Guessed)
    }
}

/// One count of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Effect of the count on the result.
    pub fate: Fate,
    /// Unit in the plural, such as `instructions`, `bytes of packets`, `calls without an end`.
    pub unit: String,
    /// The count, or `None` if it could not be taken.
    pub count: Option<u64>,
    /// The first places, at most [`PLACES`]: a file and offset, a function, or a reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub places: Vec<String>,
}

/// All counts of one instrument in one run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Account {
    /// The counts, in the order in which they were added.
    pub entries: Vec<Entry>,
}

impl Account {
    /// An empty account.
    pub fn new() -> Self {
        Account::default()
    }

    /// Adds a count.
    #[must_use]
    pub fn with(self, fate: Fate, unit: &str, count: impl Into<Option<u64>>) -> Self {
        self.at(fate, unit, count, Vec::new())
    }

    /// Adds a count and the places it comes from. Counts of one fate and unit are one entry: their sum, which is not known if one of
    /// them is not. Places beyond [`PLACES`] are dropped.
    #[must_use]
    pub fn at(
        mut self,
        fate: Fate,
        unit: &str,
        count: impl Into<Option<u64>>,
        mut places: Vec<String>,
    ) -> Self {
        let count: Option<u64> = count.into();
        match self.entries.iter_mut().find(|own| own.fate == fate && own.unit == unit) {
            Some(own) => {
                own.count = own.count.zip(count).map(|(one, other)| one.saturating_add(other));
                own.places.append(&mut places);
                own.places.truncate(PLACES);
            }
            None => {
                places.truncate(PLACES);
                self.entries.push(Entry { fate, unit: unit.to_owned(), count, places });
            }
        }
        self
    }

    /// This account with what was found when the streams were read again: the greater count of each fault, and one that is not
    /// known rather than any.
    #[must_use]
    pub fn with_found(mut self, now: &Account) -> Self {
        for found in now.entries.iter().filter(|entry| entry.is_fault()) {
            let own = self.entries.iter_mut().find(|own| own.fate == found.fate && own.unit == found.unit);
            match own {
                Some(own) if own.count.is_none() => {}
                Some(own) if found.count.is_some() && found.count <= own.count => {}
                Some(own) => own.clone_from(found),
                None => self.entries.push(found.clone()),
            }
        }
        self
    }

    /// True if the account has no counts.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Sum of the counts of one fate and unit. `None` if there are none or one of them is unknown.
    pub fn count(&self, fate: Fate, unit: &str) -> Option<u64> {
        let mut found = self.entries.iter().filter(|e| e.fate == fate && e.unit == unit).peekable();
        found.peek()?;
        found.map(|e| e.count).try_fold(0u64, |sum, n| Some(sum.saturating_add(n?)))
    }

    /// True if everything seen is in the result and was measured, which means that every count of losses,
    /// misunderstandings and guesses is known to be zero. False for an empty account.
    pub fn is_whole(&self) -> bool {
        !self.is_empty() && self.entries.iter().filter(|e| e.fate.is_fault()).all(|e| e.count == Some(0))
    }

    /// The counts of losses, misunderstandings and guesses that are not zero, in words; `None` if there are none. An empty
    /// account is a fault of its own.
    pub fn fault(&self) -> Option<String> {
        if self.is_empty() {
            return Some(NOTHING_KNOWN.to_owned());
        }
        let entries = self.entries.iter().filter(|e| e.is_fault());
        let texts: Vec<String> = entries.map(|e| format!("{} {}", e.fate.name(), e.to_text())).collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }

    /// Text with a line for each fate that has counts, and one for each place.
    pub fn to_text(&self) -> String {
        self.text_of(|_| true)
    }

    /// The same of the counts that make the result incomplete: losses, misunderstandings and guesses that are not zero,
    /// or not known. Empty if there are none.
    pub fn faults_text(&self) -> String {
        self.text_of(Entry::is_fault)
    }

    /// One line if the result is whole, otherwise one that says it is not, and the text of the faults.
    pub fn head(&self) -> String {
        match self.is_whole() {
            true => format!("{WHOLE}\n"),
            false if self.is_empty() => format!("{NOT_WHOLE}: {NOTHING_KNOWN}\n"),
            false => format!("{NOT_WHOLE}\n{}", self.faults_text()),
        }
    }

    /// The same as [`Account::head`] in one line, without places.
    pub fn line(&self) -> String {
        self.fault().map_or_else(|| WHOLE.into(), |fault| format!("{NOT_WHOLE}: {fault}"))
    }

    fn text_of(&self, is_shown: impl Fn(&Entry) -> bool) -> String {
        let mut text = String::new();
        for fate in Fate::ALL {
            let of_fate: Vec<&Entry> =
                self.entries.iter().filter(|e| e.fate == fate && is_shown(e)).collect();
            if of_fate.is_empty() {
                continue;
            }
            let counts: Vec<String> = of_fate.iter().map(|e| e.to_text()).collect();
            text += &format!("  {:<16}{}\n", fate.name(), wrapped(&counts));
            for entry in of_fate {
                for place in &entry.places {
                    text += &format!("  {:16}  {}: {}\n", "", entry.unit, printable(place));
                }
                let named = entry.places.len() as u64;
                let more = match entry.count {
                    _ if named < PLACES as u64 => continue,
                    Some(n) if n > named => format!("only the first {named} are named"),
                    Some(_) => continue,
                    None => format!("no more than {named} are named"),
                };
                text += &format!("  {:16}  … {more}\n", "");
            }
        }
        text
    }
}

impl Entry {
    /// True if the count makes the result incomplete: it is of a fault, and not known to be zero.
    pub fn is_fault(&self) -> bool {
        self.fate.is_fault() && self.count != Some(0)
    }

    /// The count with its unit.
    pub fn to_text(&self) -> String {
        match self.count {
            Some(n) => counted(n, &self.unit),
            None => format!("{} not known", self.unit),
        }
    }
}

/// Maximum width of a line of counts, in columns.
const WIDTH: usize = 128;

/// Joins the counts and breaks the line where it becomes too long.
fn wrapped(counts: &[String]) -> String {
    const INDENT: usize = 18;
    let (mut text, mut column) = (String::new(), INDENT);
    for (n, count) in counts.iter().enumerate() {
        if n > 0 {
            let fits = column + 2 + count.len() < WIDTH;
            text += if fits { ", " } else { ",\n                  " };
            column = if fits { column + 2 } else { INDENT };
        }
        text += count;
        column += count.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_only_if_every_fault_is_a_measured_zero() {
        let seen = Account::new().with(Fate::Seen, "instructions", 1_234_567);
        assert!(!Account::new().is_whole(), "nothing counted is not nothing lost");
        assert_eq!(Account::new().fault().as_deref(), Some("nothing is known of what was lost"));
        assert!(seen.clone().with(Fate::Lost, "bytes", 0).is_whole());
        assert!(!seen.clone().with(Fate::Lost, "bytes", 0).with(Fate::Guessed, "names", 1).is_whole());
        assert!(!seen.with(Fate::Lost, "bytes", None).is_whole());
    }

    #[test]
    fn text_names_counts_places_and_what_is_not_known() {
        let account = Account::new()
            .with(Fate::Seen, "instructions", 1_234_567)
            .with(Fate::Lost, "bytes of packets", None)
            .at(
                Fate::NotUnderstood,
                "decode errors",
                2,
                vec!["cpu0.pt: 0x1f".into(), "cpu0.pt: \x1b[2J".into()],
            );
        assert_eq!(
            account.to_text(),
            "  seen            1,234,567 instructions\n\
             \u{20} lost            bytes of packets not known\n\
             \u{20} not understood  2 decode errors\n\
             \u{20}                   decode errors: cpu0.pt: 0x1f\n\
             \u{20}                   decode errors: cpu0.pt: \\u{1b}[2J\n"
        );
    }

    #[test]
    fn places_that_are_not_named_are_told() {
        let told = |count: Option<u64>, places: usize| {
            let account = Account::new().at(Fate::Lost, "files", count, vec!["a".into(); places]);
            account.to_text().lines().next_back().map(str::trim).map(str::to_owned)
        };
        assert_eq!(told(Some(17), 17).as_deref(), Some("… only the first 16 are named"));
        assert_eq!(told(None, 17).as_deref(), Some("… no more than 16 are named"));
        assert_eq!(told(Some(16), 16).as_deref(), Some("files: a"));
        assert_eq!(told(None, 15).as_deref(), Some("files: a"));
    }

    #[test]
    fn the_head_has_the_faults_alone() {
        let seen = Account::new().with(Fate::Seen, "events", 7).with(Fate::Lost, "bytes", 0);
        assert_eq!(seen.head(), "whole: nothing lost, guessed or not understood\n");
        let cut =
            seen.at(Fate::Lost, "records", 2, vec!["hits.bin".into()]).with(Fate::Guessed, "names", None);
        assert_eq!(
            cut.head(),
            "not whole\n\
             \u{20} lost            2 records\n\
             \u{20}                   records: hits.bin\n\
             \u{20} guessed         names not known\n"
        );
        assert_eq!(Account::new().head(), "not whole: nothing is known of what was lost\n");
    }

    #[test]
    fn many_counts_take_several_lines() {
        let account =
            (0..9).fold(Account::new(), |a, n| a.with(Fate::Lost, &format!("events of a kind {n}"), n));
        let text = account.to_text();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert_eq!(text.matches(" of a kind").count(), 9);
    }

    #[test]
    fn counts_of_one_unit_add_up_unless_one_is_not_known() {
        let two = Account::new().at(Fate::Lost, "events", 2, vec!["a".into()]);
        let two = two.at(Fate::Lost, "events", 3, vec!["b".into()]);
        assert_eq!(two.count(Fate::Lost, "events"), Some(5));
        assert_eq!((two.entries.len(), &two.entries[0].places[..]), (1, &["a".to_owned(), "b".into()][..]));
        let unknown = two.clone().with(Fate::Lost, "events", None);
        assert_eq!(unknown.fault().as_deref(), Some("lost events not known"));
        assert_eq!(two.count(Fate::Lost, "bytes"), None);
        assert_eq!(two.with(Fate::Lost, "events", None).count(Fate::Lost, "events"), None);
    }

    #[test]
    fn what_is_found_later_counts_for_more() {
        let stored = Account::new().with(Fate::Seen, "events", 9).with(Fate::Lost, "bytes", 2);
        let now = Account::new().with(Fate::Lost, "bytes", 5).with(Fate::Guessed, "names", None).with(
            Fate::NotUnderstood,
            "records",
            0,
        );
        let both = stored.clone().with_found(&now);
        assert_eq!(both.fault().as_deref(), Some("lost 5 bytes, guessed names not known"));
        assert_eq!(both.count(Fate::Seen, "events"), Some(9));
        assert_eq!(both.clone().with_found(&stored), both);
    }

    #[test]
    fn the_manifest_keeps_it_as_a_list() {
        let account = Account::new().with(Fate::NotUnderstood, "records", None);
        let json = serde_json::to_value(&account).unwrap();
        assert_eq!(json, serde_json::json!([{"fate": "not_understood", "unit": "records", "count": null}]));
        assert_eq!(serde_json::from_value::<Account>(json).unwrap(), account);
    }
}
