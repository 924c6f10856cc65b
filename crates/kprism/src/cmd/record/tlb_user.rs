// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism record tlb --method user`: one program of this machine under QEMU's user mode, whose plugin `kprism-user` feeds
//! its accesses to models of TLBs. No guest, no kernel: quick, and only the program's own accesses.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use kprism_image::sideband::{self, Record};
use kprism_image::symbols::under_root;
use kprism_store::{Manifest, Run, RunKind};
use serde_json::{Value, json};

use crate::pipeline;

/// Records a command; gives the run and the exit code.
pub fn record(command: &[String], geometries: &[String], output: &Path) -> Result<(Run, u8)> {
    let plugin = kprism_lab::find_user_plugin()?;
    let qemu = kprism_lab::find_qemu_user()?;
    for path in [&plugin, &output.to_path_buf()] {
        if path.to_string_lossy().contains(',') {
            bail!("{}: no `,` may be in this path, as QEMU's options are separated by it", path.display());
        }
    }
    kprism_tracefs::find_command(&command[0])?;
    let run = Run::create(output)?;
    let mut argument = plugin.into_os_string();
    argument.push(",out=");
    argument.push(std::path::absolute(run.streams())?);
    argument.push(format!(",tlb={}", geometries.join("+")));
    let status = Command::new(&qemu)
        .arg("-plugin")
        .arg(&argument)
        .arg(in_path(&command[0]))
        .args(&command[1..])
        .status()
        .with_context(|| qemu.display().to_string())?;
    let code = status.code().or(status.signal().map(|s| 128 + s)).unwrap_or(1);
    let counts = fs::read(run.tlb_counts()).with_context(|| {
        format!("{} left no counts: the command ended with exit code {code}", qemu.display())
    })?;
    let counts: Value = serde_json::from_slice(&counts)?;
    let threads = counts["vcpus"].as_array().map_or(0, Vec::len);
    let vcpus: Vec<Value> = (0..threads).map(|cpu| json!({"cpu": cpu, "instructions": null})).collect();
    let account = json!({"vcpus": vcpus, "clock": null, "stopped": null});
    fs::write(run.counts(), serde_json::to_vec_pretty(&account)?)?;
    let mut manifest = Manifest::new(RunKind::Host, threads as u32);
    manifest.command = command.to_vec();
    manifest.created = pipeline::now();
    manifest.clock.name = "instructions of the thread".into();
    manifest.exit_code = Some(code);
    manifest.options.insert("method".into(), "user".into());
    run.write_manifest(&manifest)?;
    collect(&run)?;
    Ok((run, u8::try_from(code).unwrap_or(1)))
}

/// Where a command is: QEMU does not look into PATH.
fn in_path(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").filter(|_| !name.contains('/')).unwrap_or_default();
    std::env::split_paths(&folders).map(|f| f.join(name)).find(|p| p.is_file()).unwrap_or_else(|| name.into())
}

/// Copies of what was mapped, for names.
fn collect(run: &Run) -> Result<()> {
    let records = sideband::parse(&pipeline::read(&run.sideband())?)?;
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
