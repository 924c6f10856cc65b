// SPDX-License-Identifier: MIT OR Apache-2.0
//! Annotates a function: each instruction with its count, its share, its branches, and its source.

mod listing;

use std::collections::BTreeMap;

use kprism_flow::replay::count::{Counts, Site, Target};
use kprism_image::insn::Kind;
use kprism_image::is_kernel;
use kprism_image::symbols::{FunctionId, Symbols};
use kprism_profile::units::{count, duration, grouped, offset_text, percent, printable};
use kprism_report::Style;
use serde_json::{Value, json};

pub use listing::{Places, hottest, with_sources};

use crate::disasm::{Disassembler, Refers, Syntax};
use kprism_debuginfo::source::{Frame, Source};

/// Maximum of an indirect branch's targets that are shown.
const MAX_TARGETS: usize = 8;

/// Maximum of blocks in the summary.
const MAX_BLOCKS: usize = 5;

/// One line: an instruction and its data.
struct Line<'c> {
    site: &'c Site,
    text: String,
    /// The target of its call or jump, as text.
    refers: Option<String>,
    frames: Vec<Frame>,
    /// Number of its version, from 1; 0 if there is only one.
    version: usize,
}

/// An annotated function, ready for output.
pub struct Annotation<'c> {
    name: String,
    module: String,
    start: u64,
    counts: &'c Counts,
    lines: Vec<Line<'c>>,
    /// Sums over the lines.
    insns: u64,
    ns: u64,
    entered: u64,
}

/// A straight piece of code that ran as a whole.
struct Block {
    first: u64,
    last: u64,
    count: u64,
    insns: u64,
    ns: u64,
}

impl<'c> Annotation<'c> {
    /// Annotates function `func`, whose instructions are in `counts`.
    pub fn new(
        func: u32,
        counts: &'c Counts,
        symbols: &Symbols,
        source: Option<&Source>,
        syntax: Syntax,
    ) -> Self {
        let function = symbols.function(FunctionId(func));
        let mut disassembler = Disassembler::new(syntax);
        let mut sites: Vec<&Site> = counts.sites.iter().filter(|s| s.func == func).collect();
        // A part that was moved away, such as `.cold`, may stand before the function.
        sites.sort_by_key(|site| site.offset.cast_signed());
        let mut lines: Vec<Line<'c>> = Vec::with_capacity(sites.len());
        for (i, &site) in sites.iter().enumerate() {
            let (text, refers) = disassembler.format(&site.bytes, site.ip, site.mode);
            let text = text.to_owned();
            let refers = match refers {
                Some(Refers::Branch(to)) => Some(place(symbols, site, function.start, to)),
                Some(Refers::Memory(address)) => Some(format!("# {address:x}")),
                None => None,
            };
            let frames =
                source.map(|s| s.frames(function.start.wrapping_add(site.offset))).unwrap_or_default();
            let same = |other: Option<&&Site>| other.is_some_and(|o| o.offset == site.offset);
            let version = match lines.last() {
                Some(last) if same(i.checked_sub(1).map(|i| &sites[i])) => last.version + 1,
                _ => usize::from(same(sites.get(i + 1))),
            };
            lines.push(Line { site, text, refers, frames, version });
        }
        let sum = |f: fn(&Site) -> u64| sites.iter().map(|s| f(s)).sum();
        let entered = sites.iter().filter(|s| s.offset == 0).map(|s| s.count).sum();
        Self {
            name: printable(&function.name),
            module: printable(&function.module),
            start: function.start,
            counts,
            lines,
            insns: sum(|s| s.count),
            ns: sum(|s| s.ns),
            entered,
        }
    }

    /// Pieces of code that ran as a whole, those with the most instructions first.
    fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = false;
        for line in &self.lines {
            let site = line.site;
            let end = site.offset.wrapping_add(site.bytes.len() as u64);
            match blocks.last_mut() {
                Some(block) if open && block.count == site.count && block.last == site.offset => {
                    (block.last, block.insns, block.ns) = (end, block.insns + site.count, block.ns + site.ns);
                }
                _ => blocks.push(Block {
                    first: site.offset,
                    last: end,
                    count: site.count,
                    insns: site.count,
                    ns: site.ns,
                }),
            }
            open = matches!(site.kind, Kind::Call { .. } | Kind::IndirectCall) || site.kind.falls_through();
        }
        blocks.sort_by_key(|b| (std::cmp::Reverse(b.insns), b.first));
        blocks.truncate(MAX_BLOCKS);
        blocks
    }

    /// Formats the annotation as text.
    pub fn to_text(&self, symbols: &Symbols, mut source: Option<&mut Source>, style: Style) -> String {
        let mut out = format!(
            "{} {} at {:x}\nentered {}; {} instructions, {:.2}% of {}; {}, {:.2}% of {}\n",
            style.bold(&self.name),
            self.module,
            self.start,
            many(self.entered, "time"),
            grouped(self.insns),
            percent(self.insns, self.counts.insns),
            count(self.counts.insns),
            duration(self.ns),
            percent(self.ns, self.counts.ns),
            duration(self.counts.ns),
        );
        let patched = self.lines.iter().filter(|l| l.version > 1).count();
        if patched > 0 {
            let patched = many(patched as u64, "instruction");
            out += &format!("its code changed while it ran: {patched} replaced, marked v1, v2, …\n");
        }
        out += "\nhot blocks\n";
        for block in self.blocks() {
            let share = percent(block.insns, self.insns);
            let line = format!(
                "{share:6.2}%  {}..{} ran {}, {}",
                offset_text(block.first),
                offset_text(block.last).trim_start_matches('+'),
                many(block.count, "time"),
                duration(block.ns)
            );
            out += &format!("{}\n", style.heat(share, &line));
        }
        out += &style.bold("\n       count   insns    time    offset\n");
        let mut before: Option<&Line<'_>> = None;
        for line in &self.lines {
            let site = line.site;
            let gap = before.map_or(0, |before| self.gap(before.site, site, symbols));
            if gap > 0 {
                out += &style.dim(&format!("{:>37} … {} that did not run\n", "", many(gap, "byte")));
            }
            if before.is_none_or(|b| b.frames != line.frames) {
                out += &source_lines(&line.frames, source.as_deref_mut(), style);
            }
            out += &self.text_line(line, symbols, style);
            before = Some(line);
        }
        out
    }

    /// Bytes of the function between two of its instructions that ran. Between its parts there are other functions.
    fn gap(&self, before: &Site, next: &Site, symbols: &Symbols) -> u64 {
        let from = before.offset.wrapping_add(before.bytes.len() as u64);
        let gap = next.offset.wrapping_sub(from).cast_signed();
        let Ok(gap) = u64::try_from(gap) else { return 0 };
        let is_own = |offset: u64| {
            let at = match is_kernel(next.ip) {
                true => {
                    let entry = next.ip.wrapping_sub(next.offset);
                    symbols.locate_from(FunctionId(next.func), entry.wrapping_add(offset))
                }
                false => symbols.locate_in_module(FunctionId(next.func), self.start.wrapping_add(offset)),
            };
            at.is_some_and(|at| at.func.0 == next.func)
        };
        let after = (0..gap).take_while(|at| is_own(from.wrapping_add(*at))).count() as u64;
        let to_next = (1..=gap - after).take_while(|at| is_own(next.offset.wrapping_sub(*at))).count();
        after + to_next as u64
    }

    fn text_line(&self, line: &Line<'_>, symbols: &Symbols, style: Style) -> String {
        let site = line.site;
        let share = percent(site.count, self.insns);
        let amounts = format!("{:>12} {share:6.2}% {:6.2}%", grouped(site.count), percent(site.ns, self.ns));
        let version = if line.version > 0 { format!("v{} ", line.version) } else { String::new() };
        let offset = offset_text(site.offset);
        let mut text = format!("{} {offset:>9}  {version}{}", style.heat(share, &amounts), line.text);
        if let Some(refers) = &line.refers {
            text += &format!("  {}", style.dim(refers));
        }
        if let Kind::CondJump { .. } = site.kind {
            text += &style.bold(&format!("  taken {:.2}%", percent(site.taken, site.count)));
        }
        if line.version > 0 {
            let seconds = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
            let (first, last) = (seconds(site.first_ns), seconds(site.last_ns));
            text += &style.dim(&format!("  ran {first}–{last}"));
        }
        text.push('\n');
        for target in site.targets.iter().take(MAX_TARGETS) {
            text += &format!(
                "{:>12} {:6.2}% {:>18}→ {}\n",
                grouped(target.count),
                percent(target.count, site.count),
                "",
                target_name(symbols, target)
            );
        }
        if let Some(more) = site.targets.len().checked_sub(MAX_TARGETS + 1) {
            text += &format!("{:>39} … {} more targets\n", "", more + 1);
        }
        text
    }

    /// Formats the annotation as JSON.
    pub fn to_json(&self, symbols: &Symbols) -> Value {
        let lines: Vec<Value> = self
            .lines
            .iter()
            .map(|line| {
                let site = line.site;
                let bytes: String = site.bytes.iter().map(|b| format!("{b:02x}")).collect();
                let mut value = json!({
                    "offset": site.offset.cast_signed(),
                    "ip": format!("{:#x}", site.ip),
                    "bytes": bytes,
                    "insn": line.text,
                    "count": site.count,
                    "ns": site.ns,
                    "first_ns": site.first_ns,
                    "last_ns": site.last_ns,
                });
                if let Kind::CondJump { .. } = site.kind {
                    value["taken"] = site.taken.into();
                }
                if let Some(refers) = &line.refers {
                    value["refers"] = refers.trim_start_matches("# ").into();
                }
                if line.version > 0 {
                    value["version"] = line.version.into();
                }
                if !site.targets.is_empty() {
                    let target =
                        |t: &Target| json!({"to": target_name(symbols, t), "ip": format!("{:#x}", t.ip), "count": t.count});
                    value["targets"] = site.targets.iter().map(target).collect();
                }
                if !line.frames.is_empty() {
                    let frame = |f: &Frame| json!({"function": f.function, "file": f.file, "line": f.line});
                    value["source"] = line.frames.iter().map(frame).collect();
                }
                value
            })
            .collect();
        json!({
            "function": self.name,
            "module": self.module,
            "start": format!("{:#x}", self.start),
            "entered": self.entered,
            "instructions": self.insns,
            "ns": self.ns,
            "instructions_of_all": self.counts.insns,
            "ns_of_all": self.counts.ns,
            "blocks": self.blocks().iter().map(|b| json!({
                "from": b.first, "to": b.last, "count": b.count, "instructions": b.insns, "ns": b.ns,
            })).collect::<Vec<_>>(),
            "lines": lines,
        })
    }
}

/// The functions that a name could mean, as text. `name` is the name, `amounts` how many `what` (instructions, misses)
/// each function has.
pub fn several(name: &str, symbols: &Symbols, amounts: &BTreeMap<u32, u64>, what: &str) -> String {
    let mut out = format!("{name} is several functions; choose one by its address or as NAME@MODULE:\n");
    let mut rows: Vec<_> = amounts.iter().collect();
    rows.sort_by_key(|&(id, amount)| (std::cmp::Reverse(*amount), *id));
    for (&id, &amount) in rows {
        let f = symbols.function(FunctionId(id));
        let (name, module) = (printable(&f.name), printable(&f.module));
        let (amount, what) = (grouped(amount), what.replace("instructions", "insns"));
        out += &format!("{amount:>15} {what}  {:#018x}  {name} {module}\n", f.start);
    }
    out
}

/// The same as JSON.
pub fn several_json(symbols: &Symbols, amounts: &BTreeMap<u32, u64>, what: &str) -> Value {
    let rows = amounts.iter().map(|(&id, amount)| {
        let f = symbols.function(FunctionId(id));
        json!({"function": f.name, "module": f.module, "start": format!("{:#x}", f.start), what: amount})
    });
    json!({ "several": rows.collect::<Vec<_>>() })
}

/// A number with its noun, in the plural if needed.
fn many(n: u64, what: &str) -> String {
    format!("{} {what}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// The target of a direct branch: an offset inside the function, else the function's name.
fn place(symbols: &Symbols, site: &Site, start: u64, to: u64) -> String {
    let entry = site.ip.wrapping_sub(site.offset);
    let offset = to.wrapping_sub(entry);
    let found = match is_kernel(to) {
        true => symbols.locate_from(FunctionId(site.func), to),
        // The address in some process corresponds to the one in the file, moved.
        false => symbols.locate_in_module(FunctionId(site.func), start.wrapping_add(offset)),
    };
    match found {
        Some(at) if at.func.0 == site.func => offset_text(offset),
        Some(at) if at.known => {
            let name = printable(&symbols.function(at.func).name);
            let link = if is_kernel(to) { to } else { start.wrapping_add(offset) };
            match link.wrapping_sub(at.entry) {
                0 => format!("<{name}>"),
                more => format!("<{name}{}>", offset_text(more)),
            }
        }
        _ if is_kernel(to) => "[unknown]".to_owned(),
        _ => offset_text(offset),
    }
}

fn target_name(symbols: &Symbols, target: &Target) -> String {
    let function = symbols.function(FunctionId(target.func));
    let mut name = printable(&function.name);
    if !target.known {
        name = format!("{:#x}", target.ip);
    } else if target.offset != 0 {
        name += &offset_text(target.offset);
    }
    if !function.kernel && !function.module.is_empty() {
        name += &format!(" ({})", printable(&function.module));
    }
    name
}

/// The frames of the following instructions: inlined ones first, each with its source line.
fn source_lines(frames: &[Frame], mut source: Option<&mut Source>, style: Style) -> String {
    let mut out = String::new();
    for (i, frame) in frames.iter().enumerate() {
        let name = frame.function.as_deref().map(printable).unwrap_or_default();
        let inlined = if i + 1 < frames.len() { format!(" {name} (inlined)") } else { String::new() };
        let text = source.as_deref_mut().and_then(|s| s.text(&frame.file, frame.line));
        let text = text.map(|t| format!("  {}", printable(t))).unwrap_or_default();
        let line = format!("{:>29}{}:{}{inlined}{text}", "", printable(&frame.file), frame.line);
        out += &format!("{}\n", style.dim(&line));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use kprism_image::insn::Mode;

    const NAMES: &[u8] = b"\
ffffffff81000000 t foo.cold
ffffffff81000010 t bar
ffffffff81000100 T foo
ffffffff81000120 T next
";

    fn site(func: u32, offset: i64, count: u64) -> Site {
        let start = 0xffff_ffff_8100_0100_u64;
        Site {
            func,
            offset: offset.cast_unsigned(),
            ip: start.wrapping_add_signed(offset),
            bytes: vec![0x90],
            mode: Mode::Bits64,
            kind: Kind::Other,
            count,
            ns: count,
            taken: 0,
            targets: Vec::new(),
            first_ns: 0,
            last_ns: 0,
        }
    }

    #[test]
    fn a_part_before_the_function_has_negative_offsets_and_its_sums() {
        let symbols = Symbols::load(NAMES, &[], None).unwrap();
        let func = symbols.locate(0, 0xffff_ffff_8100_0100, u64::MAX).unwrap().func.0;
        // As a replay sorts them: without a sign.
        let sites = vec![site(func, 0, 3), site(func, 8, 2), site(func, -0x100, 1)];
        let counts = Counts { sites, insns: 6, ns: 6, elsewhere: Vec::new() };
        let annotation = Annotation::new(func, &counts, &symbols, None, Syntax::Att);
        let text = annotation.to_text(&symbols, None, Style::default());
        let places =
            ["-0x100  ", "15 bytes that did not run", "+0x0  ", "7 bytes that did not run", "+0x8  "];
        let found: Vec<Option<usize>> = {
            let table = text.find("offset\n").unwrap();
            places.iter().map(|place| text[table..].find(place)).collect()
        };
        assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{found:?}\n{text}");
        let json = annotation.to_json(&symbols);
        assert_eq!((&json["entered"], &json["instructions"]), (&3.into(), &6.into()));
        assert_eq!(json["lines"][0]["offset"], -0x100);
    }
}
