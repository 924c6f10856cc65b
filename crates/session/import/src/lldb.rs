// SPDX-License-Identifier: MIT OR Apache-2.0
//! LLDB's trace bundles: a JSON description beside PT files and modules (LLDB's documentation, "Tracing with
//! Intel Processor Trace" and the schema printed by `trace schema intel-pt`).
//!
//! Either each thread has its own stream (`iptTrace` of a thread), or each core has one (`cpus`), with context switches
//! as perf records in a separate file, for processes or for a `kernel`. A core's stream sees the modules of all processes. If two of them disagree about
//! an address, the first one listed is kept, and a note says so.

use std::path::{Path, PathBuf};

use kprism_flow::clock::PerfTime;
use serde::Deserialize;

use crate::elf::parse;
use crate::error::{read_file, read_text};
use crate::perf::find_file;
use crate::perfdata::switches_of_cpu;
use crate::{Capture, CpuModel, ImportError, Module, Placed, Stream, Task};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bundle {
    #[serde(rename = "type")]
    kind: String,
    cpu_info: Option<CpuInfo>,
    #[serde(default)]
    cpus: Vec<Cpu>,
    #[serde(default)]
    processes: Vec<Process>,
    kernel: Option<Kernel>,
    tsc_perf_zero_conversion: Option<Conversion>,
}

#[derive(Deserialize)]
struct CpuInfo {
    family: Number,
    model: Number,
    stepping: Number,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cpu {
    id: Number,
    ipt_trace: String,
    context_switch_trace: Option<String>,
}

/// The traced kernel, in place of processes.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kernel {
    file: String,
    load_address: Option<Number>,
}

/// Address of a kernel whose address is not stated (LLDB's `kDefaultKernelLoadAddress`, TraceIntelPTConstants.h).
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// CPU numbers below this are kept, with empty streams for CPUs between them.
const MOST_CPUS: u32 = 1024;

#[derive(Deserialize)]
struct Process {
    pid: Number,
    #[serde(default)]
    threads: Vec<Thread>,
    #[serde(default)]
    modules: Vec<ModuleEntry>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Thread {
    tid: Number,
    ipt_trace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ModuleEntry {
    system_path: Option<String>,
    file: Option<String>,
    load_address: Number,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Conversion {
    time_mult: Number,
    time_shift: Number,
    time_zero: Option<Number>,
}

/// LLDB writes large integers as strings, because JSON readers lose bits of them.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
enum Number {
    Plain(u64),
    Text(String),
}

impl Number {
    fn get(&self, json: &Path, field: &str) -> Result<u64, ImportError> {
        let parsed = match self {
            Number::Plain(value) => Some(*value),
            Number::Text(text) => match text.strip_prefix("0x") {
                Some(digits) => u64::from_str_radix(digits, 16).ok(),
                None => text.parse().ok(),
            },
        };
        parsed.ok_or_else(|| ImportError::format(json, field, "an unsigned integer"))
    }

    fn get_u32(&self, json: &Path, field: &str) -> Result<u32, ImportError> {
        u32::try_from(self.get(json, field)?)
            .map_err(|_| ImportError::format(json, field, "an integer below 2^32"))
    }
}

/// Reads a bundle by its description file.
pub(crate) fn read(json: &Path) -> Result<Capture, ImportError> {
    let text = read_text(json)?;
    let bundle: Bundle = serde_json::from_str(&text).map_err(|error| {
        ImportError::format(
            json,
            format!("line {} column {}", error.line(), error.column()),
            format!("LLDB's trace description ({error})"),
        )
    })?;
    if bundle.kind != "intel-pt" {
        return Err(ImportError::format(json, "field `type`", "\"intel-pt\""));
    }
    let dir = json.parent().unwrap_or(Path::new("."));
    let mut capture = Capture::default();
    if let Some(info) = &bundle.cpu_info {
        capture.cpu = Some(CpuModel {
            family: info.family.get_u32(json, "family")? as u16,
            model: info.model.get_u32(json, "model")? as u8,
            stepping: info.stepping.get_u32(json, "stepping")? as u8,
        });
    }
    if let Some(conversion) = &bundle.tsc_perf_zero_conversion {
        let mult = conversion.time_mult.get(json, "timeMult")?;
        let zero = conversion.time_zero.as_ref().map_or(Ok(0), |zero| zero.get(json, "timeZero"))?;
        let shift = conversion.time_shift.get(json, "timeShift")?;
        capture.clock.perf = PerfTime::new(mult, shift, zero);
        capture.clock.tsc_hz = capture.clock.perf.map_or(0, |perf| perf.hz());
    }
    for process in &bundle.processes {
        read_process(json, dir, process, &mut capture)?;
    }
    if let Some(kernel) = &bundle.kernel {
        read_kernel(json, dir, kernel, &mut capture)?;
    }
    read_cpus(json, dir, &bundle.cpus, &mut capture)?;
    if capture.streams.is_empty() {
        return Err(ImportError::format(json, "fields `cpus` and `processes`", "an `iptTrace`"));
    }
    Ok(capture)
}

fn read_process(
    json: &Path,
    dir: &Path,
    process: &Process,
    capture: &mut Capture,
) -> Result<(), ImportError> {
    let pid = process.pid.get_u32(json, "pid")?;
    let mut regions = Vec::new();
    for entry in &process.modules {
        let path = entry.system_path.as_ref().or(entry.file.as_ref());
        let path = path.ok_or_else(|| ImportError::format(json, "modules", "`systemPath` or `file`"))?;
        let address = entry.load_address.get(json, "loadAddress")?;
        let found = [entry.file.as_ref(), Some(path)].into_iter().flatten().find_map(|f| find_file(dir, f));
        let Some(file) = found else {
            capture.notes.push(format!("{path}: not in the capture"));
            continue;
        };
        let elf = parse(&file, &read_file(&file)?)?;
        for segment in elf.code {
            let start = segment.va.wrapping_sub(elf.base).wrapping_add(address);
            capture.modules.push(Module {
                path: path.clone(),
                file: Some(file.clone()),
                pid,
                start,
                end: start.saturating_add(segment.bytes.len() as u64),
                pgoff: segment.offset,
                asid: 0,
                t: 0,
            });
            regions.push(capture.add_region(start, segment.bytes));
        }
    }
    for thread in &process.threads {
        let tid = thread.tid.get_u32(json, "tid")?;
        capture.tasks.push(Task { pid: tid, tgid: pid, ..Task::default() });
        if let Some(trace) = &thread.ipt_trace {
            let pt = read_file(&dir.join(trace))?;
            let label = format!("thread {tid}");
            capture.streams.push(Stream { label, pt, regions: regions.clone(), first: None });
        }
    }
    Ok(())
}

/// The kernel's code, at the address where it was loaded.
fn read_kernel(json: &Path, dir: &Path, kernel: &Kernel, capture: &mut Capture) -> Result<(), ImportError> {
    let address = kernel.load_address.as_ref().map_or(Ok(KERNEL), |at| at.get(json, "loadAddress"))?;
    if kernel.load_address.is_none() {
        capture.notes.push(format!("kernel {}: no loadAddress: taken to be {KERNEL:#x}", kernel.file));
    }
    let Some(file) = find_file(dir, &kernel.file).or_else(|| beside(dir, &kernel.file)) else {
        capture.notes.push(format!("kernel {}: not in the capture", kernel.file));
        return Ok(());
    };
    let elf = parse(&file, &read_file(&file)?)?;
    for segment in elf.code {
        let start = segment.va.wrapping_sub(elf.base).wrapping_add(address);
        capture.modules.push(Module {
            path: kernel.file.clone(),
            file: Some(file.clone()),
            pid: 0,
            start,
            end: start.saturating_add(segment.bytes.len() as u64),
            pgoff: segment.offset,
            asid: 0,
            t: 0,
        });
        capture.add_region(start, segment.bytes);
    }
    Ok(())
}

/// A file whose path in the description is relative to it, as LLDB resolves it.
fn beside(dir: &Path, path: &str) -> Option<PathBuf> {
    Some(dir.join(path)).filter(|place| place.is_file())
}

/// Streams of cores. They keep their numbers.
fn read_cpus(json: &Path, dir: &Path, cpus: &[Cpu], capture: &mut Capture) -> Result<(), ImportError> {
    let mut cores = Vec::new();
    for cpu in cpus {
        cores.push((cpu.id.get_u32(json, "id")?, cpu));
    }
    cores.sort_by_key(|core| core.0);
    let apart = cores.windows(2).all(|pair| pair[0].0 < pair[1].0);
    let keep = apart && capture.streams.is_empty() && cores.last().is_some_and(|last| last.0 < MOST_CPUS);
    if !keep && !cores.is_empty() {
        capture.notes.push("CPUs are numbered in order, as their own numbers cannot be kept".to_owned());
    }
    for (id, cpu) in cores {
        while keep && capture.streams.len() < id as usize {
            let label = format!("cpu {}", capture.streams.len());
            capture.streams.push(Stream { label, pt: Vec::new().into(), regions: Vec::new(), first: None });
        }
        let regions = without_overlaps(capture);
        let pt = read_file(&dir.join(&cpu.ipt_trace))?;
        match &cpu.context_switch_trace {
            Some(_) if capture.clock.perf.is_none() => capture.notes.push(format!(
                "cpu {id}: contextSwitchTrace is not used: without tscPerfZeroConversion its times mean nothing"
            )),
            Some(name) => {
                let bytes = read_file(&dir.join(name))?;
                let place = (id, capture.streams.len());
                let switches = switches_of_cpu(place, &pt, &bytes, capture.clock, &mut capture.notes);
                capture.switches.extend(switches);
            }
            None => {}
        }
        capture.streams.push(Stream { label: format!("cpu {id}"), pt, regions, first: None });
    }
    Ok(())
}

/// All regions without those that overlap an earlier one with different bytes.
fn without_overlaps(capture: &mut Capture) -> Vec<Placed> {
    let mut kept: Vec<usize> = Vec::new();
    for (i, region) in capture.regions.iter().enumerate() {
        let end = |r: &crate::Region| r.va.saturating_add(r.bytes.len() as u64);
        let clash = kept
            .iter()
            .map(|&k| &capture.regions[k])
            .any(|other| other != region && region.va < end(other) && other.va < end(region));
        if clash {
            let note = format!("code at {:#x} belongs to several processes: first one kept", region.va);
            if !capture.notes.contains(&note) {
                capture.notes.push(note);
            }
        } else {
            kept.push(i);
        }
    }
    kept.into_iter().map(|index| capture.placed(index)).collect()
}
