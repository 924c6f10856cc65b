// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cobertura's XML, of coverage. Torn counts, which are negative, are written as 0.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use kprism_cover::cover::{Cover, Source, Totals};
use kprism_cover::demangled;
use kprism_report::xml::escaped;

/// Writes Cobertura's XML (coverage-04.dtd), with a package for each directory. `recorded` is the time of the
/// recording.
///
/// # Errors
/// Write errors of `out`.
pub fn write(cover: &Cover, recorded: SystemTime, out: &mut dyn Write) -> io::Result<()> {
    let timestamp = recorded.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis());
    let mut folders: BTreeMap<&str, Vec<&Source>> = BTreeMap::new();
    for source in &cover.sources {
        let folder = cover.shown(&source.path).rsplit_once('/').map_or("", |(folder, _)| folder);
        folders.entry(folder).or_default().push(source);
    }
    let totals = cover.totals();
    writeln!(out, "<?xml version=\"1.0\" ?>")?;
    writeln!(
        out,
        "<!DOCTYPE coverage SYSTEM 'http://cobertura.sourceforge.net/xml/coverage-04.dtd'>\n\
         <coverage {} lines-covered=\"{}\" lines-valid=\"{}\" branches-covered=\"{}\" branches-valid=\"{}\" \
         complexity=\"0\" version=\"kprism\" timestamp=\"{timestamp}\">",
        rates(&totals),
        totals.lines.hit,
        totals.lines.all,
        totals.taken,
        totals.branches.all
    )?;
    let root = escaped(cover.root.as_deref().unwrap_or("."));
    // File names are relative to one of these directories; for files outside the build it is the last.
    let outside = cover.sources.iter().any(|source| cover.shown(&source.path).starts_with('/'));
    let more = if outside { "<source>/</source>" } else { "" };
    writeln!(out, "<sources><source>{root}</source>{more}</sources>\n<packages>")?;
    for (folder, sources) in folders {
        let mut totals = Totals::default();
        sources.iter().for_each(|source| totals.add(&source.totals()));
        let name = escaped(&folder.trim_start_matches('/').replace('/', "."));
        writeln!(out, "<package name=\"{name}\" {} complexity=\"0\"><classes>", rates(&totals))?;
        for source in sources {
            class(cover.shown(&source.path).trim_start_matches('/'), source, out)?;
        }
        writeln!(out, "</classes></package>")?;
    }
    writeln!(out, "</packages>\n</coverage>")
}

fn class(path: &str, source: &Source, out: &mut dyn Write) -> io::Result<()> {
    let name = escaped(&path.replace('/', "."));
    let (path, totals) = (escaped(path), source.totals());
    writeln!(out, "<class name=\"{name}\" filename=\"{path}\" {} complexity=\"0\">", rates(&totals))?;
    writeln!(out, "<methods>")?;
    for function in &source.functions {
        let rate = if function.called == 0 { 0 } else { 1 };
        writeln!(
            out,
            "<method name=\"{}\" signature=\"()\" line-rate=\"{rate}\" branch-rate=\"{rate}\" complexity=\"0\">\
             <lines><line number=\"{}\" hits=\"{}\"/></lines></method>",
            escaped(&demangled(&function.name)),
            function.lines.0,
            function.called.max(0)
        )?;
    }
    writeln!(out, "</methods>\n<lines>")?;
    for line in &source.lines {
        let branches = source.branches_of(line.line).iter().filter(|branch| branch.way.is_branch());
        let (all, taken) = branches
            .fold((0u32, 0u32), |(all, taken), branch| (all + 1, taken + u32::from(branch.taken != 0)));
        let (number, hits) = (line.line, line.count.max(0));
        match (100 * taken).checked_div(all) {
            None => writeln!(out, "<line number=\"{number}\" hits=\"{hits}\" branch=\"false\"/>")?,
            Some(percent) => writeln!(
                out,
                "<line number=\"{number}\" hits=\"{hits}\" branch=\"true\" \
                 condition-coverage=\"{percent}% ({taken}/{all})\"/>",
            )?,
        }
    }
    writeln!(out, "</lines></class>")
}

fn rates(totals: &Totals) -> String {
    let rate = |hit: u64, all: u64| if all == 0 { 1.0 } else { hit as f64 / all as f64 };
    format!(
        "line-rate=\"{:.4}\" branch-rate=\"{:.4}\"",
        rate(totals.lines.hit, totals.lines.all),
        rate(totals.taken, totals.branches.all)
    )
}
