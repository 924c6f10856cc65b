// SPDX-License-Identifier: MIT OR Apache-2.0
//! One or several tables of TLB misses with what is said of the run: text, JSON.

use kprism_profile::units;
use kprism_store::{Account, Manifest};
use kprism_tlb::Geometry;
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
    pub counts: &'a Value,
    /// Misses that were seen, kept and lost.
    pub account: &'a Account,
    /// The tables, each with its name.
    pub tables: Vec<(&'static str, Table)>,
}

/// Returns true if the misses are samples, by the recorder's counts.
pub(super) fn is_sampled(counts: &Value) -> bool {
    counts["method"] == "sampled"
}

/// Misses per sample, on average.
pub(super) fn period(counts: &Value) -> f64 {
    counts["period"].as_f64().filter(|p| *p >= 1.0).unwrap_or(1.0)
}

/// The method by which the misses were found, in a line, and which of them are there.
pub(super) fn method_text(manifest: &Manifest, counts: &Value, geometries: &[Geometry]) -> String {
    if let Some(condition) = manifest.option_facts().condition {
        let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
        let (names, condition) = (names.join(", "), units::printable(&condition));
        return format!(
            "misses of the last level for which `{condition}`, by models: {names}; references and L1 misses are of all accesses"
        );
    }
    if is_sampled(counts) {
        let n = counts["samples"].as_u64().unwrap_or(0);
        let events = counts["events"].as_array().into_iter().flatten();
        let events: Vec<&str> = events.filter_map(|e| e["event"].as_str()).collect();
        format!(
            "sampled, not complete: estimates from {} samples of {}, with 95 % intervals",
            units::grouped(n),
            events.join(", ")
        )
    } else if geometries.is_empty() {
        "every walk after a miss of the machine's own TLB, off the memory bus".to_owned()
    } else {
        let names: Vec<&str> = geometries.iter().map(|g| g.name.as_str()).collect();
        format!("every miss of the last level, by models: {}", names.join(", "))
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
        let source = match self.geometries.is_empty() {
            true if sampled => "samples",
            true => "bus",
            false => "model",
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
        let condition = self.manifest.option_facts().condition;
        value["complete"] = (!sampled && condition.is_none()).into();
        value["condition"] = json!(condition);
        if sampled {
            value["sampling"] = self.counts.clone();
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
        text += &format!("{}\n", header::head(Some(self.account), style));
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
