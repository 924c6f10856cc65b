// SPDX-License-Identifier: MIT OR Apache-2.0
//! By BPF: durations are taken and judged in the kernel. A call that is not kept leaves nothing; of [`Settings::aggregate`]
//! no call is kept, and only each function's numbers are read at the end.
//!
//! Output: `streams/bpf/calls.bin`, or `streams/bpf/functions.jsonl`, and `symbols/kallsyms`.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kprism_bpf::func::{Condition, Config, FunctionStats, Hook, Keep, Losses, Scope, Session, choose};
use kprism_bpf::host::{self, Host};
use kprism_bpf::kernel::{self, Function, Kernel};
use kprism_durations::names::Role;
use kprism_durations::record::{CallRecord, SIZE};
use kprism_image::glob::glob;
use kprism_lab::Report;
use kprism_profile::units::{grouped, quoted};
use kprism_session::{Progress, durations};
use kprism_store::{CallLosses, Instrument, Manifest, OptionKey, Run};
use kprism_tracefs as tracefs;
use serde_json::{Value, json};

use super::{Backend, Recorded, RecordingEnd, Settings, bpf_guest, condition, ns};
use crate::wait::Wait;

/// Whether BPF records, and why it and not ftrace.
pub(super) fn chosen(settings: &Settings) -> Option<&'static str> {
    match settings.backend {
        Backend::Ftrace => None,
        Backend::BpfFentry | Backend::BpfKprobe => Some("as asked for"),
        Backend::Auto if settings.aggregate => Some("--aggregate needs it"),
        Backend::Auto if settings.condition.is_some() => Some("--if needs it"),
        Backend::Auto if settings.guest.is_some() || has_function_graph() => None,
        Backend::Auto => Some("the kernel has no function_graph"),
    }
}

fn has_function_graph() -> bool {
    let tracers = host::tracefs().and_then(|t| fs::read_to_string(t.join("available_tracers")).ok());
    // Without tracefs, ftrace's own complaint is the better one.
    tracers.is_none_or(|tracers| tracers.split_whitespace().any(|tracer| tracer == "function_graph"))
}

pub(super) fn record(
    settings: &Settings,
    why: &str,
    progress: &Progress,
    report: Report<'_>,
) -> Result<Recorded> {
    suits(settings).with_context(|| format!("BPF records ({why})"))?;
    if let Some(guest) = &settings.guest {
        return bpf_guest::record(settings, guest, progress, report);
    }
    if let Some(why) = Host::here().function_refusal() {
        bail!("{why}");
    }
    let mut kernel = Kernel::running()?;
    let kallsyms = fs::read("/proc/kallsyms").context("/proc/kallsyms")?;
    let (mut functions, around) = wanted(&settings.trace, &String::from_utf8_lossy(&kallsyms))?;
    let asked = || "as asked for".to_owned();
    let (hook, hook_why) = match settings.backend {
        Backend::BpfFentry => (Hook::Fentry, asked()),
        Backend::BpfKprobe => (many(&kernel), asked()),
        Backend::Auto | Backend::Ftrace => choose(&mut kernel, &functions),
    };
    if hook != Hook::Fentry {
        let named = functions.len();
        functions.retain(|function| !kernel::serves_probes(&function.name));
        let left_out = named - functions.len();
        match (left_out, functions.is_empty()) {
            (0, _) => {}
            (_, true) => bail!("all {named} functions serve the hooks themselves: use --backend ftrace"),
            _ => progress
                .say(&format!("{left_out} functions left out: the kernel calls them to run the hooks")),
        }
    }
    if hook == Hook::Fentry {
        leave_unknown(&settings.trace, &mut kernel, &mut functions, progress)?;
    }
    let (conditions, without) = conditions(settings, &mut functions, &mut kernel, hook)?;
    if settings.trace.events {
        functions.extend(around.into_iter().filter(|f| hook != Hook::Fentry || kernel.knows(f)));
    }
    progress.say(&format!("backend: BPF ({why}), {} ({hook_why})", hook.name()));
    let run = Run::create(&settings.output)?;
    let mut manifest = begun(settings, hook, functions.len());
    if !without.is_empty() {
        manifest.set(OptionKey::WithoutCondition, json!(without));
    }
    run.write_manifest(&manifest)?;
    fs::create_dir_all(run.symbols())?;
    fs::write(run.kallsyms(), kallsyms).context("symbols/kallsyms")?;
    let folder = run.bpf();
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;

    let config = config(settings, hook);
    let mut hooked = |done: usize| progress.amount("functions hooked", done as u64, functions.len() as u64);
    let mut session = Session::start(&mut kernel, &functions, &conditions, &config, &mut hooked)?;
    progress.clear();
    let left_out = session.left_out();
    if !left_out.is_empty() {
        let list: Vec<Value> = left_out.iter().map(|one| json!({"name": one.name, "why": one.why})).collect();
        manifest.set(OptionKey::Functions, functions.len() - left_out.len());
        manifest.set(OptionKey::LeftOut, list);
        run.write_manifest(&manifest)?;
    }
    let (ended, calls) = watch(settings, &mut session, &functions, &folder, progress)?;
    let losses = session.losses();
    if settings.aggregate {
        write_functions(&folder.join("functions.jsonl"), &functions, &session.stats())?;
    }
    manifest.exit_code = ended.exit_code;
    manifest.stopped = ended.interrupted.then(|| "interrupted".to_owned());
    if !settings.aggregate {
        manifest.durations.calls = Some(calls);
    }
    if settings.condition.is_some() {
        let faults = session.faults()?.into_iter().map(|(fault, count)| (fault.name().to_owned(), count));
        manifest.enter_filtered(losses.filtered, faults);
    }
    manifest.instruments = vec![Instrument::Durations];
    manifest.durations.recorded_ns = Some(ended.ns);
    manifest.durations.losses = Some(call_losses(&losses));
    run.write_manifest(&manifest)?;
    let measured = durations::measure(&run, progress)?;
    progress.clear();
    progress.say(&durations::calls(&measured));
    remarks(&manifest).iter().for_each(|line| progress.say(line));
    progress.say(&format!("recorded in {}", durations::see(&run)));
    let end = if ended.interrupted { RecordingEnd::Interrupted } else { RecordingEnd::Done };
    Ok(Recorded { run, measured: Some(measured), end })
}

/// Compiles the condition for each function. Functions without a name of the condition are taken out, and named.
fn conditions(
    settings: &Settings,
    functions: &mut Vec<Function>,
    kernel: &mut Kernel,
    hook: Hook,
) -> Result<(Vec<Option<Condition>>, Vec<Named>)> {
    let Some(text) = &settings.condition else { return Ok((Vec::new(), Vec::new())) };
    let named = |function: &Function| settings.trace.functions.contains(&function.name);
    let compiled = condition::compile(text, std::mem::take(functions), kernel, hook, &named)?;
    let (kept, conditions): (Vec<_>, Vec<_>) = compiled.kept.into_iter().unzip();
    *functions = kept;
    Ok((conditions.into_iter().map(Some).collect(), compiled.left_out))
}

/// A function that was left out, and why.
type Named = (String, String);

/// The functions at which the condition has no meaning, in a line; nothing if there are none.
fn without_condition(left_out: &[Named]) -> Option<String> {
    let (name, why) = left_out.first()?;
    let many = left_out.len();
    let what =
        if many == 1 { "1 function".to_owned() } else { format!("{} functions", grouped(many as u64)) };
    Some(format!("{what} left out, where the condition has no meaning, such as {name}: {why}"))
}

/// The functions that the kernel did not let us hook, in a line; nothing if there are none.
fn left_out(manifest: &Manifest) -> Option<String> {
    const NAMED: usize = 8;
    let all = manifest.option_facts().left_out;
    let (_, why) = all.first()?;
    let mut names: Vec<&str> = all.iter().take(NAMED).map(|(name, _)| name.as_str()).collect();
    if all.len() > NAMED {
        names.push("…");
    }
    let what = if all.len() == 1 { "1 function".to_owned() } else { format!("{} functions", all.len()) };
    Some(format!(
        "{what} left out, because the kernel refuses BPF programs there: {} ({why})",
        names.join(", ")
    ))
}

/// Remarks on a recording that has ended, here or in a guest: functions left out, losses.
pub(super) fn remarks(manifest: &Manifest) -> Vec<String> {
    let losses = manifest.durations.losses.as_ref().map(losses_text).unwrap_or_default();
    let without = manifest.option_facts().without_condition;
    left_out(manifest).into_iter().chain(without_condition(&without)).chain(losses).collect()
}

/// Refuses settings that this backend would pass over.
fn suits(settings: &Settings) -> Result<()> {
    let trace = &settings.trace;
    let cannot = [
        (!trace.graph.is_empty(), "-G"),
        (!trace.not_graph.is_empty(), "-g"),
        (trace.depth.is_some(), "--depth"),
        (!trace.interrupts, "--no-irqs"),
        (!trace.sleep_time, "--no-sleep-time"),
        (matches!(trace.scope, tracefs::Scope::Cgroup(_)), "--cgroup"),
        (settings.remeasure, "--remeasure"),
        (trace.cpus.is_some(), "--cpu"),
        (!trace.more_events.is_empty(), "--event"),
        (trace.clock != "local", "--clock"),
        (trace.top_level, "--top-level"),
    ];
    if let Some((_, option)) = cannot.iter().find(|(given, _)| *given) {
        bail!("the BPF backend has no {option}: leave it out, or use --backend ftrace");
    }
    if trace.functions.is_empty() {
        bail!("the BPF backend hooks functions one by one: name them with -T");
    }
    if settings.aggregate && trace.longer_than.is_some() {
        bail!("--aggregate counts every call: leave --longer-than out");
    }
    Ok(())
}

/// The functions asked for, and those that say what a call's time was not spent on: the scheduler, interrupts.
fn wanted(trace: &tracefs::Settings, kallsyms: &str) -> Result<(Vec<Function>, Vec<Function>)> {
    let matches = |pattern: &String, function: &Function| {
        let (name, module) = pattern.split_once(":mod:").unwrap_or((pattern, "*"));
        let is = glob(name, &function.name) || function.aliases.iter().any(|other| glob(name, other));
        is && (module == "*" || function.module.as_deref().is_some_and(|own| glob(module, own)))
    };
    let mut functions = kernel::functions(kallsyms)?;
    let not = |function: &Function| trace.not_functions.iter().any(|pattern| matches(pattern, function));
    functions.retain(|function| !not(function));
    let (functions, mut around): (Vec<_>, Vec<_>) = functions
        .into_iter()
        .partition(|function| trace.functions.iter().any(|pattern| matches(pattern, function)));
    around.retain(|function| {
        let role = Role::of(&function.name);
        function.module.is_none() && (role.interrupt || role.schedules)
    });
    if functions.is_empty() {
        bail!("no function that can be traced matches {}", quoted(&trace.functions));
    }
    Ok((functions, around))
}

/// Trampolines are for functions that BTF describes. One that was named must be; of those that a glob found, the others
/// are left out.
fn leave_unknown(
    trace: &tracefs::Settings,
    kernel: &mut Kernel,
    functions: &mut Vec<Function>,
    progress: &Progress,
) -> Result<()> {
    let remedy = "BTF does not describe it, or another has its name: use --backend bpf-kprobe";
    let named = |function: &Function| trace.functions.contains(&function.name);
    let (known, unknown): (Vec<_>, Vec<_>) =
        std::mem::take(functions).into_iter().partition(|function| kernel.knows(function));
    if let Some(function) = unknown.iter().find(|function| known.is_empty() || named(function)) {
        bail!("{}: {remedy}", function.name);
    }
    if let Some(first) = unknown.first() {
        progress.say(&format!("{} functions left out, as {}: {remedy}", unknown.len(), first.name));
    }
    *functions = known;
    Ok(())
}

fn many(kernel: &Kernel) -> Hook {
    let session = kernel.btf().function("bpf_session_is_return").is_ok();
    if session { Hook::KprobeSession } else { Hook::KprobeMulti }
}

fn config(settings: &Settings, hook: Hook) -> Config {
    let scope = match settings.trace.scope {
        tracefs::Scope::All => Scope::All,
        tracefs::Scope::Processes(_) => Scope::Processes,
        tracefs::Scope::Threads(_) => Scope::Threads,
        tracefs::Scope::Command | tracefs::Scope::Cgroup(_) => Scope::Children,
    };
    let keep = match settings.aggregate {
        true => Keep::Aggregate,
        false => Keep::LongerThan(settings.trace.longer_than.map_or(0, ns)),
    };
    // One ring serves all CPUs.
    let bytes = settings.trace.buffer_kib.saturating_mul(1024 * host::possible_cpus() as u64);
    let ring_bytes = bytes.clamp(1 << 16, 1 << 30).next_power_of_two() as u32;
    Config { keep, scope, hook, ring_bytes }
}

fn begun(settings: &Settings, hook: Hook, functions: usize) -> Manifest {
    let options: Vec<(OptionKey, Value)> = vec![
        (OptionKey::Record, "func".into()),
        (OptionKey::Backend, "bpf".into()),
        (OptionKey::Hook, hook.name().into()),
        (OptionKey::Functions, functions.into()),
        (OptionKey::Aggregate, settings.aggregate.into()),
        (OptionKey::RecordBytes, SIZE.into()),
        (OptionKey::Condition, settings.condition.clone().into()),
        (OptionKey::LongerThanNs, settings.trace.longer_than.map(ns).into()),
    ];
    crate::begun_by_bpf(&settings.command, options)
}

struct Watched {
    exit_code: Option<i32>,
    /// Duration.
    ns: u64,
    interrupted: bool,
}

/// Runs the command, or waits for as long as was asked, and takes calls out as they come.
fn watch(
    settings: &Settings,
    session: &mut Session,
    functions: &[Function],
    folder: &Path,
    progress: &Progress,
) -> Result<(Watched, u64)> {
    const TICK: Duration = Duration::from_millis(20);
    let watched = match &settings.trace.scope {
        tracefs::Scope::Processes(numbers) | tracefs::Scope::Threads(numbers) => numbers.clone(),
        tracefs::Scope::All | tracefs::Scope::Command | tracefs::Scope::Cgroup(_) => Vec::new(),
    };
    for &number in &watched {
        session.trace(number)?;
    }
    let path = folder.join("calls.bin");
    let mut file = match settings.aggregate {
        true => None,
        false => Some(BufWriter::new(File::create(&path).with_context(|| path.display().to_string())?)),
    };
    let mut wait = Wait::begin(&settings.command, watched, settings.trace.duration, false, progress)?;
    let mut calls = 0;
    let mut next = settings.keep_current.map(|interval| Instant::now() + interval);
    loop {
        calls += drain(session, functions, file.as_mut())?;
        if wait.ended()? || wait.is_over() {
            break;
        }
        if let (Some(at), Some(interval)) = (next, settings.keep_current)
            && Instant::now() >= at
        {
            write_functions(&folder.join("functions.jsonl"), functions, &session.stats())?;
            next = Some(Instant::now() + interval);
        }
        session.calls()?.wait(TICK);
    }
    // Unhooking takes the kernel long: a wait for all CPUs for each trampoline.
    let ns = wait.ns();
    session.stop();
    calls += drain(session, functions, file.as_mut())?;
    if let Some(mut file) = file {
        file.flush().with_context(|| path.display().to_string())?;
    }
    Ok((Watched { exit_code: wait.exit_code, ns, interrupted: kprism_signals::end_requested() }, calls))
}

fn drain(session: &Session, functions: &[Function], file: Option<&mut BufWriter<File>>) -> Result<u64> {
    let Some(file) = file else { return Ok(0) };
    let mut failed = None;
    let taken = session.calls()?.drain(|bytes| {
        let Ok(bytes) = bytes.try_into() else { return };
        let call = CallRecord::from_bytes(bytes);
        // In the ring a function is a number; a file has to stand by itself.
        let Some(function) = functions.get(call.func as usize) else { return };
        let call = CallRecord { func: function.address, ..call };
        if failed.is_none() {
            failed = file.write_all(&call.to_bytes()).err();
        }
    });
    match failed {
        Some(error) => Err(error).context("streams/bpf/calls.bin"),
        None => Ok(taken as u64),
    }
}

fn write_functions(path: &Path, functions: &[Function], stats: &[FunctionStats]) -> Result<()> {
    // In one step: a reader of a run that is being recorded never sees a part of it.
    let begun = path.with_extension("jsonl.new");
    let mut out = BufWriter::new(File::create(&begun).with_context(|| begun.display().to_string())?);
    for (function, stats) in functions.iter().zip(stats).filter(|(_, stats)| stats.count > 0) {
        let line = json!({
            "func": function.address,
            "name": function.name,
            "module": function.module,
            "count": stats.count,
            "total_ns": stats.total_ns,
            "self_ns": stats.self_ns,
            "off_ns": stats.off_ns,
            "min_ns": stats.min_ns,
            "max_ns": stats.max_ns,
            "log2_ns": stats.buckets.to_vec(),
        });
        writeln!(out, "{line}").with_context(|| begun.display().to_string())?;
    }
    out.flush().with_context(|| begun.display().to_string())?;
    fs::rename(&begun, path).with_context(|| path.display().to_string())
}

fn call_losses(losses: &Losses) -> CallLosses {
    CallLosses {
        lost: losses.lost,
        overflowed: losses.overflowed,
        missed: losses.missed,
        abandoned: losses.abandoned,
        orphans: losses.orphans,
        unfinished: losses.unfinished,
    }
}

/// The calls that are missing from the numbers, a line for each reason.
fn losses_text(losses: &CallLosses) -> Vec<String> {
    let lines = [
        (losses.lost, "kept calls lost, the ring was full: a larger --buffer-size, or --longer-than"),
        (losses.overflowed, "calls not measured: more than 64 open in a task, or 1023 tasks with open ones"),
        (
            losses.missed,
            "entries or returns that the kernel could not show us (an interrupt in the same program)",
        ),
        (losses.abandoned, "calls whose return was not seen"),
        (losses.orphans, "returns without an entry: under way when recording began"),
        (losses.unfinished, "calls that never returned: their task ended"),
    ];
    lines.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n))).collect()
}
