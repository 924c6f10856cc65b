// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism annotate` of TLB misses: the instructions of a function that missed, each with its misses, and its source.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use kprism_debuginfo::source::{Frame, Source};
use kprism_image::insn::Mode;
use kprism_image::symbols::{FunctionId, Symbols};
use kprism_profile::units::{grouped, percent, printable};
use kprism_report::Style;
use kprism_script::disasm::{Disassembler, Syntax};
use kprism_store::Run;
use object::{Object, ObjectSegment};
use serde_json::{Value, json};

use super::annotate::{Args, choose, several};
use super::report::print_json;
use super::tlb;
use crate::exit::Outcome;
use kprism_session::Progress;
use kprism_session::flow;

/// The longest instruction.
const LONGEST: usize = 15;

struct Line {
    offset: u64,
    misses: u64,
    /// Of its own fetch and of data; empty if its file is not there.
    text: String,
    frames: Vec<Frame>,
}

/// Prints it.
pub fn run(
    args: &Args,
    run: &Run,
    style: Style,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    progress.step("reading the misses");
    let mut loaded = tlb::Loaded::new(run)?;
    let profile = loaded.profile()?;
    let root = run.root();
    let names = flow::read_if_there(&run.kallsyms())?;
    let symbols = Symbols::load(&names, &loaded.records, Some(&root))?;
    progress.clear();
    for note in &loaded.notes {
        progress.say(&format!("kprism: note: {note}"));
    }
    let chosen = choose(&args.func, &symbols)?;
    // By function and distance from its entry.
    let mut missed: BTreeMap<u32, BTreeMap<u64, u64>> = BTreeMap::new();
    for (&(space, ip), site) in &profile.sites {
        let Some(at) = symbols.locate(space, ip, site.ns) else { continue };
        if chosen[at.func.0 as usize] && site.misses[0] > 0 {
            *missed.entry(at.func.0).or_default().entry(ip.wrapping_sub(at.entry)).or_default() +=
                site.misses[0];
        }
    }
    let sum = |sites: &BTreeMap<u64, u64>| sites.values().sum::<u64>();
    let (func, sites) = match missed.len() {
        0 => {
            progress.say(&format!("no instruction of {} missed", args.func));
            return Ok(Outcome::NothingMatched);
        }
        1 => missed.pop_first().unwrap_or_default(),
        _ => {
            let sums = missed.iter().map(|(&func, sites)| (func, sum(sites))).collect();
            return several(args, &symbols, &sums, "misses", out);
        }
    };
    let function = symbols.function(FunctionId(func));
    let file = root.join(function.module.trim_start_matches('/'));
    let mut source = match function.kernel {
        true => None,
        false => Source::of_file(&file, &args.cover.debug.files().folders()).unwrap_or_else(|reason| {
            progress.say(&format!("kprism: note: no source lines: {reason}"));
            None
        }),
    };
    let code = if function.kernel { None } else { std::fs::read(&file).ok() };
    let mut disassembler = Disassembler::new(Syntax::from(args.syntax));
    let lines: Vec<Line> = sites
        .iter()
        .map(|(&offset, &misses)| {
            let address = function.start.wrapping_add(offset);
            let bytes = code.as_deref().and_then(|file| bytes_at(file, address)).unwrap_or_default();
            let text = if bytes.is_empty() {
                String::new()
            } else {
                disassembler.format(&bytes, address, Mode::Bits64).0.to_owned()
            };
            let frames = source.as_ref().map(|s| s.frames(address)).unwrap_or_default();
            Line { offset, misses, text, frames }
        })
        .collect();
    let (misses, all) = (sum(&sites), profile.all()[0]);
    let geometries = loaded.geometries()?;
    let of = match geometries.first() {
        Some(geometry) => geometry.name.clone(),
        None if loaded.counts["method"] == "sampled" => "sampled".into(),
        None => "off the bus".into(),
    };
    if args.json {
        let value = json!({"function": function.name, "module": function.module, "start": format!("{:#x}", function.start),
            "misses": misses, "misses_of_all": all, "of": of, "lines": lines.iter().map(to_json).collect::<Vec<_>>(),
            "source_lines": by_source(&lines).iter().map(|(misses, file, line)| {
                json!({"misses": misses, "file": file, "line": line})
            }).collect::<Vec<_>>()});
        print_json(&value, out)?;
        return Ok(Outcome::Done);
    }
    writeln!(
        out,
        "{} {} at {:x}\n{} misses ({of}), {:.2}% of {}\n",
        style.bold(&printable(&function.name)),
        printable(&function.module),
        function.start,
        grouped(misses),
        percent(misses, all),
        grouped(all)
    )?;
    let by_source = by_source(&lines);
    if !by_source.is_empty() {
        writeln!(out, "source lines")?;
    }
    for (of_line, file, line) in &by_source {
        let share = percent(*of_line, misses);
        let text = source.as_mut().and_then(|s| s.text(file, *line)).map(|t| format!("  {}", printable(t)));
        let place = format!("{}:{line}{}", printable(file), text.unwrap_or_default());
        writeln!(out, "{}", style.heat(share, &format!("{:>13} {share:6.2}%  {place}", grouped(*of_line))))?;
    }
    writeln!(out, "{}", style.bold("\n       misses   share    offset  instruction"))?;
    let mut before = None;
    for line in &lines {
        if let Some(frame) = line.frames.first().filter(|f| before != Some((&f.file, f.line))) {
            writeln!(out, "{}", style.dim(&format!("{:>33}{}:{}", "", printable(&frame.file), frame.line)))?;
            before = Some((&frame.file, frame.line));
        }
        let share = percent(line.misses, misses);
        let amounts = format!("{:>13} {share:6.2}%", grouped(line.misses));
        let offset = format!("+{:#x}", line.offset);
        writeln!(out, "{} {offset:>9}  {}", style.heat(share, &amounts), line.text)?;
    }
    Ok(Outcome::Done)
}

fn to_json(line: &Line) -> Value {
    let frame = |f: &Frame| json!({"function": f.function, "file": f.file, "line": f.line});
    json!({"offset": line.offset, "misses": line.misses, "insn": line.text,
        "source": line.frames.iter().map(frame).collect::<Vec<_>>()})
}

/// Misses of each line of source, most first.
fn by_source(lines: &[Line]) -> Vec<(u64, String, u32)> {
    let mut sums: HashMap<(&str, u32), u64> = HashMap::new();
    for line in lines {
        if let Some(frame) = line.frames.first() {
            *sums.entry((&frame.file, frame.line)).or_default() += line.misses;
        }
    }
    let mut all: Vec<_> = sums.into_iter().map(|((file, line), n)| (n, file.to_owned(), line)).collect();
    all.sort_by(|a, b| (b.0, &a.1, a.2).cmp(&(a.0, &b.1, b.2)));
    all
}

/// What an ELF file holds at a link-time address.
fn bytes_at(file: &[u8], address: u64) -> Option<Vec<u8>> {
    let elf = object::File::parse(file).ok()?;
    let segment = elf.segments().find(|s| (s.address()..s.address() + s.size()).contains(&address))?;
    let data = segment.data().ok()?.get((address - segment.address()) as usize..)?;
    Some(data[..data.len().min(LONGEST)].to_vec())
}

/// Whether a run has misses and no flow of instructions.
pub fn is_all(run: &Run) -> bool {
    run.tlb_misses(0).is_file() && !Path::new(&run.streams().join("cpu0.pt")).is_file()
}
