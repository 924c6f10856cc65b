// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the recordings of simple-pt's `sptcmd`: packets of each CPU in `PREFIX.N`, and `PREFIX.sideband` (PREFIX is
//! mostly `ptout`), lines of text that its `sptsideband.py` writes:
//!
//! ```text
//! meta family 6            model, stepping; nom_freq RATIO; tsc_ratio EAX EBX; mtc_freq MTCFreq+1, 0 for none
//! TIME PID CR3 ADDRESS OFFSET LENGTH<tab>FILE[:FILE WITH THE CODE]
//! ```
//!
//! Lines with a time come from the kernel's trace: OFFSET is decimal, LENGTH hex. Lines at time 0.0 are earlier
//! mappings, from `/proc/PID/maps`: there OFFSET is hex, LENGTH decimal. The first versions wrote no LENGTH.
//!
//! The files are those of the recording machine, which the folder holds once `sptarchive`'s archive is unpacked there.
//! The kernel's code is not among them. TIME is from a different clock than the packets'. So a mapping is assumed to
//! exist from the start, and a later mapping covers an earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use kprism_image::Bytes;
use kprism_profile::units::counted;
use kprism_pt::{Packet, PacketReader};

use crate::elf::{Segment, parse};
use crate::error::{read_file, read_text};
use crate::perf::find_file;
use crate::perfdata::Search;
use crate::perfdata::files::Finder;
use crate::perfdata::kcore;
use crate::{Capture, CpuModel, ImportError, Module, PAGE, Placed, Stream, Task};

/// Extension of `PREFIX.sideband`.
pub(crate) const EXTENSION: &str = "sideband";
/// CPUs without a stream between others are filled in below this number.
const MOST_CPUS: u32 = 1024;
/// Maximum of code read in all, bytes: lines may name ever other parts of a large file.
const MOST_CODE: u64 = 2 << 30;
/// With page table isolation, user code runs with this bit set in CR3.
const ISOLATED: u64 = 0x1000;

/// The sideband files of a folder, sorted by name.
pub(crate) fn sidebands(dir: &Path) -> Vec<PathBuf> {
    let entries =
        std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| entry.ok().map(|e| e.path()));
    let mut found: Vec<_> =
        entries.filter(|p| p.extension().is_some_and(|e| e == EXTENSION) && p.is_file()).collect();
    found.sort();
    found
}

/// A line about a mapping.
#[derive(Debug, Clone, PartialEq)]
struct Mapping {
    time: f64,
    pid: u32,
    cr3: u64,
    start: u64,
    offset: u64,
    /// 0 if the line does not state it.
    len: u64,
    path: String,
    /// The file with the code, if it is a different one.
    code: Option<String>,
}

/// Reads a recording by its sideband file.
pub(crate) fn read(sideband: &Path, search: &Search) -> Result<Capture, ImportError> {
    let mut capture = Capture::default();
    let mut mappings = read_sideband(sideband, search.tsc_hz, &mut capture)?;
    mappings.sort_by(|a, b| a.time.total_cmp(&b.time));
    let pids: BTreeSet<u32> = mappings.iter().map(|m| m.pid).collect();
    capture.tasks = pids.iter().map(|&pid| Task { pid, tgid: pid, ..Task::default() }).collect();

    let dir = sideband.parent().unwrap_or(Path::new("."));
    let mut code = Code { dir, finder: finder(search), known: BTreeMap::new(), total: 0, foreign: false };
    let kernel = kernel_code(search, &mut capture)?;
    let mut in_kernel = false;
    for (cpu, pt) in streams(sideband)? {
        let spaces = address_spaces(&pt);
        in_kernel |= !spaces.is_empty();
        let mut placed = kernel.clone();
        placed.extend(place(&mappings, &spaces, &mut code, &mut capture));
        capture.streams.push(Stream { label: format!("cpu {cpu}"), pt, regions: placed, first: None });
    }
    if code.foreign {
        capture.notes.push(
            "programs and libraries are those of this machine, unchecked: such recordings hold no build ids (unpack \
             sptarchive's archive in the folder, or name the traced machine's root with --symfs)"
                .to_owned(),
        );
    }
    if code.total > MOST_CODE {
        capture.notes.push(format!("more than {MOST_CODE} bytes of code: the rest is not used"));
    }
    if in_kernel && kernel.is_empty() {
        capture.notes.push(
            "the kernel was traced, but its code is not here: name it with --kcore or --vmlinux".to_owned(),
        );
    }
    capture.notes.append(&mut code.finder.notes);
    Ok(capture)
}

fn finder(search: &Search) -> Finder {
    Finder { symfs: search.symfs.clone(), ..Finder::default() }
}

/// `known_hz` is the frequency of the clock, if the user named it.
fn read_sideband(
    path: &Path,
    known_hz: Option<u64>,
    capture: &mut Capture,
) -> Result<Vec<Mapping>, ImportError> {
    const EXPECTED: &str = "`TIME PID CR3 ADDRESS OFFSET LENGTH FILE`, or `meta NAME NUMBER`";
    let text = read_text(path)?;
    let mut mappings = Vec::new();
    let mut meta: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let (mut wrong, mut first_wrong, mut lines) = (0u64, 0, 0u64);
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
        lines += 1;
        let known = match line.strip_prefix("meta ") {
            Some(rest) => parse_meta(rest).map(|(name, values)| drop(meta.insert(name, values))),
            None => parse_mapping(line).map(|mapping| mappings.push(mapping)),
        };
        if known.is_none() {
            first_wrong = if wrong == 0 { number } else { first_wrong };
            wrong += 1;
        }
    }
    if wrong > 0 && wrong == lines {
        return Err(ImportError::format(path, format!("line {first_wrong}"), EXPECTED));
    }
    if wrong > 0 {
        let place = path.display();
        capture.notes.push(format!(
            "{place}: {} left out, first line {first_wrong}: expected {EXPECTED}",
            counted(wrong, "lines")
        ));
    }
    let number = |name: &str, at: usize| meta.get(name).and_then(|v| v.get(at)).copied();
    let small = |name: &str| number(name, 0).and_then(|n| u8::try_from(n).ok());
    let clock = &mut capture.clock;
    clock.nom_ratio = small("nom_freq").unwrap_or(0);
    clock.art_den = number("tsc_ratio", 0).unwrap_or(0);
    clock.art_num = number("tsc_ratio", 1).unwrap_or(0);
    clock.mtc_freq = small("mtc_freq").map_or(0, |n| n.saturating_sub(1).min(15));
    let family = number("family", 0).and_then(|n| u16::try_from(n).ok());
    capture.cpu = family.zip(small("model")).map(|(family, model)| CpuModel {
        family,
        model,
        stepping: small("stepping").unwrap_or(0),
    });
    let crystal = capture.cpu.and_then(crystal_hz).filter(|_| clock.art_den > 0 && clock.art_num > 0);
    clock.tsc_hz = match crystal {
        Some(hz) => hz * u64::from(clock.art_num) / u64::from(clock.art_den),
        None => u64::from(clock.nom_ratio) * BUS_HZ,
    };
    if crystal.is_none() && known_hz.is_none() && clock.tsc_hz > 0 {
        capture.notes.push(format!(
            "the recording does not tell the frequency of its clock: taken to be {} times {} MHz, which is off by up to 0.3 % on \
             processors with another crystal",
            clock.nom_ratio,
            BUS_HZ / 1_000_000
        ));
    }
    Ok(mappings)
}

/// The bus clock that simple-pt assumes, and whose multiple the nominal ratio is (MSR_PLATFORM_INFO, since Nehalem).
const BUS_HZ: u64 = 100_000_000;

/// The crystal whose multiple the TSC is, on processors of which all have one: SDM vol. 3B, 20.7.3, "Determining the Processor Base
/// Frequency". Servers of Skylake have one of two, so theirs is not known (Linux, native_calibrate_tsc).
fn crystal_hz(cpu: CpuModel) -> Option<u64> {
    match (cpu.family, cpu.model) {
        // Skylake and Kaby Lake, clients.
        (6, 0x4e | 0x5e | 0x8e | 0x9e) => Some(24_000_000),
        // Goldmont.
        (6, 0x5c) => Some(19_200_000),
        _ => None,
    }
}

fn parse_meta(rest: &str) -> Option<(&str, Vec<u32>)> {
    let mut words = rest.split_whitespace();
    let name = words.next()?;
    let values = words.map(|w| w.parse().ok()).collect::<Option<Vec<u32>>>()?;
    (!values.is_empty()).then_some((name, values))
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let (numbers, file) = match line.split_once('\t') {
        Some((numbers, file)) => (numbers.split_whitespace().collect::<Vec<_>>(), file.trim()),
        None => {
            // Without a tab, the file's name begins with the first slash.
            let slash = line.find('/')?;
            (line[..slash].split_whitespace().collect(), line[slash..].trim())
        }
    };
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let decimal = |text: &str| text.parse::<u64>().ok();
    let (&[time, pid, cr3, start, offset], len) = numbers.split_first_chunk::<5>()?;
    let time: f64 = time.parse().ok().filter(|t: &f64| t.is_finite())?;
    let len = match *len {
        [] => 0,
        [len] if time == 0.0 => decimal(len).or_else(|| hex(len))?,
        [len] => hex(len)?,
        _ => return None,
    };
    // Whole pages are mapped. This distinguishes the two formats if the time does not.
    let pages = |n: &u64| n.is_multiple_of(4096);
    let offset = match time == 0.0 {
        true => hex(offset)?,
        false => decimal(offset).filter(pages).or_else(|| hex(offset))?,
    };
    let (path, code) = match file.split_once(':') {
        Some((path, code)) => (path, Some(code.to_owned())),
        None => (file, None),
    };
    let path = Some(path).filter(|p| p.starts_with('/'))?.to_owned();
    let cr3 = hex(cr3)? & !0xfff;
    Some(Mapping { time, pid: pid.parse().ok()?, cr3, start: hex(start)?, offset, len, path, code })
}

/// `PREFIX.N` for each CPU, with empty streams for missing ones.
fn streams(sideband: &Path) -> Result<Vec<(u32, Bytes)>, ImportError> {
    let dir = sideband.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = sideband.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    let entries =
        std::fs::read_dir(dir).map_err(|source| ImportError::Io { path: dir.to_owned(), source })?;
    let mut files = BTreeMap::new();
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let digits = name.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix('.'));
        let plain = |d: &&str| d.bytes().all(|b| b.is_ascii_digit()) && (*d == "0" || !d.starts_with('0'));
        if let Some(cpu) = digits.filter(plain).and_then(|d| d.parse::<u32>().ok()) {
            files.insert(cpu, entry.path());
        }
    }
    let Some((&last, _)) = files.last_key_value() else {
        return Err(ImportError::format(dir, "folder", format!("packets in {prefix}.0, {prefix}.1, ...")));
    };
    let cpus: Vec<u32> =
        if last < MOST_CPUS { (0..=last).collect() } else { files.keys().copied().collect() };
    cpus.into_iter()
        .map(|cpu| Ok((cpu, files.get(&cpu).map(|path| read_file(path)).transpose()?.unwrap_or_default())))
        .collect()
}

/// The values of CR3 in a stream. Empty without the kernel in the trace: the processor then does not report CR3.
fn address_spaces(pt: &[u8]) -> BTreeSet<u64> {
    let mut spaces = BTreeSet::new();
    let mut reader = PacketReader::new(pt);
    while reader.resync().is_some() {
        spaces.extend(reader.by_ref().filter_map(|packet| match packet {
            // A virtual machine's are no address spaces of this machine.
            Ok((_, Packet::Pip { cr3, non_root: false })) => Some(cr3 & !0xfff),
            _ => None,
        }));
    }
    spaces
}

/// Code of the mapped files, each part read once.
struct Code<'a> {
    dir: &'a Path,
    finder: Finder,
    known: BTreeMap<(String, u64, u64), Option<(usize, PathBuf)>>,
    total: u64,
    /// True if a file of this machine was used.
    foreign: bool,
}

impl Code<'_> {
    /// The region of a mapping, and the path of the mapped file.
    fn get(&mut self, m: &Mapping, capture: &mut Capture) -> Option<(usize, PathBuf)> {
        let path = m.code.as_ref().unwrap_or(&m.path);
        let key = (path.clone(), m.offset, m.len);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let read = self.read(path, m, capture);
        self.known.insert(key, read.clone());
        read
    }

    fn read(&mut self, path: &str, m: &Mapping, capture: &mut Capture) -> Option<(usize, PathBuf)> {
        let in_folder = find_file(self.dir, path).and_then(|p| Some((read_file(&p).ok()?, p)));
        let (bytes, place): (Bytes, PathBuf) = match in_folder {
            Some(found) => found,
            None => {
                let found = self.finder.find(path, &[])?;
                if !may_be_mapped(&found.place, &found.bytes, m) {
                    capture.notes.push(format!(
                        "{}: not the file that was recorded, of which {:#x} bytes of code were mapped from {:#x} on: not used",
                        found.place.display(),
                        m.len,
                        m.offset
                    ));
                    return None;
                }
                self.foreign |= self.finder.symfs.is_none();
                (found.bytes, found.place)
            }
        };
        let from = usize::try_from(m.offset).unwrap_or(usize::MAX).min(bytes.len());
        let len = if m.len == 0 { usize::MAX } else { usize::try_from(m.len).unwrap_or(usize::MAX) };
        let shown = bytes.slice(from..from.saturating_add(len));
        self.total = self.total.saturating_add(shown.len() as u64);
        if shown.is_empty() || self.total > MOST_CODE {
            return None;
        }
        let region = capture.add_region(m.start, shown).region;
        capture.regions[region].file = Some((place.clone(), from as u64));
        Some((region, place))
    }
}

/// Returns false for a program or library that no loader maps like this: the kernel and ld.so map whole pages of each executable
/// segment. Of the first segment, at offset 0, ld.so maps as much as all segments span.
fn may_be_mapped(place: &Path, bytes: &Bytes, m: &Mapping) -> bool {
    let Ok(elf) = parse(place, bytes) else { return true };
    let fits = |segment: &Segment| {
        let from = segment.offset - segment.offset % PAGE;
        let end = (segment.offset + segment.bytes.len() as u64).next_multiple_of(PAGE);
        from == m.offset && (m.len == 0 || m.len == end - from || from == 0 && m.len >= end)
    };
    elf.code.iter().any(fits)
}

/// Places the mappings in the address spaces of a stream; in any address space if the stream states none.
fn place(
    mappings: &[Mapping],
    spaces: &BTreeSet<u64>,
    code: &mut Code<'_>,
    capture: &mut Capture,
) -> Vec<Placed> {
    let mut placed = Vec::new();
    // Contents by address space: (start, end, region).
    let mut there: BTreeMap<u64, Vec<(u64, u64, usize)>> = BTreeMap::new();
    // With isolation, page tables come in pairs, and the lines have the even ones.
    let isolated = mappings.iter().all(|m| m.cr3 & ISOLATED == 0);
    for m in mappings {
        let own: Vec<u64> = match spaces.is_empty() {
            true => vec![0],
            false => {
                let user = Some(m.cr3 | ISOLATED).filter(|_| isolated);
                [Some(m.cr3), user].into_iter().flatten().filter(|cr3| spaces.contains(cr3)).collect()
            }
        };
        if own.is_empty() {
            continue;
        }
        let Some((region, file)) = code.get(m, capture) else { continue };
        let end = m.start.saturating_add(capture.regions[region].bytes.len() as u64);
        for asid in own {
            let there = there.entry(asid).or_default();
            if there.contains(&(m.start, end, region)) {
                continue;
            }
            let clash = there.iter().any(|t| t.0 < end && m.start < t.1);
            there.retain(|t| t.1 <= m.start || end <= t.0);
            there.push((m.start, end, region));
            placed.push(Placed { region, va: m.start, asid, offset: 0, replaces: clash, gone: 0 });
            let (path, pgoff) = (m.path.clone(), m.offset);
            let file = Some(file.clone());
            capture.add_module(Module { path, file, pid: m.pid, start: m.start, end, pgoff, asid, t: 0 });
        }
    }
    placed
}

/// The kernel's code and symbols, if the user named them.
fn kernel_code(search: &Search, capture: &mut Capture) -> Result<Vec<Placed>, ImportError> {
    let mut regions = Vec::new();
    if let Some(path) = &search.kallsyms {
        capture.kallsyms = read_file(path)?.to_vec();
    }
    if let Some(path) = &search.kcore {
        regions = kcore::code(path, &read_file(path)?, 0)?;
    }
    if let Some(path) = &search.vmlinux {
        let bytes = read_file(path)?;
        if regions.is_empty() {
            capture.notes.push(format!("{}: taken to have run where it was linked", path.display()));
            regions = kcore::code(path, &bytes, 0)?;
        }
        if capture.kallsyms.is_empty() {
            capture.kallsyms = kcore::symbols(&bytes, 0).into_bytes();
        }
    }
    Ok(regions.into_iter().map(|r| capture.add_region(r.va, r.bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine's library of the same name, but of another version, has its code elsewhere.
    #[test]
    fn a_file_whose_code_is_mapped_otherwise_is_another_one() {
        let place = std::env::current_exe().unwrap();
        let bytes = Bytes::open(&place).unwrap();
        let segment = parse(&place, &bytes).unwrap().code.remove(0);
        let from = segment.offset - segment.offset % PAGE;
        let len = (segment.offset + segment.bytes.len() as u64).next_multiple_of(PAGE) - from;
        let mapped = |offset: u64, len: u64| {
            let line = format!("7.5 7 2000 400000 {offset} {len:x}\t/bin/prog");
            may_be_mapped(&place, &bytes, &parse_mapping(&line).unwrap())
        };
        assert!(from > 0 && mapped(from, len));
        assert!(!mapped(from + PAGE, len) && !mapped(from, len + PAGE) && !mapped(from, len - PAGE));
        assert!(may_be_mapped(
            &place,
            &Bytes::from(vec![0x90; 9]),
            &parse_mapping("7.5 7 2000 400000 4096 8\t/x").unwrap()
        ));
    }

    #[test]
    fn both_ways_of_writing_numbers() {
        let traced = parse_mapping("51.000123 77 1f4d2000 7f0000001000 8192 1a000\t/lib/libc.so").unwrap();
        assert_eq!((traced.pid, traced.cr3, traced.start), (77, 0x1f4d_2000, 0x7f00_0000_1000));
        assert_eq!((traced.offset, traced.len, traced.path.as_str()), (0x2000, 0x1a000, "/lib/libc.so"));
        let before = parse_mapping("0.0 1 2000abc 400000 00002000 106496 \t/sbin/init:/x/init.code").unwrap();
        assert_eq!((before.cr3, before.offset, before.len), (0x200_0000, 0x2000, 106_496));
        assert_eq!(before.code.as_deref(), Some("/x/init.code"));
        let hex = parse_mapping("1.5 1 2000 400000 2000 1000\t/a").unwrap();
        assert_eq!(hex.offset, 0x2000, "2000 is no decimal number of whole pages");
        let old = parse_mapping("0.0 1 2000 400000 0 /sbin/in it").unwrap();
        assert_eq!((old.len, old.path.as_str()), (0, "/sbin/in it"));
        for wrong in
            ["", "0.0", "x 1 2 3 4 5\t/a", "0.0 1 2 3 4 5 6\t/a", "0.0 1 2 3 4 5\tvdso", "nan 1 2 3 4 5\t/a"]
        {
            assert_eq!(parse_mapping(wrong), None, "{wrong}");
        }
    }
}
