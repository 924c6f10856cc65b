// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record tlb --method user`: one program of this machine under QEMU's user mode, whose plugin `kprism-user` feeds
//! its accesses to models of TLBs. No guest, no kernel: quick, and only the program's own accesses.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use kprism_image::sideband::{self, Record};
use kprism_image::symbols::under_root;
use kprism_store::{Manifest, Run, RunKind};
use kprism_tlb::live;
use kprism_tlb::stream::Writer;
use serde_json::{Value, json};

use super::here::{self, Stopped};
use super::tlb;
use crate::cmd::lab::PlaceArgs;
use crate::{exit, pipeline};

/// Records a command; gives the run and the exit code.
pub fn record(
    command: &[String],
    geometries: &[String],
    place: &PlaceArgs,
    output: &Path,
) -> Result<(Run, u8)> {
    let plugin = kprism_lab::find_user_plugin()?;
    let qemu = kprism_lab::find_qemu_user()?;
    for path in [&plugin, &output.to_path_buf()] {
        if path.to_string_lossy().contains(',') {
            bail!("{}: no `,` may be in this path, as QEMU's options are separated by it", path.display());
        }
    }
    kprism_tracefs::find_command(&command[0])?;
    let mut line = Command::new(&qemu);
    here::place(&mut line, place)?;
    let run = Run::create(output)?;
    let mut argument = plugin.into_os_string();
    argument.push(",out=");
    argument.push(std::path::absolute(run.streams())?);
    argument.push(format!(",tlb={}", geometries.join("+")));
    line.arg("-plugin").arg(&argument).arg(in_path(&command[0])).args(&command[1..]);
    let mut child = here::start(&mut line)?;
    let limit = place.timeout.map(Duration::from_secs);
    let (status, stopped) = here::wait(&mut child, limit, &kprism_lab::interrupt::requested)?;
    let signal = status.signal();
    let own = status.code().or(signal.map(|s| 128 + s)).unwrap_or(1);
    let counts = complete(&run, geometries)
        .with_context(|| format!("{} left no counts: it ended with exit code {own}", qemu.display()))?;
    let threads = counts["vcpus"].as_array().map_or(0, Vec::len);
    let vcpus: Vec<Value> = (0..threads).map(|cpu| json!({"cpu": cpu, "instructions": null})).collect();
    let executed = counts["programs_not_followed"].as_u64().is_some_and(|n| n > 0);
    let why = match (stopped, signal) {
        (Some(Stopped::Timeout), _) => Some("the command was ended after --timeout".to_owned()),
        (Some(Stopped::Interrupted), _) => Some("recording was interrupted".to_owned()),
        (None, Some(signal)) => Some(format!("the command was ended by signal {signal}")),
        (None, None) if executed => {
            Some("the command became another program (execve), which is not followed".to_owned())
        }
        (None, None) => None,
    };
    let account = json!({"vcpus": vcpus, "clock": null, "stopped": why});
    fs::write(run.counts(), serde_json::to_vec_pretty(&account)?)?;
    let mut manifest = Manifest::new(RunKind::Host, threads as u32);
    manifest.command = command.to_vec();
    manifest.created = pipeline::now();
    manifest.clock.name = "instructions of the thread".into();
    manifest.exit_code = Some(own);
    manifest.stopped = why;
    manifest.options.insert("method".into(), "user".into());
    run.write_manifest(&manifest)?;
    collect(&run)?;
    let code = match stopped {
        Some(Stopped::Timeout) => exit::TIMED_OUT,
        Some(Stopped::Interrupted) => exit::INTERRUPTED,
        None => u8::try_from(own).unwrap_or(1),
    };
    Ok((run, code))
}

/// The recorder's counts; made of what it left in [`live`], and its streams cut to what was written, if it was ended.
fn complete(run: &Run, names: &[String]) -> Result<Value> {
    let path = run.streams().join("tlb/live");
    if let Some(left) = fs::read(&path).ok().as_deref().and_then(live::Live::new) {
        let geometries = names.iter().map(|name| tlb::geometry(name)).collect::<Result<Vec<_>>>()?;
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
    Ok(serde_json::from_slice(&fs::read(run.tlb_counts())?)?)
}

/// Where a command is: QEMU does not look into PATH.
fn in_path(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").filter(|_| !name.contains('/')).unwrap_or_default();
    std::env::split_paths(&folders).map(|f| f.join(name)).find(|p| p.is_file()).unwrap_or_else(|| name.into())
}

/// Copies of what was mapped, for names.
fn collect(run: &Run) -> Result<()> {
    let records = sideband::parse(&pipeline::read_if_there(&run.sideband())?)?;
    let mapped = records.iter().filter_map(|r| match r {
        Record::Mmap(m) if m.path.starts_with('/') => Some(m.path.as_str()),
        _ => None,
    });
    for path in mapped.collect::<BTreeSet<_>>() {
        let Some(to) = under_root(&run.symbols().join("root"), path) else { continue };
        if Path::new(path).is_file() {
            fs::create_dir_all(to.parent().unwrap_or(&to))?;
            fs::copy(path, &to).with_context(|| path.to_owned())?;
        }
    }
    Ok(())
}
