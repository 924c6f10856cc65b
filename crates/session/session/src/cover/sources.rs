// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finds the text of source files: at the path that the compiler noted, or elsewhere.
//!
//! In: a path, `--source-dir`. Out: the text. A folder holds a file under the longest end of its path that is there, as
//! notes are looked for, whether sources lie in the folder of the build or (`make O=`) outside. A file that ends before
//! the last line with code is another one of that name, and is passed over. A file that changed after the code was built,
//! or ran, is told: counts may belong to other lines now.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use kprism_cover::cover::Source;
use kprism_cover::path::{Prefixes, absolute};
use kprism_gcov::Notes;
use kprism_store::Run;

use crate::date;

/// Unit of the account: sources that are newer than the code.
pub const CHANGED: &str = "source files newer than the code";

/// Maximum size of a source file, bytes. A larger file is passed over.
const MAX_SOURCE: u64 = 64 << 20;

/// `OLD=NEW` of the command line.
pub fn parse_prefix(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.to_owned(), new.to_owned())),
        _ => Err("OLD=NEW, a folder of the build and where its files are now".to_owned()),
    }
}

/// The renaming of paths that the pairs of the command line ask for.
pub fn prefixes(pairs: &[(String, String)]) -> Prefixes {
    Prefixes::new(pairs.iter().cloned())
}

/// A source file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It is there.
    Text {
        /// Its text.
        text: String,
        /// Its path.
        place: PathBuf,
        /// When it was changed last, if the file system knows.
        modified: Option<SystemTime>,
    },
    /// It has fewer lines than the code: so many.
    Short(PathBuf, u64),
    /// It is nowhere.
    Missing,
}

impl Found {
    /// The text, if it is there.
    pub fn text(self) -> Option<String> {
        match self {
            Found::Text { text, .. } => Some(text),
            Found::Short(..) | Found::Missing => None,
        }
    }

    /// Says that the file ends before its code does.
    pub fn short(&self) -> Option<String> {
        let Found::Short(place, lines) = self else { return None };
        Some(format!(
            "{}: has fewer lines ({lines}) than the code: not the file that was compiled; --source-dir names another folder",
            place.display()
        ))
    }

    /// Says that the file changed after the code was built, or ran.
    pub fn changed(&self, source: &str, built: &Built) -> Option<String> {
        let Found::Text { place, modified: Some(modified), .. } = self else { return None };
        let than = built.before(source, *modified)?;
        Some(format!("{}: source is newer than {than}: counts may be of other lines", place.display()))
    }
}

/// Reads sources for a view that shows many of them, from any thread, and collects remarks on them.
#[derive(Debug)]
pub struct Texts<'a> {
    folder: Option<&'a Path>,
    built: &'a Built,
    remarks: Mutex<Remarks>,
}

/// Remarks on sources, in the order of their text.
#[derive(Debug, Default)]
pub struct Remarks {
    /// Sources that changed after the code was built, or ran.
    pub changed: Vec<String>,
    /// Sources that end before their code does.
    pub short: Vec<String>,
}

impl<'a> Texts<'a> {
    /// Sources lie in `folder`, if one is given, or where the compiler noted.
    pub fn new(folder: Option<&'a Path>, built: &'a Built) -> Self {
        Texts { folder, built, remarks: Mutex::default() }
    }

    /// The text of a source, if it is there.
    pub fn text(&self, source: &Source) -> Option<String> {
        let found = of_source(source, self.folder);
        let mut remarks = self.remarks.lock().unwrap_or_else(PoisonError::into_inner);
        remarks.changed.extend(found.changed(&source.path, self.built));
        remarks.short.extend(found.short());
        found.text()
    }

    /// The remarks on the sources that were read.
    pub fn into_remarks(self) -> Remarks {
        let mut remarks = self.remarks.into_inner().unwrap_or_else(PoisonError::into_inner);
        remarks.changed.sort_unstable();
        remarks.short.sort_unstable();
        remarks
    }
}

/// The file of a source with code.
pub fn of_source(source: &Source, folder: Option<&Path>) -> Found {
    find(&source.path, source.lines.last().map_or(0, |line| line.line), folder)
}

/// The text of the file at `path` that has a line `last`.
pub fn read(path: &str, last: u32, folder: Option<&Path>) -> Option<String> {
    find(path, last, folder).text()
}

/// The file at `path` that has a line `last`.
pub fn find(path: &str, last: u32, folder: Option<&Path>) -> Found {
    let mut short = None;
    for place in places(path, folder) {
        // A path in debug information may name anything, such as a device without an end.
        let is_source =
            std::fs::metadata(&place).is_ok_and(|file| file.is_file() && file.len() <= MAX_SOURCE);
        let Some(bytes) = is_source.then(|| std::fs::read(&place).ok()).flatten() else { continue };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let lines = text.lines().count() as u64;
        if lines >= u64::from(last) {
            let modified = std::fs::metadata(&place).and_then(|file| file.modified()).ok();
            return Found::Text { text, place, modified };
        }
        short.get_or_insert((place, lines));
    }
    short.map_or(Found::Missing, |(place, lines)| Found::Short(place, lines))
}

/// When code was built, or ran: sources that changed later may have other lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Built {
    /// Of a run: when it was recorded, in whole seconds.
    pub recorded: Option<SystemTime>,
    /// Of counters outside a run: by source file, the oldest notes with code of it.
    pub notes: BTreeMap<String, (SystemTime, PathBuf)>,
}

impl Built {
    /// Of a run, by its manifest.
    pub fn of_run(input: &Path) -> Self {
        let created = Run::open(input).and_then(|run| run.manifest()).ok();
        Built { recorded: created.and_then(|m| date::parse(&m.created)), notes: BTreeMap::new() }
    }

    /// Adds the notes of an object, and a source file that they name.
    pub fn add(&mut self, source: String, written: SystemTime, notes: &Path) {
        let known = self.notes.entry(source).or_insert_with(|| (written, notes.to_owned()));
        if written < known.0 {
            *known = (written, notes.to_owned());
        }
    }

    /// Adds the notes at `path`, for each source file that they name.
    pub fn add_notes(&mut self, notes: &Notes<'_>, path: &Path, prefixes: &Prefixes) {
        let Ok(written) = std::fs::metadata(path).and_then(|file| file.modified()) else { return };
        for source in &notes.sources {
            let source = absolute(notes.cwd.as_deref(), source);
            self.add(prefixes.map(&source).into_owned(), written, path);
        }
    }

    /// Which file or event is older than a source that was changed at `modified`.
    fn before(&self, source: &str, modified: SystemTime) -> Option<String> {
        if self.recorded.is_some_and(|at| modified >= at + Duration::from_secs(1)) {
            return Some("the run".into());
        }
        let (written, notes) = self.notes.get(source)?;
        (modified > *written).then(|| notes.display().to_string())
    }
}

/// The places where it may be, the likeliest first.
fn places(path: &str, folder: Option<&Path>) -> Vec<PathBuf> {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let mut places = Vec::new();
    if let Some(folder) = folder {
        let ends = (0..parts.len()).map(|skip| folder.join(parts[skip..].iter().collect::<PathBuf>()));
        places.extend(ends);
    }
    places.push(PathBuf::from(path));
    places
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn the_longest_end_below_the_folder_that_is_long_enough() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("kernel/fork.c", "1\n2\n3\n");
        write("fork.c", "other\n");
        let read = |path, last| read(path, last, Some(dir.path()));
        assert_eq!(read("/src/linux/kernel/fork.c", 3).as_deref(), Some("1\n2\n3\n"));
        assert_eq!(read("/src/linux/mm/fork.c", 1).as_deref(), Some("other\n"));
        assert_eq!(read("/src/linux/mm/fork.c", 2), None, "another file of that name");
        assert_eq!(parse_prefix("/a=/b"), Ok(("/a".into(), "/b".into())));
        assert!(parse_prefix("/a").is_err() && parse_prefix("=/b").is_err());
        let short = find("/src/linux/mm/fork.c", 2, Some(dir.path()));
        assert_eq!(short, Found::Short(dir.path().join("fork.c"), 1));
        assert_eq!(find("/src/linux/mm/none.c", 2, Some(dir.path())), Found::Missing);
    }

    #[test]
    fn what_changed_since() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let run = Built { recorded: Some(at(10)), ..Built::default() };
        assert_eq!(run.before("/a.c", at(10) + Duration::from_millis(900)), None, "the same second");
        assert_eq!(run.before("/a.c", at(11)).as_deref(), Some("the run"));
        let mut folder = Built::default();
        folder.add("/a.h".into(), at(30), Path::new("new.gcno"));
        folder.add("/a.h".into(), at(20), Path::new("old.gcno"));
        assert_eq!(folder.before("/a.h", at(25)).as_deref(), Some("old.gcno"));
        assert_eq!((folder.before("/a.h", at(20)), folder.before("/b.h", at(99))), (None, None));
    }
}
