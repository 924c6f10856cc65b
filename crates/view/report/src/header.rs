// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines above every report: the command, the clock, amounts, and losses.

use crate::table::Style;
use kprism_profile::Profile;
use kprism_profile::units;
use kprism_store::{Account, Instrument, Manifest};
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
    /// The condition of a recording of durations, and how many calls it left out.
    pub filtered: Vec<String>,
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
            account: [Instrument::Durations, Instrument::Flow]
                .iter()
                .find_map(|of| manifest.accounts.get(of).cloned()),
            filtered: manifest.filtered("calls"),
        }
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
        let faults = [(self.lost_bytes, "lost byte"), (self.errors, "decode error")];
        let overflows = (self.overflows > 0).then_some((self.overflows, "overflow"));
        for (n, one) in faults.into_iter().chain(overflows) {
            let text = plural(n, one);
            out.push_str(", ");
            out.push_str(&if n == 0 { text } else { style.alert(&text) });
        }
        out.push('\n');
        if let Some(reason) = &self.stopped {
            let text = format!("recording ended early: {}", units::printable(reason));
            out.push_str(&style.alert(&text));
            out.push('\n');
        }
        for e in profile.errors.iter().take(ERRORS_SHOWN) {
            out.push_str(&format!(
                "  CPU {} at stream byte {:#x}, {}, after {:#x}: {}\n",
                e.cpu,
                e.offset,
                units::duration(e.ns),
                e.ip,
                units::printable(&e.kind)
            ));
        }
        let more = (self.errors + self.overflows).saturating_sub(ERRORS_SHOWN as u64);
        if more > 0 {
            let more = units::grouped(more);
            out.push_str(&format!("  … {more} more (`kprism report errors`)\n"));
        }
        out
    }

    /// The last lines of a report.
    pub fn account_text(&self, style: Style) -> String {
        account_text(self.account.as_ref(), style)
    }

    /// The header as JSON.
    pub fn to_json(&self) -> Value {
        json!({
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
        })
    }
}

/// An account as the last lines of a report.
pub fn account_text(account: Option<&Account>, style: Style) -> String {
    let Some(account) = account else {
        return "account: not known: an older kprism made these tables; remove tables/ of the run to have them made again\n"
            .to_owned();
    };
    let text = format!("account\n{}", account.to_text());
    match account.is_whole() {
        true => style.dim(text.trim_end()) + "\n",
        false => style.alert(text.trim_end()) + "\n",
    }
}
