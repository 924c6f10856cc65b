// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts on a run, and a list of runs, as text.

use std::path::{Path, PathBuf};

use kprism_profile::Profile;
use kprism_profile::units::{counted, duration, grouped, printable, quoted};
use kprism_store::{Instrument, Manifest, NOT_WHOLE, OptionKey, PerfClock, RunKind, StorageFacts, WHOLE};

/// The profile of a run's tables; `None` without tables, or why they cannot be read.
pub type Tables<'t> = Result<Option<&'t Profile>, &'t str>;

/// The facts on the run in the folder `dir`, which holds results of these instruments, a line each, with its accounts. `tables` has the
/// profile of its tables, which tells which properties of the guest matter; `None` if there are no tables, or why they cannot be read.
pub fn to_text(dir: &Path, instruments: &[Instrument], m: &Manifest, tables: Tables<'_>) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: String| out += &format!("{name:<14}{value}\n");
    line("run", dir.display().to_string());
    line("kind", kind(instruments, m).to_owned());
    if !m.command.is_empty() {
        line("command", quoted(&m.command));
    }
    if let Some(kernel) = &m.kernel {
        let id = if kernel.build_id.is_empty() {
            String::new()
        } else {
            format!(" (build id {})", kernel.build_id)
        };
        line("kernel", kernel.release.clone() + &id);
        if let Some(tree) = &kernel.tree {
            let changed = match tree.changed {
                Some(true) => ", with changes not committed",
                Some(false) | None => "",
            };
            let commit = tree.commit.as_ref().map(|commit| format!(" at {}{changed}", printable(commit)));
            line("  built in", printable(&tree.folder.to_string_lossy()) + &commit.unwrap_or_default());
            tree.gaps.iter().for_each(|gap| line("  note", printable(gap)));
        }
    }
    let facts = m.option_facts();
    if let Some(on) = &facts.on {
        let machine = facts.machine.as_deref().unwrap_or("no name");
        line("recorded on", format!("{} ({}, through ssh)", printable(on), printable(machine)));
    }
    if let Some(turns @ 1..) = facts.warm {
        line("warm-up", format!("{} of the command before the recorded one", counted(turns, "turns")));
    }
    if let Some(StorageFacts { name, request_ns }) = &facts.storage {
        let name = name.as_ref().map(|name| format!(" (`{}`)", printable(name))).unwrap_or_default();
        line("storage", format!("a device whose requests take {}{name}", duration(*request_ns)));
    }
    for (kind, values) in facts.like_host.iter().flatten().filter(|(_, values)| !values.is_empty()) {
        let values: Vec<String> = values.iter().map(|(name, value)| format!("{name}={value}")).collect();
        line("like host", printable(&format!("{}: {}", kind.replace('_', " "), values.join(", "))));
    }
    if !m.created.is_empty() {
        line("created", m.created.clone());
    }
    line("tool", m.tool.clone());
    line(
        "account",
        m.fault().map_or_else(|| WHOLE.into(), |fault| format!("{NOT_WHOLE}: {}", printable(&fault))),
    );
    if let Some(environment) = &m.environment {
        line("environment", environment.id.clone());
    }
    line("clock", m.clock.to_text());
    if let Some(PerfClock { mult, shift, zero }) = m.clock.perf {
        line("  times", format!("of perf script and the kernel's log: TSC * {mult} >> {shift}, {zero:+} ns"));
    }
    if let Some(of) = &m.processor {
        line("processor", format!("family {}, model {:#x}, stepping {}", of.family, of.model, of.stepping));
        line(
            "  errata",
            match &of.errata {
                None => "not known for this model: none worked around".into(),
                Some(errata) if errata.is_empty() => "none known".into(),
                Some(errata) => errata.iter().map(|name| printable(name)).collect::<Vec<_>>().join(", "),
            },
        );
    }
    for (first, last) in m.processor.iter().flat_map(|of| &of.filter) {
        line("  filter", format!("{first:#x} to {last:#x}"));
    }
    // There is a stream for each thread at a time, where a machine has one for each CPU.
    line(if is_user_mode(m) { "streams" } else { "vcpus" }, m.vcpus.to_string());
    if let Some(code) = m.exit_code {
        line("exit code", code.to_string());
    }
    if facts.from.as_ref().or(facts.until.as_ref()).is_some() {
        line("windows", facts.windows.map_or_else(|| "not counted".into(), grouped));
        for (name, condition) in [("  from", &facts.from), ("  until", &facts.until)] {
            condition.iter().for_each(|text| line(name, printable(text)));
        }
    }
    if facts.snapshots.is_some() || facts.snapshot_when.is_some() || facts.snapshot {
        line("snapshots", facts.snapshots.map_or_else(|| "not counted".into(), grouped));
        facts.snapshot_when.iter().for_each(|text| line("  when", printable(text)));
        facts.short_snapshots.iter().for_each(|short| line("  without beginning", grouped(*short)));
    }
    if let Some(counts) = m.option(OptionKey::Durations) {
        let number = |key: &str| counts[key].as_u64().map_or_else(|| "not counted".into(), grouped);
        line("calls", number("calls"));
        line("  without end", number("unfinished"));
        line("lost events", number("lost"));
        return out + &guest(instruments, m, tables) + &ending(m);
    }
    if !instruments.contains(&Instrument::Flow) {
        // Nobody watched instructions: "not decoded yet" would promise some.
        return out + &guest(instruments, m, tables) + &ending(m);
    }
    line("instructions", m.instructions.map_or_else(|| "not decoded yet".into(), grouped));
    if let Some(recorded) = m.instructions_recorded {
        let same = if m.instructions == Some(recorded) { " (the same)" } else { "" };
        line("  recorder's", grouped(recorded) + same);
    }
    line("decode errors", m.decode_errors.map_or_else(|| "not decoded yet".into(), grouped));
    // The account has it, and what this count leaves out.
    if !m.accounts.contains_key(&Instrument::Flow) {
        line(
            "lost bytes",
            m.decode_errors.map_or_else(|| "not decoded yet".into(), |_| grouped(m.lost_bytes)),
        );
    }
    out + &guest(instruments, m, tables) + &ending(m)
}

/// Properties in which the guest differs from a machine, each with what to do about it. Empty for a machine's own recording.
fn guest(instruments: &[Instrument], m: &Manifest, tables: Tables<'_>) -> String {
    let profile = tables.ok().flatten();
    let mut out = String::new();
    let mut line = |name: &str, value: &str| out += &format!("{name:<14}{value}\n");
    if let Some(pages) = &m.huge_pages {
        let (own, machine) = (pages.guest_text(profile), pages.machine.to_text());
        line("huge pages", &printable(&format!("guest: {own}; recording machine: {machine}")));
    }
    let conditions = m.conditions(profile);
    for condition in &conditions {
        line("guest", &condition.text);
        line("  remedy", &condition.remedy);
    }
    if let Err(why) = tables {
        line(
            "tables",
            &format!("cannot be read, and what depends on calls is not known: {}", printable(why)),
        );
    }
    let has_calls = [Instrument::Flow, Instrument::Durations].iter().any(|of| instruments.contains(of));
    if has_calls && profile.is_none() && !conditions.is_empty() {
        line("  more", "`kprism report` decodes the run, and tells what depends on its calls");
    }
    out
}

/// The reason why recording ended early, and the accounts.
fn ending(m: &Manifest) -> String {
    let mut out = String::new();
    if let Some(why) = &m.stopped {
        out += &format!("{:<14}{why}\n", "stopped");
    }
    m.notes.iter().for_each(|note| out += &format!("{:<14}{}\n", "note", printable(note)));
    for (instrument, account) in &m.accounts {
        let account = m.with_recording(account.clone());
        out += &format!("account of {instrument}\n{}\n", account.to_text().trim_end());
    }
    let lists =
        [("absent", m.absent.iter().collect::<Vec<_>>()), ("longer", m.grown.values().collect::<Vec<_>>())];
    for (what, files) in lists {
        files.iter().for_each(|file| out += &format!("{what:<14}{}\n", printable(file)));
    }
    out
}

fn kind(instruments: &[Instrument], m: &Manifest) -> &'static str {
    let holds = |instrument| instruments.contains(&instrument);
    let observed = holds(Instrument::Flow);
    match m.kind {
        RunKind::Lab if observed => "lab (guest seen by the observer)",
        RunKind::Lab if holds(Instrument::Durations) || holds(Instrument::Probe) => {
            "lab (guest not observed: its own kernel recorded)"
        }
        RunKind::Lab if m.option_facts().method.as_deref() == Some("ptat") => {
            "lab (guest not observed: its memory bus recorded)"
        }
        RunKind::Lab => "lab (guest not observed)",
        RunKind::Machine => "machine (QEMU with the user's own options, seen by the observer)",
        RunKind::Import => "import (recorded elsewhere)",
        RunKind::Host if is_user_mode(m) => "host (a program of this machine under QEMU's user mode)",
        RunKind::Host if m.option(OptionKey::On).is_some() => {
            "host (another machine, by its kernel's tracer)"
        }
        RunKind::Host => "host (this machine, by its kernel's tracer)",
    }
}

/// Recorded by `record tlb --method user`.
fn is_user_mode(m: &Manifest) -> bool {
    m.kind == RunKind::Host && m.option_facts().method.as_deref() == Some("user")
}

/// A line for each run: folder, time, instructions, kernel, command.
pub fn list(runs: &[(PathBuf, Manifest)]) -> String {
    let line = |(path, m): &(PathBuf, Manifest)| {
        let insns = m.instructions.map_or_else(|| "not decoded".into(), |n| grouped(n) + " insns");
        let kernel = m.kernel.as_ref().map_or("", |k| &k.release);
        let what = if m.command.is_empty() { m.tool.clone() } else { quoted(&m.command) };
        format!(
            "{}  {}  {insns}  {kernel}  {what}\n",
            printable(&path.display().to_string()),
            printable(&m.created)
        )
    };
    runs.iter().map(line).collect()
}
