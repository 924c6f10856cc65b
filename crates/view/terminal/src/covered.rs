// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage as screens: folders, files, functions; behind a file its lines and its functions, behind a function its lines.
//!
//! In: coverage that was read ([`Loaded`]). Out: screens. The lines of a source are those of `kprism annotate`, the rows those of
//! `kprism report cover --each`.

use std::path::PathBuf;

use kprism_cover::cover::Source;
use kprism_report::cover::{self, Each, source};
use kprism_report::table::Cell;
use kprism_report::{Style, Table};
use kprism_session::cover::sources::{Found, of_source};
use kprism_session::cover::{Loaded, NEVER_RAN};
use kprism_store::Fate;

use crate::screen::{Screen, Target};

/// Objects left out that are named.
const NAMED: usize = 5;

/// Coverage, and the folder in which its sources are looked for.
pub struct Covered {
    loaded: Loaded,
    source_dir: Option<PathBuf>,
}

impl Covered {
    /// Of coverage that was read.
    pub fn new(loaded: Loaded, source_dir: Option<PathBuf>) -> Self {
        Covered { loaded, source_dir }
    }

    /// The account of the coverage.
    pub fn account(&self) -> &kprism_store::Account {
        &self.loaded.account
    }

    /// Totals, and remarks on what is not in them, in lines.
    pub fn head(&self) -> Vec<String> {
        let (sources, totals) = cover::chosen(&self.loaded.cover, None);
        let never = self.loaded.account.count(Fate::Kept, NEVER_RAN).unwrap_or(0);
        let mut head = vec![cover::header(&self.loaded.cover, never, sources.len(), &totals)];
        let problems = &self.loaded.problems;
        head.extend(problems.iter().take(NAMED).map(|problem| problem.text.clone()));
        if problems.len() > NAMED {
            head.push(format!("so too {} more", problems.len() - NAMED));
        }
        head
    }

    /// Files, functions and folders of all.
    pub fn screens(&self) -> Vec<Screen> {
        vec![self.files(), self.functions(None), self.folders()]
    }

    /// The screens behind a source, or behind one of its functions. `path` is as tables show it.
    pub fn behind(&self, path: &str, function: Option<(&str, u32)>) -> Option<(String, Vec<Screen>)> {
        let cover = &self.loaded.cover;
        let source = cover.sources.iter().find(|source| cover.shown(&source.path) == path)?;
        let Some((name, first)) = function else {
            let screens = vec![self.lines(source, (0, u32::MAX)), self.functions(Some(path))];
            return Some((path.to_owned(), screens));
        };
        let own = source
            .functions
            .iter()
            .find(|own| own.lines.0 == first && kprism_cover::demangled(&own.name) == name)?;
        Some((name.to_owned(), vec![self.lines(source, own.lines)]))
    }

    fn files(&self) -> Screen {
        let mut table = cover::table(&self.loaded.cover, Each::File, None);
        table.select(&cover::SHOWN);
        let path = place(&table, "path");
        Screen::of_table("files", &table, ("path", ""), |cells| match cells.get(path?) {
            Some(Cell::Text(path)) => Some(Target::Source { path: path.clone(), function: None }),
            _ => None,
        })
    }

    fn functions(&self, path: Option<&str>) -> Screen {
        let mut table = cover::table(&self.loaded.cover, Each::Function, None);
        let (function, at) = (place(&table, "function"), place(&table, "place"));
        let of = |cells: &[Cell]| match (cells.get(function?)?, cells.get(at?)?) {
            (Cell::Text(name), Cell::Text(place)) => {
                let (path, line) = place.rsplit_once(':')?;
                Some((path.to_owned(), name.clone(), line.parse().ok()?))
            }
            _ => None,
        };
        if let Some(path) = path {
            table.rows.retain(|cells| of(cells).is_some_and(|(own, ..)| own == path));
        }
        Screen::of_table("functions", &table, ("function", ""), |cells| {
            let (path, name, line) = of(cells)?;
            Some(Target::Source { path, function: Some((name, line)) })
        })
    }

    fn folders(&self) -> Screen {
        let mut table = cover::table(&self.loaded.cover, Each::Folder, None);
        table.select(&cover::SHOWN);
        Screen::of_table("folders", &table, ("path", ""), |_| None)
    }

    /// Lines of a source with their counts; what is wrong with its text stands above them.
    fn lines(&self, source: &Source, lines: (u32, u32)) -> Screen {
        let found = of_source(source, self.source_dir.as_deref());
        let remarks = found.short().into_iter().chain(found.changed(&source.path, &self.loaded.built));
        let mut remarks: Vec<String> = remarks.collect();
        if found == Found::Missing {
            remarks.push(format!("{}: no source; --source-dir names its folder", source.path));
        }
        let inferred = self.loaded.inferred.as_ref().and_then(|all| all.get(&source.path));
        let shown = source::Shown { lines, branches: false, runs: self.loaded.runs.as_ref(), inferred };
        let style = Style::default();
        let text = found.text();
        let body = source::header(shown, style) + &source::to_text(source, text.as_deref(), shown, style);
        Screen::text("lines", remarks.iter().map(String::as_str).chain(body.lines()))
    }
}

fn place(table: &Table, key: &str) -> Option<usize> {
    table.columns.iter().position(|column| column.key == key)
}
