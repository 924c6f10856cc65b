// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines above every report: the command, the clock, amounts, and losses.

use crate::table::Style;
use kprism_profile::Profile;
use kprism_profile::units;
use kprism_store::{Account, Condition, Instrument, Manifest};
use serde_json::{Value, json};

/// Number of errors listed in the header. All are in [`crate::tables::errors`].
const ERRORS_SHOWN: usize = 3;

/// Facts of a run as a whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The command as typed in a shell, or empty.
    pub command: String,
    /// Origin of the streams: `lab`, `machine`, `import` or `host`.
    pub source: String,
    /// Release of the kernel, or empty.
    pub kernel: String,
    /// Time of the recording, or empty.
    pub created: String,
    /// Name of the clock.
    pub clock: String,
    /// Number of CPUs with a stream.
    pub cpus: u64,
    /// Number of instructions decoded.
    pub instructions: u64,
    /// Time from the first to the last time in any stream, ns.
    pub span_ns: u64,
    /// Bytes lost by the recorder or skipped by the decoder.
    pub lost_bytes: u64,
    /// Places that could not be decoded.
    pub errors: u64,
    /// Exit code of the command.
    pub exit_code: Option<i32>,
    /// Number of overflows of the recorder's buffer.
    pub overflows: u64,
    /// The reason why recording ended early.
    pub stopped: Option<String>,
    /// The account: how much of the execution is in the tables of a flow or of durations; `None` for tables of an older
    /// kprism.
    pub account: Option<Account>,
    /// The part of the run that was recorded, if not all of it was.
    pub recorded: Vec<String>,
    /// The condition of a recording of durations, and how many calls it left out.
    pub filtered: Vec<String>,
    /// Properties of the guest that matter to the run.
    pub guest: Vec<Condition>,
}

impl Header {
    /// Collects the header's data.
    pub fn new(manifest: &Manifest, profile: &Profile) -> Self {
        let cpus = &profile.totals.per_cpu;
        let active = || cpus.iter().filter(|c| c.last_ns > 0);
        let first = active().map(|c| c.first_ns).min().unwrap_or(0);
        let last = active().map(|c| c.last_ns).max().unwrap_or(0);
        Header {
            command: units::quoted(&manifest.command),
            source: format!("{:?}", manifest.kind).to_lowercase(),
            kernel: manifest.kernel.as_ref().map(|k| k.release.clone()).unwrap_or_default(),
            created: manifest.created.clone(),
            clock: manifest.clock.name.clone(),
            cpus: u64::from(manifest.vcpus).max(cpus.len() as u64),
            instructions: profile.totals.instructions(),
            span_ns: last.saturating_sub(first),
            lost_bytes: manifest.lost_bytes.max(profile.totals.lost_bytes()),
            errors: profile.totals.errors(),
            exit_code: manifest.exit_code,
            overflows: profile.totals.overflows(),
            stopped: manifest.stopped.clone(),
            account: [Instrument::Durations, Instrument::Flow].iter().find_map(|of| manifest.account(*of)),
            recorded: manifest.recorded_part(),
            filtered: manifest.filtered("calls"),
            guest: manifest.conditions(Some(profile)),
        }
    }

    /// Adds what was found when the streams were replayed for this report.
    pub fn read_again(&mut self, found: &Account) {
        self.account = Some(match self.account.take() {
            Some(account) => account.with_found(found),
            None => found.clone(),
        });
    }

    /// Formats the header as text, with the first places that could not be decoded.
    pub fn to_text(&self, profile: &Profile, style: Style) -> String {
        let mut out = String::new();
        let title = match self.command.split_once(' ') {
            None if self.command.is_empty() => self.source.clone(),
            // QEMU's options are many; `info` has them.
            Some((program, _)) if self.source == "machine" => format!("{} …", units::printable(program)),
            _ => units::printable(&self.command),
        };
        out.push_str(&style.bold(&title));
        if !self.kernel.is_empty() {
            out.push_str(&format!(" on {}", units::printable(&self.kernel)));
        }
        if let Some(code) = self.exit_code.filter(|&c| c != 0) {
            out.push_str(&style.alert(&format!(", exit code {code}")));
        }
        let plural =
            |n: u64, one: &str| format!("{} {one}{}", units::grouped(n), if n == 1 { "" } else { "s" });
        out.push_str(&format!(
            "\n{}, {} in {} ({} clock)",
            plural(self.cpus, "CPU"),
            plural(self.instructions, "instruction"),
            units::duration(self.span_ns),
            units::printable(&self.clock),
        ));
        out.push('\n');
        out.push_str(&self.head(profile, style));
        out
    }

    /// Whether the result is whole, and the first places that could not be decoded.
    fn head(&self, profile: &Profile, style: Style) -> String {
        let mut out = String::new();
        if let Some(reason) = &self.stopped {
            let text = format!("recording ended early: {}", units::printable(reason));
            out.push_str(&style.alert(&text));
            out.push('\n');
        }
        out.push_str(&part(&self.recorded, style));
        out.push_str(&head(self.account.as_ref(), style));
        out.push_str(&conditions(&self.guest, style));
        // An account names these places itself.
        let unnamed = if self.account.is_some() { 0 } else { ERRORS_SHOWN };
        let counts =
            [(self.lost_bytes, "lost byte"), (self.errors, "decode error"), (self.overflows, "overflow")];
        let counts: Vec<String> = counts
            .into_iter()
            .filter(|(n, _)| unnamed > 0 && *n > 0)
            .map(|(n, one)| format!("{} {one}{}", units::grouped(n), if n == 1 { "" } else { "s" }))
            .collect();
        if !counts.is_empty() {
            out.push_str(&style.alert(&counts.join(", ")));
            out.push('\n');
        }
        for e in profile.errors.iter().take(unnamed) {
            out.push_str(&format!(
                "  CPU {} at stream byte {:#x}, {}, after {:#x}: {}\n",
                e.cpu,
                e.offset,
                units::duration(e.ns),
                e.ip,
                units::printable(&e.kind)
            ));
        }
        let named = (self.account.iter().flat_map(|account| &account.entries))
            .filter(|entry| entry.unit == "decode errors")
            .map(|entry| entry.places.len())
            .sum::<usize>()
            .max(unnamed);
        let more = (self.errors + self.overflows).saturating_sub(named as u64);
        if more > 0 {
            let more = units::grouped(more);
            out.push_str(&format!("  … {more} more (`kprism report errors`)\n"));
        }
        out
    }

    /// The last lines of a report, if details are wanted.
    pub fn account_text(&self, style: Style) -> String {
        account_text(self.account.as_ref(), style)
    }

    /// The header as JSON.
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "command": self.command,
            "source": self.source,
            "kernel": self.kernel,
            "created": self.created,
            "clock": self.clock,
            "vcpus": self.cpus,
            "instructions": self.instructions,
            "span_ns": self.span_ns,
            "lost_bytes": self.lost_bytes,
            "decode_errors": self.errors,
            "overflows": self.overflows,
            "exit_code": self.exit_code,
            "stopped": self.stopped,
            "account": self.account,
        });
        if !self.recorded.is_empty() {
            value["recorded_part"] = json!(self.recorded);
        }
        if !self.guest.is_empty() {
            value["guest"] = json!(self.guest);
        }
        value
    }
}

/// The part of a run that was recorded, a line for each limit ([`Manifest::recorded_part`]).
pub fn part(recorded: &[String], style: Style) -> String {
    recorded.iter().map(|line| style.alert(line) + "\n").collect()
}

/// Properties in which the guest differs from a machine, a line each ([`Manifest::conditions`]). Those of every run are shown if
/// details are wanted.
#[must_use]
pub fn conditions(conditions: &[Condition], style: Style) -> String {
    let told = conditions.iter().filter(|condition| style.detail || !condition.is_of_every_run());
    told.map(|condition| style.dim(&condition.text) + "\n").collect()
}

/// Says that nothing is known of what a result lacks.
const NO_ACCOUNT: &str = "not known whether whole: an older kprism made these tables; remove tables/ of the run to have them made again";

/// The head of a report: one line if nothing is missing, otherwise what was lost, not understood or guessed, with its places.
pub fn head(account: Option<&Account>, style: Style) -> String {
    match account {
        None => style.alert(NO_ACCOUNT) + "\n",
        Some(account) if account.is_whole() => style.dim(account.head().trim_end()) + "\n",
        Some(account) => style.alert(account.head().trim_end()) + "\n",
    }
}

/// The whole account as the last lines of a report, with what is zero; empty unless details are wanted.
pub fn account_text(account: Option<&Account>, style: Style) -> String {
    match account {
        Some(account) if style.detail => {
            style.dim(format!("\naccount\n{}", account.to_text()).trim_end()) + "\n"
        }
        _ => String::new(),
    }
}
