// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a capture in the form of a recorded run.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use serde_json::json;

use crate::{Capture, ImportError, Module, Placed, SwitchAt, Switched, Task};

/// Fragments of the dictionary carry a 16-bit length.
const FRAGMENT: usize = 1 << 15;

/// Writes `cpuN.pt`, `cpuN.map`, `code.dict`, `sideband.jsonl` and `counts.json` into `streams`, copies the mapped
/// ELF files below `symbols/root` under their paths on the traced machine, and puts the kernel's symbols beside
/// them. Both folders are made if missing.
///
/// # Errors
/// [`ImportError::Io`] with the file that could not be written.
pub fn write(capture: &Capture, streams: &Path, symbols: &Path) -> Result<(), ImportError> {
    make_dir(streams)?;
    let fragments = write_dict(capture, &streams.join("code.dict"))?;
    for (cpu, stream) in capture.streams.iter().enumerate() {
        let pt = streams.join(format!("cpu{cpu}.pt"));
        fs::write(&pt, &stream.pt).map_err(at(&pt))?;
        write_map(&streams.join(format!("cpu{cpu}.map")), &stream.regions, &fragments)?;
    }
    let path = streams.join("sideband.jsonl");
    fs::write(&path, sideband(capture)).map_err(at(&path))?;
    let path = streams.join("counts.json");
    fs::write(&path, format!("{:#}\n", counts(capture))).map_err(at(&path))?;
    for (name, text) in [("kallsyms", &capture.kallsyms), ("modules", &capture.modules_list)] {
        if !text.is_empty() {
            make_dir(symbols)?;
            let path = symbols.join(name);
            fs::write(&path, text).map_err(at(&path))?;
        }
    }
    let root = symbols.join("root");
    capture.modules.iter().try_for_each(|module| copy_module(module, &root))
}

/// A fragment and its offset in its region.
struct Fragment {
    id: u32,
    at: u64,
}

fn write_dict(capture: &Capture, path: &Path) -> Result<Vec<Vec<Fragment>>, ImportError> {
    let mut out = BufWriter::new(fs::File::create(path).map_err(at(path))?);
    let mut all = Vec::new();
    let mut id = 0u32;
    out.write_all(b"KPDICT01").map_err(at(path))?;
    for region in &capture.regions {
        let mut fragments = Vec::new();
        let mut at_byte = 0;
        for bytes in region.bytes.chunks(FRAGMENT) {
            out.write_all(&id.to_le_bytes()).map_err(at(path))?;
            out.write_all(&(bytes.len() as u32).to_le_bytes()).map_err(at(path))?; // length u16, padding u16
            out.write_all(&region.va.wrapping_add(at_byte).to_le_bytes()).map_err(at(path))?;
            out.write_all(bytes).map_err(at(path))?;
            fragments.push(Fragment { id, at: at_byte });
            id += 1;
            at_byte += bytes.len() as u64;
        }
        all.push(fragments);
    }
    out.flush().map_err(at(path))?;
    Ok(all)
}

fn write_map(path: &Path, regions: &[Placed], fragments: &[Vec<Fragment>]) -> Result<(), ImportError> {
    let mut out = b"KPMAP001".to_vec();
    for placed in regions {
        for fragment in &fragments[placed.region] {
            let id = u64::from(fragment.id) | u64::from(placed.replaces) << 32;
            for word in [placed.offset, placed.asid, placed.va.wrapping_add(fragment.at), id] {
                out.extend_from_slice(&word.to_le_bytes());
            }
        }
    }
    fs::write(path, out).map_err(at(path))
}

/// All lines of the sideband in order of time.
fn sideband(capture: &Capture) -> String {
    let mut lines: Vec<(u64, serde_json::Value)> = Vec::new();
    let mut add = |t: u64, line| lines.push((t, line));
    for (cpu, stream) in capture.streams.iter().enumerate() {
        if let Some((pid, t)) = stream.first {
            add(t, json!({"k": "mark", "t": t, "cpu": cpu, "what": "begin", "pid": pid}));
        }
    }
    for Task { pid, tgid, comm, t } in &capture.tasks {
        add(*t, json!({"k": "comm", "t": t, "cpu": 0, "pid": pid, "tgid": tgid, "comm": comm}));
    }
    for m in &capture.modules {
        let line = json!({
            "k": "mmap", "t": m.t, "cpu": 0, "pid": m.pid, "tgid": m.pid, "asid": m.asid, "start": m.start,
            "end": m.end, "pgoff": m.pgoff, "exec": true, "path": m.path,
        });
        add(m.t, line);
    }
    for Switched { t, cpu, at, prev, next } in &capture.switches {
        let mut line = json!({
            "k": "switch", "t": t, "cpu": cpu, "prev_pid": prev.pid, "prev_tgid": prev.tgid,
            "prev_comm": prev.comm, "pid": next.pid, "tgid": next.tgid, "comm": next.comm,
        });
        match *at {
            SwitchAt::Entry(ip) => (line["ip"], line["near"]) = (ip.into(), true.into()),
            SwitchAt::Offset { offset, asid } => {
                line["offset"] = offset.into();
                line["asid"] = asid.into();
            }
        }
        add(*t, line);
    }
    lines.sort_by_key(|(t, _)| *t);
    lines.iter().map(|(_, line)| format!("{line}\n")).collect()
}

fn counts(capture: &Capture) -> serde_json::Value {
    let vcpus: Vec<_> = capture
        .streams
        .iter()
        .enumerate()
        .map(|(cpu, stream)| json!({"cpu": cpu, "label": stream.label}))
        .collect();
    let clock = &capture.clock;
    let perf = clock.perf.map(|perf| {
        let (mult, shift, zero) = perf.parts();
        json!({"mult": mult, "shift": shift, "zero": zero as i64})
    });
    let cpu = capture.cpu.map(
        |c| json!({"vendor": "GenuineIntel", "family": c.family, "model": c.model, "stepping": c.stepping}),
    );
    json!({
        "vcpus": vcpus,
        "clock": {
            "name": match clock.perf {
                _ if !capture.timed => "none",
                Some(_) => "perf",
                None => "tsc",
            },
            "tsc_hz": clock.tsc_hz, "perf": perf, "art_num": clock.art_num, "art_den": clock.art_den,
            "mtc_freq": clock.mtc_freq, "nom_ratio": clock.nom_ratio,
            "cyc_threshold": clock.cyc_threshold,
        },
        "cpu": cpu,
        "filter": capture.filter,
        "notes": capture.notes,
        "stopped": null,
    })
}

fn copy_module(module: &Module, root: &Path) -> Result<(), ImportError> {
    let Some(file) = &module.file else { return Ok(()) };
    let Some(to) = below(root, &module.path).filter(|to| !to.exists()) else { return Ok(()) };
    make_dir(to.parent().unwrap_or(root))?;
    fs::copy(file, &to).map(|_| ()).map_err(at(file))
}

/// A traced machine's path below `root`. It cannot leave `root`.
pub(crate) fn below(root: &Path, path: &str) -> Option<PathBuf> {
    let inside = Path::new(path).components().filter(|c| matches!(c, Component::Normal(_)));
    let place = root.join(inside.collect::<PathBuf>());
    (place != root).then_some(place)
}

fn make_dir(dir: &Path) -> Result<(), ImportError> {
    fs::create_dir_all(dir).map_err(at(dir))
}

fn at(path: &Path) -> impl FnOnce(std::io::Error) -> ImportError + use<> {
    let path = path.to_owned();
    move |source| ImportError::Io { path, source }
}
