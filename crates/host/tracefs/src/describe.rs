// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of the files that are needed to decode the pages on another machine: event formats, task names, symbols, and
//! the kernel's counts. They are taken from tracefs and `/proc`, because they describe only the running kernel.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Context as _, Result};
use crate::stats::CpuStats;
use crate::tracefs::{self, Tracefs, join};

/// Size of a file that reserves disk space for the files written at the end, in case the disk is full by then, in
/// bytes.
const RESERVE: usize = 512 << 10;

fn reserve(output: &Path) -> PathBuf {
    output.join(".reserve")
}

/// Before the recording: copies the formats of the pages, of ftrace's own events, and of `events` (each `SYSTEM/NAME`).
pub fn formats(tracefs: &Tracefs, events: &[String], output: &Path) -> Result<()> {
    for name in ["header_page", "header_event"] {
        copy(&tracefs.path(&format!("events/{name}")), &output.join(name))?;
    }
    let own = tracefs.path("events/ftrace");
    let mut names: Vec<String> = events.to_vec();
    for entry in fs::read_dir(&own).at("read", &own)? {
        let name = entry.at("read", &own)?.file_name();
        names.push(format!("ftrace/{}", name.to_string_lossy()));
    }
    for name in names {
        let format = tracefs.path(&format!("events/{name}/format"));
        // These folders also hold files that are not events, such as `enable` and `filter`.
        if format.exists() {
            let place = output.join("events").join(&name);
            fs::create_dir_all(&place).at("create", &place)?;
            copy(&format, &place.join("format"))?;
        }
    }
    let path = reserve(output);
    fs::write(&path, vec![1; RESERVE]).at("write", &path)
}

/// After the recording: copies the task names, the clock, the tracer, its threshold, and each CPU's counts, which are
/// also returned.
pub fn facts(tracefs: &Tracefs, folder: &str, cpus: &[u32], output: &Path) -> Result<Vec<(u32, CpuStats)>> {
    fs::remove_file(reserve(output)).ok();
    let of_folder = ["trace_clock", "current_tracer"].map(|name| join(folder, name));
    for name in
        [&of_folder[0], &of_folder[1], "tracing_thresh", "saved_cmdlines", "saved_tgids", "printk_formats"]
    {
        let short = name.rsplit('/').next().unwrap_or(name);
        let short = if short == "current_tracer" { "tracer" } else { short };
        let path = tracefs.path(name);
        if path.exists() {
            copy(&path, &output.join(short))?;
        }
    }
    let place = output.join("stats");
    fs::create_dir_all(&place).at("create", &place)?;
    let mut all = Vec::new();
    for &cpu in cpus {
        let text = tracefs.read(&join(folder, &format!("per_cpu/cpu{cpu}/stats")))?;
        let path = place.join(format!("cpu{cpu}"));
        fs::write(&path, &text).at("write", &path)?;
        all.push((cpu, CpuStats::parse(&text)));
    }
    Ok(all)
}

/// The texts of `/proc/modules` and `/proc/kallsyms`. The kernel needs 175 million instructions to write the second one.
pub struct Symbols {
    modules: String,
    /// As the kernel wrote it.
    pub kallsyms: String,
}

impl Symbols {
    /// Reads both. The modules first: one that is loaded meanwhile has symbols, and is seen as new at the end.
    pub fn read() -> Result<Self> {
        let modules = modules();
        Ok(Self { modules, kallsyms: tracefs::read(Path::new("/proc/kallsyms"))? })
    }

    /// Writes both into a folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        fs::create_dir_all(folder).at("create", folder)?;
        for (name, text) in [("modules", &self.modules), ("kallsyms", &self.kallsyms)] {
            let path = folder.join(name);
            fs::write(&path, text).at("write", &path)?;
        }
        Ok(())
    }
}

/// Copies `/proc/kallsyms` and `/proc/modules` again if the loaded modules are others than those in the folder.
pub fn symbols_again(folder: &Path) -> Result<()> {
    let known = fs::read_to_string(folder.join("modules"));
    if known.is_ok_and(|known| names(&known) == names(&modules())) {
        return Ok(());
    }
    Symbols::read()?.save(folder)
}

/// The text of `/proc/modules`; empty if the kernel has no modules.
fn modules() -> String {
    tracefs::read(Path::new("/proc/modules")).unwrap_or_default()
}

/// Name and address of each module. Reference counts are left out because they change all the time.
fn names(modules: &str) -> Vec<(&str, &str)> {
    modules
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            Some((words.next()?, words.find(|word| word.starts_with("0x"))?))
        })
        .collect()
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let bytes = tracefs::read_bytes(from).at("read", from)?;
    fs::write(to, bytes).at("write", to)
}
