// SPDX-License-Identifier: MIT OR Apache-2.0
//! Annotates a function with TLB misses: each instruction that missed, with its misses and its source.

use std::collections::{BTreeMap, HashMap};

use kprism_debuginfo::source::{Frame, Source};
use kprism_image::insn::Mode;
use kprism_image::symbols::Function;
use kprism_profile::units::{grouped, offset_text, percent, printable};
use kprism_report::Style;
use serde_json::{Value, json};

use crate::disasm::{Disassembler, Syntax};

/// An instruction that missed.
struct Line {
    /// Distance from the function's entry, in bytes; in a part that stands before the entry, negative in two's complement.
    offset: u64,
    /// Misses of its own fetch and of data.
    misses: u64,
    /// The instruction; empty if its bytes are not known.
    text: String,
    frames: Vec<Frame>,
}

/// An annotated function, ready for output.
pub struct Annotation<'f> {
    function: &'f Function,
    lines: Vec<Line>,
    misses: u64,
}

impl<'f> Annotation<'f> {
    /// Annotates `function`. `sites` are the misses of instructions by their distance from the entry; `bytes` gives an
    /// instruction's bytes by its address in the function's file, or none.
    pub fn new(
        function: &'f Function,
        sites: &BTreeMap<u64, u64>,
        bytes: &dyn Fn(u64) -> Vec<u8>,
        source: Option<&Source>,
        syntax: Syntax,
    ) -> Self {
        let mut disassembler = Disassembler::new(syntax);
        let lines = sites.iter().map(|(&offset, &misses)| {
            let address = function.start.wrapping_add(offset);
            let bytes = bytes(address);
            let text = if bytes.is_empty() {
                String::new()
            } else {
                disassembler.format(&bytes, address, Mode::Bits64).0.to_owned()
            };
            let frames = source.map(|s| s.frames(address)).unwrap_or_default();
            Line { offset, misses, text, frames }
        });
        let mut lines: Vec<Line> = lines.collect();
        lines.sort_by_key(|line| line.offset.cast_signed());
        Annotation { function, lines, misses: sites.values().sum() }
    }

    /// Formats the annotation as text. `all` is the number of misses of the run, `of` says how they were found.
    pub fn to_text(&self, all: u64, of: &str, mut source: Option<&mut Source>, style: Style) -> String {
        let mut out = format!(
            "{} {} at {:x}\n{} misses ({of}), {:.2}% of {}\n\n",
            style.bold(&printable(&self.function.name)),
            printable(&self.function.module),
            self.function.start,
            grouped(self.misses),
            percent(self.misses, all),
            grouped(all)
        );
        let by_source = self.by_source();
        if !by_source.is_empty() {
            out += "source lines\n";
        }
        for (of_line, file, line) in &by_source {
            let share = percent(*of_line, self.misses);
            let text = source.as_mut().and_then(|s| s.text(file, *line));
            let text = text.map(|t| format!("  {}", printable(t))).unwrap_or_default();
            let place = format!("{}:{line}{text}", printable(file));
            out += &style.heat(share, &format!("{:>13} {share:6.2}%  {place}", grouped(*of_line)));
            out.push('\n');
        }
        out += &style.bold("\n       misses   share    offset  instruction");
        out.push('\n');
        let mut before = None;
        for line in &self.lines {
            if let Some(frame) = line.frames.first().filter(|f| before != Some((&f.file, f.line))) {
                out += &style.dim(&format!("{:>33}{}:{}", "", printable(&frame.file), frame.line));
                out.push('\n');
                before = Some((&frame.file, frame.line));
            }
            let share = percent(line.misses, self.misses);
            let amounts = format!("{:>13} {share:6.2}%", grouped(line.misses));
            let offset = offset_text(line.offset);
            out += &format!("{} {offset:>9}  {}\n", style.heat(share, &amounts), line.text);
        }
        out
    }

    /// Formats the annotation as JSON, with the same numbers.
    pub fn to_json(&self, all: u64, of: &str) -> Value {
        let frame = |f: &Frame| json!({"function": f.function, "file": f.file, "line": f.line});
        let line = |line: &Line| {
            json!({"offset": line.offset.cast_signed(), "misses": line.misses, "insn": line.text,
                "source": line.frames.iter().map(frame).collect::<Vec<_>>()})
        };
        let of_source =
            |(misses, file, line): &(u64, String, u32)| json!({"misses": misses, "file": file, "line": line});
        json!({"function": self.function.name, "module": self.function.module,
            "start": format!("{:#x}", self.function.start), "misses": self.misses, "misses_of_all": all, "of": of,
            "lines": self.lines.iter().map(line).collect::<Vec<_>>(),
            "source_lines": self.by_source().iter().map(of_source).collect::<Vec<_>>()})
    }

    /// Misses of each line of source, most first.
    fn by_source(&self) -> Vec<(u64, String, u32)> {
        let mut sums: HashMap<(&str, u32), u64> = HashMap::new();
        for line in &self.lines {
            if let Some(frame) = line.frames.first() {
                *sums.entry((&frame.file, frame.line)).or_default() += line.misses;
            }
        }
        let mut all: Vec<_> = sums.into_iter().map(|((file, line), n)| (n, file.to_owned(), line)).collect();
        all.sort_by(|a, b| (b.0, &a.1, a.2).cmp(&(a.0, &b.1, b.2)));
        all
    }
}
