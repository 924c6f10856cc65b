// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes a capture in the form of a recorded run.

use std::collections::HashMap;
use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Component, Path, PathBuf};

use kprism_debuginfo::separate;
use kprism_image::maps::{self, FilePart};
use kprism_image::symbols::under_root;
use serde_json::json;

use crate::{Capture, ImportError, KernelName, Module, Placed, SwitchAt, Switched, Task};

/// Fragments of the dictionary carry a 16-bit length.
const FRAGMENT: usize = 1 << 15;

/// Writes `cpuN.pt`, `cpuN.map`, `code.dict`, `code.files`, `sideband.jsonl` and `counts.json` into `streams`, copies the
/// mapped ELF files below `symbols/root` under their paths on the traced machine, and puts the kernel's symbols beside
/// them. Both folders are made if missing. Code of a copied file is named by `code.files`, other code is in `code.dict`.
///
/// # Errors
/// [`ImportError::Io`] with the file that could not be written.
pub fn write(capture: &Capture, streams: &Path, symbols: &Path) -> Result<(), ImportError> {
    make_dir(streams)?;
    let copies = copy_modules(&capture.modules, &symbols.join("root"))?;
    let kept = write_code(capture, &copies, streams)?;
    for (cpu, stream) in capture.streams.iter().enumerate() {
        let pt = streams.join(format!("cpu{cpu}.pt"));
        if !stream.pt.move_to(&pt) {
            fs::write(&pt, &stream.pt[..]).map_err(at(&pt))?;
        }
        write_map(&streams.join(format!("cpu{cpu}.map")), &stream.regions, &kept)?;
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
    Ok(())
}

/// The place of a region's code in the run folder.
enum Kept {
    /// Number of a line of `code.files`.
    File(u32),
    /// Fragments of `code.dict`.
    Fragments(Vec<Fragment>),
}

/// A fragment and its offset in its region.
struct Fragment {
    id: u32,
    at: u64,
}

fn write_code(
    capture: &Capture,
    copies: &HashMap<&Path, &str>,
    streams: &Path,
) -> Result<Vec<Kept>, ImportError> {
    let path = &streams.join("code.dict");
    let mut out = BufWriter::new(fs::File::create(path).map_err(at(path))?);
    let mut all = Vec::new();
    let (mut id, mut files) = (0u32, Vec::new());
    out.write_all(b"KPDICT01").map_err(at(path))?;
    for region in &capture.regions {
        let copied =
            region.file.as_ref().and_then(|(file, offset)| Some((copies.get(file.as_path())?, *offset)));
        if let Some((path, offset)) = copied {
            all.push(Kept::File(files.len() as u32));
            files.push(FilePart { path: (*path).to_owned(), offset, len: region.bytes.len() as u64 });
            continue;
        }
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
        all.push(Kept::Fragments(fragments));
    }
    out.flush().map_err(at(path))?;
    if !files.is_empty() {
        let path = &streams.join("code.files");
        let lines: Vec<String> = files.iter().map(|part| format!("{}\n", json!(part))).collect();
        fs::write(path, lines.concat()).map_err(at(path))?;
    }
    Ok(all)
}

fn write_map(path: &Path, regions: &[Placed], kept: &[Kept]) -> Result<(), ImportError> {
    let mut out = b"KPMAP001".to_vec();
    let mut add = |placed: &Placed, id: u32, at: u64, flags: u32| {
        let flags = flags | if placed.replaces { maps::CONFLICT } else { 0 };
        let id = u64::from(id) | u64::from(flags) << 32;
        for word in [placed.offset, placed.asid, placed.va.wrapping_add(at), id] {
            out.extend_from_slice(&word.to_le_bytes());
        }
    };
    for placed in regions {
        if placed.gone > 0 {
            maps::gone_records(placed.gone).for_each(|(at, id, flags)| add(placed, id, at, flags));
            continue;
        }
        match &kept[placed.region] {
            Kept::File(id) => add(placed, *id, 0, maps::FILE),
            Kept::Fragments(all) => all.iter().for_each(|fragment| add(placed, fragment.id, fragment.at, 0)),
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
    for KernelName { t, start, end, gone, name, module } in &capture.kernel_names {
        let line = json!({
            "k": "ksymbol", "t": t, "cpu": 0, "start": start, "end": end, "gone": gone, "name": name, "module": module,
        });
        add(*t, line);
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

/// Copies the files of the modules. Returns the path on the traced machine under which each copied file is kept: of two
/// files with one path, the first is.
fn copy_modules<'a>(modules: &'a [Module], root: &Path) -> Result<HashMap<&'a Path, &'a str>, ImportError> {
    let mut copies = HashMap::new();
    for module in modules {
        let Some(file) = module.file.as_deref() else { continue };
        let Some(to) = below(root, &module.path).filter(|to| !to.exists()) else { continue };
        make_dir(to.parent().unwrap_or(root))?;
        fs::copy(file, &to).map_err(at(file))?;
        // Without it, the run is as whole as on a machine that has none.
        let _ = separate::keep(file, Path::new(&module.path), &debug_folders(file, &module.path), root);
        if under_root(root, &module.path) == Some(to) {
            copies.entry(file).or_insert(&*module.path);
        }
    }
    Ok(copies)
}

/// Folders with debug files of the machine whose file at `path` is `file`: below the folder with its files, if `file` is in one, and this
/// machine's.
fn debug_folders(file: &Path, path: &str) -> Vec<PathBuf> {
    let inside = path.trim_start_matches('/');
    let root = file.ancestors().nth(Path::new(inside).components().count());
    separate::folders(root.filter(|root| root.join(inside) == file))
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

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_debuginfo::separate::GLOBAL;

    #[test]
    fn debug_files_are_looked_for_beside_the_machines_other_files() {
        let folders = |file: &str| debug_folders(Path::new(file), "/usr/lib/a.so");
        assert_eq!(folders("/sym/usr/lib/a.so"), [Path::new("/sym/usr/lib/debug"), Path::new(GLOBAL)]);
        for elsewhere in ["/home/me/.debug/usr/lib/a.so/1f/elf", "/a.so", "a.so"] {
            assert_eq!(folders(elsewhere), [Path::new(GLOBAL)], "{elsewhere}");
        }
    }
}
