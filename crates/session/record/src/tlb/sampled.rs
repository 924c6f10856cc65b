// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sampled TLB misses: perf.data becomes a run's `streams/tlb/`, sideband and symbols.
//!
//! In: what [`kprism_import::perfdata::mem`] reads. Out: a stream of misses, each with what it stands for; no geometry, as
//! a processor found them. Every process is an address space of its own, numbered by it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_debuginfo::separate;
use kprism_image::BuildId;
use kprism_image::symbols::kallsyms::{self, KallsymsError};
use kprism_image::symbols::under_root;
use kprism_import::perfdata::{Files, mem};
use kprism_store::{Instrument, Kernel, Manifest, OptionKey, Run, RunKind};
use kprism_tlb::stream::{Event, Miss, Writer};
use kprism_tlb::{Access, PageSize};
use serde_json::json;

use kprism_session::date;

/// Makes a run of a perf.data, file or folder. Files of programs are looked for under `root`.
pub fn import(path: &Path, root: &Path, kallsyms: Option<&Path>, output: &Path) -> Result<Run> {
    let samples = mem::read(&Files::open(path)?);
    let events = || {
        let event = |(name, (all, _)): (&String, &(u64, u64))| format!("{name} ({all})");
        samples.events.iter().map(event).collect::<Vec<_>>().join(", ")
    };
    if samples.misses.is_empty() && samples.nameless > 0 {
        bail!(
            "{}: it has several events, and {} samples without an id of one of them: whose they are cannot be told. Record \
             one event alone, or with a perf that gives samples ids",
            path.display(),
            samples.nameless
        );
    }
    if samples.misses.is_empty() {
        let damage = match samples.notes.as_slice() {
            [] => String::new(),
            notes => format!(" ({})", notes.join("; ")),
        };
        bail!(
            "{}: none of its samples is a TLB miss with an address{damage}; its events, with their samples: {}. What it holds is shown by perf mem \
             report -i {0} and perf script -i {0}. TLB misses are recorded with `perf record -d -e \
             mem_inst_retired.stlb_miss_loads:P,mem_inst_retired.stlb_miss_stores:P` (Intel), or `perf record -d -R -e \
             ibs_op//` (AMD)",
            path.display(),
            if samples.events.is_empty() { "none".into() } else { events() }
        );
    }
    let run = Run::create(output)?;
    let begin = samples.misses.first().map_or(0, |miss| miss.ns);
    let path_of = run.tlb_misses(0);
    fs::create_dir_all(path_of.parent().unwrap_or(&path_of))?;
    fs::write(&path_of, stream(&samples.misses, begin)).with_context(|| path_of.display().to_string())?;
    fs::write(run.sideband(), sideband(&samples, begin))?;
    let account = json!({"vcpus": [{"cpu": 0, "instructions": null}], "clock": null, "stopped": null});
    fs::write(run.counts(), serde_json::to_vec_pretty(&account)?)?;
    let (sum, squares) = samples.misses.iter().fold((0.0, 0.0), |(sum, squares), miss| {
        let period = miss.period as f64;
        (sum + period, squares + period * period)
    });
    let mut notes = samples.notes.clone();
    let names = kallsyms.and_then(|path| match fs::read(path) {
        Ok(text) if matches!(kallsyms::parse(&text), Err(KallsymsError::Hidden)) => {
            notes.push(format!(
                "functions of the kernel have no names: {} was read without the right to see addresses (as root, or with \
                 kernel.kptr_restrict=0)",
                path.display()
            ));
            None
        }
        Ok(text) => Some(text),
        Err(error) => {
            notes.push(format!("functions of the kernel have no names: {}: {error}", path.display()));
            None
        }
    });
    let of_events: Vec<_> = samples
        .events
        .iter()
        .map(|(name, (all, misses))| {
            json!({"event": name, "samples": all, "misses": misses, "counted_by": samples.same.get(name)})
        })
        .collect();
    notes.extend(copies(&run, &samples, root)?);
    let account = json!({"method": "sampled", "samples": samples.misses.len(), "period": squares / sum,
        "events": of_events, "lost": samples.lost, "without_address": samples.nowhere, "of_no_known_event": samples.nameless,
        "cut_short": samples.short, "notes": notes, "vcpus": []});
    fs::write(run.tlb_counts(), serde_json::to_vec_pretty(&account)?)?;
    if let Some(text) = names {
        fs::create_dir_all(run.symbols())?;
        fs::write(run.kallsyms(), text)?;
    }
    let mut manifest = Manifest::new(RunKind::Import, 1);
    manifest.created = date::now();
    manifest.command.clone_from(&samples.command);
    manifest.clock.name = "perf".into();
    if !samples.release.is_empty() {
        manifest.kernel =
            Some(Kernel { release: samples.release.clone(), build_id: String::new(), ..Kernel::default() });
    }
    manifest.instruments = vec![Instrument::Tlb];
    manifest.set(OptionKey::Method, "sampled");
    manifest.set(OptionKey::Source, path.display().to_string());
    run.write_manifest(&manifest)?;
    Ok(run)
}

fn space(pid: u32) -> u64 {
    u64::from(pid) << 12
}

fn stream(misses: &[mem::Miss], begin: u64) -> Vec<u8> {
    let mut writer = Writer::new(&[]);
    let (mut task, mut weight) = (None, 1);
    for m in misses {
        if task != Some((m.tid, m.pid)) {
            task = Some((m.tid, m.pid));
            writer.event(&Event::Space(space(m.pid)));
            writer.event(&Event::Task { pid: m.tid, tgid: m.pid });
        }
        if weight != m.period {
            weight = m.period;
            writer.event(&Event::Weight(weight));
        }
        let size = PageSize::ALL.into_iter().find(|size| Some(size.bytes()) == m.page);
        writer.event(&Event::Miss(Miss {
            ns: m.ns - begin,
            va: m.va,
            ip: m.ip,
            access: if m.access == mem::Access::Store { Access::Store } else { Access::Load },
            size: size.unwrap_or(PageSize::K4),
            first: 1,
            last: 1,
        }));
    }
    writer.bytes
}

fn sideband(samples: &mem::Samples, begin: u64) -> String {
    let mut text = String::new();
    for (ns, pid, tgid, comm) in &samples.names {
        let t = ns.saturating_sub(begin);
        text +=
            &format!("{}\n", json!({"k": "comm", "t": t, "cpu": 0, "pid": pid, "tgid": tgid, "comm": comm}));
    }
    for m in &samples.maps {
        let line = json!({"k": "mmap", "t": m.ns.saturating_sub(begin), "cpu": 0, "pid": m.pid, "tgid": m.pid,
            "asid": space(m.pid), "start": m.start, "end": m.end, "pgoff": m.pgoff, "exec": m.exec, "path": m.path});
        text += &format!("{line}\n");
    }
    text
}

/// Copies the mapped files into the run, for names. Returns why some are not there: their functions have no names.
fn copies(run: &Run, samples: &mem::Samples, root: &Path) -> Result<Vec<String>> {
    let paths: BTreeSet<&str> =
        samples.maps.iter().map(|m| m.path.as_str()).filter(|path| path.starts_with('/')).collect();
    let (folder, mut missing, mut others) = (run.root(), Vec::new(), Vec::new());
    let (debug, mut not_kept) = (separate::folders([root]), Vec::new());
    for path in paths {
        // A path of a recording from elsewhere.
        let Some((from, to)) = under_root(root, path).zip(under_root(&folder, path)) else { continue };
        let bytes = match fs::metadata(&from) {
            // Devices that a program mapped.
            Ok(meta) if !meta.is_file() => continue,
            Ok(_) => fs::read(&from).ok(),
            Err(_) => None,
        };
        let Some(bytes) = bytes else {
            missing.push(path);
            continue;
        };
        // Data that a program mapped has no functions.
        let Ok(elf) = object::File::parse(bytes.as_slice()) else { continue };
        let recorded = samples.build_ids.iter().find(|(name, _)| name == path).map(|(_, id)| id);
        let own = BuildId::of_object(&elf);
        if recorded.is_some_and(|recorded| own.is_some_and(|own| own != *recorded)) {
            others.push(path);
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(&to))?;
        fs::write(&to, &bytes).with_context(|| to.display().to_string())?;
        if let Err((file, why)) = separate::keep(&from, Path::new(path), &debug, &folder) {
            not_kept.push(format!("{}: not kept: {why}", file.display()));
        }
    }
    let note = |paths: &[&str], why: &str| {
        let more = if paths.len() > 1 { " …" } else { "" };
        paths.first().map(|first| format!("{} mapped files {why}: {first}{more}", paths.len()))
    };
    let missing = note(&missing, "could not be read, and functions in them have no names");
    let others =
        note(&others, "have another build id than the recorded ones, and functions in them have no names");
    Ok(missing.into_iter().chain(others).chain(not_kept).collect())
}
