// SPDX-License-Identifier: MIT OR Apache-2.0
//! One or several tables of TLB misses with what is said of the run: text, JSON.

use kprism_profile::units;
use kprism_store::{Account, Manifest};
use kprism_tlb::Geometry;
use kprism_tlb::counts::{Counts, Method};
use serde_json::{Value, json};

use crate::table::{Style, Table, UnknownColumn};
use crate::{header, shape};

/// Tables of a run's misses.
pub struct Report<'a> {
    /// Facts on the recording.
    pub manifest: &'a Manifest,
    /// The models; none if the misses were not found by models.
    pub geometries: &'a [Geometry],
    /// The recorder's counts.
    pub counts: &'a Counts,
    /// Misses that were seen, kept and lost.
    pub account: &'a Account,
    /// The tables, each with its name.
    pub tables: Vec<(&'static str, Table)>,
}

/// Returns true if the misses are samples, by the recorder's counts.
pub(super) fn is_sampled(counts: &Counts) -> bool {
    counts.method() == Some(Method::Sampled)
}

/// Misses per sample, on average; `None` if that is not known.
pub(super) fn period(counts: &Counts) -> Option<f64> {
    counts.period.filter(|p| *p >= 1.0)
}

/// The method by which the misses were found, in a line, and which of them are there.
pub(super) fn method_text(manifest: &Manifest, counts: &Counts, geometries: &[Geometry]) -> String {
    let facts = manifest.option_facts();
    if let Some(condition) = &facts.condition {
        let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
        let (names, condition) = (names.join(", "), units::printable(condition));
        return format!(
            "misses of the last level for which `{condition}`, by models: {names}; references and L1 misses are of all accesses"
        );
    }
    if facts.is_chosen() {
        return "misses of the last level that meet a condition, which is not understood".to_owned();
    }
    if is_sampled(counts) {
        let n = counts.samples.map_or("a number not known of".to_owned(), units::grouped);
        let unknown = "events not known";
        let events = counts.events.iter().flatten().map(|e| e.event.as_deref().unwrap_or(unknown));
        let events: Vec<&str> = events.collect();
        let events = if events.is_empty() { unknown.to_owned() } else { events.join(", ") };
        let intervals = if period(counts).is_some() { ", with 95 % intervals" } else { "" };
        format!("sampled, not complete: estimates from {n} samples of {events}{intervals}")
    } else if !geometries.is_empty() {
        let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
        format!("every miss of the last level, by models: {}", names.join(", "))
    } else if counts.method() == Some(Method::Ptat) {
        "every walk after a miss of the machine's own TLB, off the memory bus".to_owned()
    } else {
        "misses, found in a way that is not known".to_owned()
    }
}

impl Report<'_> {
    /// Adds the intervals of estimates, if the misses are samples; sorts the tables by column `sort`, and keeps `rows` of
    /// each (0: all). The table `geometries` is never shortened: geometries are few, and each is asked for by name.
    ///
    /// # Errors
    /// A table has no such column.
    pub fn arrange(&mut self, sort: Option<&str>, rows: usize) -> Result<(), UnknownColumn> {
        let period = period(self.counts);
        let sampled = is_sampled(self.counts);
        for (name, table) in &mut self.tables {
            if sampled {
                super::add_intervals(table, period);
            }
            if let Some(key) = sort {
                table.sort_by(key)?;
            }
            if rows > 0 && *name != "geometries" {
                table.limit(rows);
            }
        }
        Ok(())
    }

    /// Returns true if no table has a row.
    pub fn is_empty(&self) -> bool {
        self.tables.iter().all(|(_, table)| table.rows.is_empty())
    }

    /// All of it as JSON.
    pub fn to_json(&self) -> Value {
        let sampled = is_sampled(self.counts);
        // Only models name geometries, even if the counts are not there.
        let source = match self.counts.method() {
            Some(Method::Sampled) => Some("samples"),
            Some(Method::Ptat) => Some("bus"),
            Some(Method::Model | Method::User) => Some("model"),
            None => (!self.geometries.is_empty()).then_some("model"),
        };
        let heads = self.geometries.iter().map(|g| json!({"name": g.name, "source": g.source}));
        let run = shape::run(Some(self.manifest), Some(self.account));
        let mut value = match self.tables.as_slice() {
            [(_, table)] => shape::report(run, table),
            tables => shape::overview(run, tables.iter().map(|(name, table)| (*name, table))),
        };
        if value["geometries"].is_null() {
            value["geometries"] = heads.collect();
        }
        value["source"] = source.into();
        // Each miss is there: no condition left any out, and the account knows of none that is missing.
        value["complete"] =
            (!sampled && !self.manifest.option_facts().is_chosen() && self.account.is_whole()).into();
        value["condition"] = json!(self.manifest.option_facts().condition);
        if sampled {
            value["sampling"] = self.counts.written.clone();
        }
        value
    }

    /// All of it as text.
    pub fn to_text(&self, style: Style) -> String {
        let mut text = self.manifest.command.join(" ");
        if let Some(why) = &self.manifest.stopped {
            text += &style.alert(&format!("\nrecording ended early: {}", units::printable(why)));
        }
        text += &format!("\n{}\n", method_text(self.manifest, self.counts, self.geometries));
        text += &header::part(&self.manifest.recorded_part(), style);
        text += &header::head(Some(self.account), style);
        text += &format!("{}\n", header::conditions(&self.manifest.conditions(None), style));
        let several = self.tables.len() > 1;
        for (name, table) in &self.tables {
            if several {
                text += &format!("{}\n", style.bold(name));
            }
            text += &format!("{}\n", table.to_text(style).trim_end());
            if several {
                text.push('\n');
            }
        }
        text.trim_end().to_owned() + "\n" + &header::account_text(Some(self.account), style)
    }
}
