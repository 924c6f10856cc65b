// SPDX-License-Identifier: MIT OR Apache-2.0
//! By models, of one program of this machine: QEMU's user mode runs it, and the plugin `kprism-user` feeds its accesses to
//! models of TLBs. No guest, no kernel: quick, and only the program's own accesses.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use kprism_debuginfo::separate;
use kprism_expr::access::Known;
use kprism_image::sideband::{self, Record};
use kprism_image::symbols::under_root;
use kprism_lab::Job;
use kprism_session::{Progress, date, files};
use kprism_store::{Instrument, Manifest, OptionKey, Run, RunKind};
use kprism_tlb::counts::{Counts, Cpu};
use kprism_tlb::stream::Writer;
use kprism_tlb::stream::live;
use serde_json::{Value, json};

use super::{Ended, Recorded, close, geometry};
use crate::here::{self, Stopped};

/// Records the command of `job` with these geometries ([`super::geometries`]) into `output`. Of the misses those are kept that
/// meet `condition` ([`kprism_expr::access`]). An interrupt ends it ([`kprism_signals`]).
///
/// # Errors
/// The condition is wrong, there is no QEMU for programs or no plugin, the command is not there or no program that QEMU runs, or it left no counts.
pub fn record(
    job: &Job,
    geometries: &[String],
    condition: Option<&str>,
    output: &Path,
    progress: &Progress,
) -> Result<Recorded> {
    let compiled = super::compile(condition, Known::Program)?;
    let command = &job.argv;
    let plugin = kprism_lab::find_user_plugin()?;
    let qemu = kprism_lab::find_qemu_user()?;
    for path in [&plugin, &output.to_path_buf()] {
        if path.to_string_lossy().contains(',') {
            bail!("{}: no `,` may be in this path, as QEMU's options are separated by it", path.display());
        }
    }
    let program = program(command, job)?;
    let mut line = Command::new(&qemu);
    here::place(&mut line, job)?;
    let run = Run::create(output)?;
    let mut argument = plugin.into_os_string();
    argument.push(",out=");
    argument.push(std::path::absolute(run.streams())?);
    argument.push(format!(",tlb={}", geometries.join("+")));
    if let Some(json) = compiled {
        // QEMU reads two commas as one that separates nothing.
        argument.push(format!(",misses-if={}", json.replace(',', ",,")));
    }
    line.arg("-plugin").arg(&argument).args(&program);
    let mut child = here::start(&mut line)?;
    let pid = child.id();
    let (status, stopped) = here::wait(&mut child, job.timeout, &kprism_signals::end_requested)?;
    let signal = status.signal();
    let own = status.code().or(signal.map(|s| 128 + s)).unwrap_or(1);
    let counts = complete(&run, geometries)
        .with_context(|| format!("{} left no counts: it ended with exit code {own}", qemu.display()))?;
    let fetched = |cpu: &Cpu| cpu.references.and_then(|kinds| kinds.fetch) != Some(0);
    let threads = counts.vcpus.as_deref().unwrap_or_default();
    if !threads.iter().any(fetched) {
        fs::remove_dir_all(run.dir()).ok();
        let how = match stopped {
            Some(Stopped::Timeout) => "was ended after --timeout".to_owned(),
            Some(Stopped::Interrupted) => "was interrupted".to_owned(),
            None => format!("ended with exit code {own}"),
        };
        bail!("{}: {} {how} before its first instruction", command[0], qemu.display());
    }
    let threads = threads.len();
    let vcpus: Vec<Value> = (0..threads).map(|cpu| json!({"cpu": cpu, "instructions": null})).collect();
    let lost = |count: Option<u64>| count.is_some_and(|n| n > 0);
    let unwritten = lost(counts.unwritten_bytes) || lost(counts.unwritten_mappings);
    let executed = counts.programs_not_followed.is_some_and(|n| n > 0);
    let why = match (stopped, signal) {
        (Some(Stopped::Timeout), _) => Some("the command was ended after --timeout".to_owned()),
        (Some(Stopped::Interrupted), _) => Some("recording was interrupted".to_owned()),
        (None, Some(signal)) => Some(format!("the command was ended by signal {signal}")),
        (None, None) if unwritten => Some("not all misses could be written".to_owned()),
        (None, None) if executed => {
            Some("the command became another program (execve), which is not followed".to_owned())
        }
        (None, None) => None,
    };
    let account = json!({"vcpus": vcpus, "clock": null, "stopped": why});
    fs::write(run.counts(), serde_json::to_vec_pretty(&account)?)?;
    let mut manifest = Manifest::new(RunKind::Host, threads as u32);
    manifest.command.clone_from(command);
    manifest.created = date::now();
    manifest.clock.name = "instructions of the thread".into();
    manifest.exit_code = Some(own);
    manifest.stopped = why;
    manifest.instruments = vec![Instrument::Tlb];
    manifest.set(OptionKey::Method, "user");
    run.write_manifest(&manifest)?;
    super::keep_condition(&run, condition)?;
    name_process(&run, pid, &command[0])?;
    for note in collect(&run)? {
        progress.note(&note);
    }
    close(&run, progress)?;
    let ended = match stopped {
        Some(Stopped::Timeout) => Ended::Timeout,
        Some(Stopped::Interrupted) => Ended::Interrupted,
        None if unwritten => Ended::Unwritten,
        None => Ended::Code(own),
    };
    Ok(Recorded { run, ended })
}

/// The recorder's counts; made of what it left in [`live`], and its streams cut to what was written, if it was ended.
fn complete(run: &Run, names: &[String]) -> Result<Counts> {
    let path = run.tlb().join("live");
    if let Some(left) = fs::read(&path).ok().as_deref().and_then(live::Live::new) {
        let geometries = names.iter().map(|name| geometry(name)).collect::<Result<Vec<_>>>()?;
        for slot in 0..left.slots() {
            let path = run.tlb_misses(slot as u32);
            let bytes = left.slot(slot, live::BYTES);
            if bytes == 0 {
                // A thread that is not followed.
                fs::write(&path, Writer::new(&geometries).bytes)?;
            } else {
                File::options().write(true).open(&path)?.set_len(bytes)?;
            }
        }
        fs::write(run.tlb_counts(), format!("{:#}\n", left.counts(&geometries)))?;
        fs::remove_file(&path)?;
    }
    Ok(Counts::parse(&fs::read(run.tlb_counts())?)?)
}

/// The program and arguments for QEMU, which looks for no program and runs no script: as the kernel would take them, with a script's interpreter.
fn program(command: &[String], job: &Job) -> Result<Vec<OsString>> {
    let mut file = here::find(&command[0], job)?;
    // What the program is told of itself is as it was typed.
    let own = match command[0].contains('/') {
        true => OsString::from(&command[0]),
        false => std::path::absolute(&file)?.into(),
    };
    let mut words = vec![own];
    words.extend(command[1..].iter().map(OsString::from));
    for _ in 0..INTERPRETERS {
        let mut head = [0; 256];
        let length = File::open(&file)
            .and_then(|mut file| file.read(&mut head))
            .with_context(|| file.display().to_string())?;
        let head = &head[..length];
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default().trim_ascii();
            let text = OsStr::from_bytes(line).to_string_lossy().into_owned();
            let (interpreter, argument) = text.split_once([' ', '\t']).unwrap_or((text.as_str(), ""));
            let more = [interpreter, argument.trim()].into_iter().filter(|word| !word.is_empty());
            words = more.map(OsString::from).chain(words).collect();
            file = here::find(interpreter, job).with_context(|| file.display().to_string())?;
            continue;
        }
        // e_ident's magic number, 64 bits, little-endian; e_machine.
        let is_ours = head.starts_with(b"\x7fELF\x02\x01") && head.get(18..20) == Some(&X86_64.to_le_bytes());
        if !is_ours {
            let what =
                if head.starts_with(b"\x7fELF") { "a program for another processor" } else { "no program" };
            bail!("{}: is {what}; --method user runs ELF programs for x86-64, and scripts", file.display());
        }
        return Ok(words);
    }
    bail!("{}: a script whose interpreter is a script, and so on", command[0])
}

/// A script's interpreter may be a script, up to so many (fs/exec.c).
const INTERPRETERS: usize = 5;
/// `EM_X86_64`.
const X86_64: u16 = 62;

/// The process, by its program's name.
fn name_process(run: &Run, pid: u32, program: &str) -> Result<()> {
    let comm: String = program.rsplit('/').next().unwrap_or(program).chars().take(15).collect();
    let line = json!({"k": "comm", "t": 0, "cpu": 0, "pid": pid, "tgid": pid, "comm": comm});
    let path = run.sideband();
    let file = File::options().append(true).create(true).open(&path);
    file.and_then(|mut file| writeln!(file, "{line}")).with_context(|| path.display().to_string())
}

/// Copies of what was mapped, for names; gives what could not be copied.
fn collect(run: &Run) -> Result<Vec<String>> {
    let records = sideband::parse(&files::read_if_there(&run.sideband())?)?;
    let mapped = records.iter().filter_map(|r| match r {
        Record::Mmap(m) if m.path.starts_with('/') => Some(m.path.as_str()),
        _ => None,
    });
    let debug = separate::folders([]);
    let mut notes = Vec::new();
    for path in mapped.collect::<BTreeSet<_>>() {
        let Some(to) = under_root(&run.root(), path) else { continue };
        if !Path::new(path).is_file() {
            continue;
        }
        let copied = fs::create_dir_all(to.parent().unwrap_or(&to)).and_then(|()| fs::copy(path, &to));
        if let Err(error) = copied {
            // Half a file has other names than the whole.
            fs::remove_file(&to).ok();
            notes.push(format!(
                "{}: without this copy, what is of {path} has no names: {error}",
                to.display()
            ));
            continue;
        }
        let kept = separate::keep(Path::new(path), Path::new(path), &debug, &run.root());
        notes.extend(kept.err().map(|(file, why)| format!("{}: not kept: {why}", file.display())));
    }
    Ok(notes)
}
