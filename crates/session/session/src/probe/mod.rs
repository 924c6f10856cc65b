// SPDX-License-Identifier: MIT OR Apache-2.0
//! Records of probes, read from a run.
//!
//! Input: `streams/probe/` of a run. Output: [`Loaded`], which gives each record with its values, the counts, the account;
//! the records as columns of numbers and text ([`columns`]), as a folder of CTF ([`ctf`]), as a trace file of GDB ([`gdb`]).

mod account;
mod columns;
mod traces;

use anyhow::{Context, Result, bail};
use kprism_image::symbols::Symbols;
use kprism_probe::stream::shape::Shape;
use kprism_probe::stream::{Description, Hit, Item, VERSION, hits};
use kprism_store::{Account, Instrument, Manifest, Run};
use serde_json::Value;

use crate::{files, held};

pub use columns::{columns, names};
pub use traces::{ctf, gdb};

/// The probes of a run and their records.
pub struct Loaded {
    /// The probes, their counts, and the variables at the end.
    pub description: Description,
    run: Run,
    bytes: Vec<u8>,
    /// The kernel's functions, if stacks were collected.
    symbols: Option<Symbols>,
    /// Ids of processes and threads whose records are read; all if empty.
    pub tasks: Vec<u32>,
}

impl Loaded {
    /// Reads them.
    ///
    /// # Errors
    /// The run holds no records of probes, they are of another version, or a file cannot be read.
    pub fn open(run: &Run) -> Result<Self> {
        if !run.holds(Instrument::Probe) {
            return Err(held::missing(run, Instrument::Probe));
        }
        let path = run.probes();
        let text = files::read(&path)?;
        let description: Description =
            serde_json::from_slice(&text).with_context(|| path.display().to_string())?;
        if description.version != VERSION {
            bail!("{}: version {}, this kprism reads {VERSION}", path.display(), description.version);
        }
        let kallsyms = run.kallsyms();
        let symbols = match kallsyms.is_file() {
            true => Some(Symbols::load(&files::read(&kallsyms)?, &[], None)?),
            false => None,
        };
        let bytes = files::read(&run.hits())?;
        Ok(Self { description, run: run.clone(), bytes, symbols, tasks: Vec::new() })
    }

    /// The account: hits seen, records kept and lost, values that could not be read.
    pub fn account(&self, manifest: &Manifest) -> Account {
        let failed = manifest.probe.not_attached.clone();
        let last = manifest.option_facts().last;
        let account = account::account(&self.description, &self.bytes, failed, last);
        manifest.with_recording(account)
    }

    /// The same, with the run's manifest as it is now.
    ///
    /// # Errors
    /// The manifest cannot be read.
    pub fn account_now(&self) -> Result<Account> {
        Ok(self.account(&self.run.manifest()?))
    }

    /// Number of records of [`Loaded::tasks`], up to the first bytes that are no record.
    pub fn records(&self) -> u64 {
        let whole = hits(&self.bytes).map_while(Result::ok);
        whole.filter(|hit| self.is_of_tasks(hit)).count() as u64
    }

    fn is_of_tasks(&self, hit: &Hit<'_>) -> bool {
        self.tasks.is_empty() || self.tasks.contains(&hit.pid) || self.tasks.contains(&hit.tid)
    }

    /// Calls `take` with each record and its values, until it returns false. Ends at the first bytes that are no record, as
    /// the file of a recorder that was killed may have; the account says so.
    ///
    /// # Errors
    /// A record names a probe that does not exist, or `take` fails.
    pub fn each(
        &self,
        mut take: impl FnMut(&Hit<'_>, Vec<(&str, Result<Value, &'static str>)>) -> Result<bool>,
    ) -> Result<()> {
        for hit in hits(&self.bytes) {
            let Ok(hit) = hit else { break };
            if !self.is_of_tasks(&hit) {
                continue;
            }
            let Some(probe) = self.description.probes.get(usize::from(hit.probe)) else {
                bail!(
                    "{}: a record of probe {}, which probes.json does not have",
                    self.run.dir().display(),
                    hit.probe
                );
            };
            let values = probe.items.iter().enumerate();
            let value = |n, item: &Item| hit.value(n, item).map(|value| self.named(item, value));
            let values = values.map(|(n, item)| (item.name.as_str(), value(n, item))).collect();
            if !take(&hit, values)? {
                break;
            }
        }
        Ok(())
    }
}

impl Loaded {
    /// For a view without an account: fails if the records end in bytes that are none.
    ///
    /// # Errors
    /// Names the place.
    pub fn whole(&self) -> Result<()> {
        match hits(&self.bytes).find_map(Result::err) {
            Some(damage) => Err(damage)
                .with_context(|| self.run.dir().display().to_string())
                .context("the records end there; those before are shown"),
            None => Ok(()),
        }
    }

    /// A value as it is shown: a stack's addresses as functions, a cgroup's number as the container.
    pub fn named(&self, item: &Item, value: Value) -> Value {
        if let (Some(Shape::Container), Some(cgroup)) = (&item.shape, value.as_u64()) {
            return match self.description.containers.get(&cgroup).map(String::as_str) {
                Some("") => "none".into(),
                Some(id) => id.into(),
                None => format!("cgroup {cgroup}, not there at the start nor at the end").into(),
            };
        }
        let (Some(Shape::Stack { .. }), Some(symbols), Value::Array(frames)) =
            (&item.shape, &self.symbols, &value)
        else {
            return value;
        };
        let name = |frame: &Value| {
            let text = frame.as_str()?;
            let address = u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
            // A return address may be the first of the next function.
            let function = symbols.locate(0, address.wrapping_sub(1), 0).filter(|l| l.known)?.func;
            Some(Value::from(symbols.function(function).name.clone()))
        };
        let named = frames.iter().map(|frame| name(frame).unwrap_or_else(|| frame.clone()));
        // The probe's own program, and what calls it.
        let own = |frame: &Value| {
            let name = frame.as_str().unwrap_or_default();
            name.ends_with("_kp_probe") || name.starts_with("bpf_trampoline_")
        };
        named.skip_while(own).collect()
    }
}
