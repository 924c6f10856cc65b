// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the text of source files is: at the path that the compiler noted, or elsewhere.
//!
//! In: a path, `--source-dir`. Out: the text. A folder holds a file under the longest end of its path that is there, as
//! notes are looked for, whether sources lie in the folder of the build or (`make O=`) outside. A file that ends before
//! the last line with code is another one of that name, and is passed over.

use std::path::{Path, PathBuf};

use kprism_gcov::cover::Source;
use kprism_gcov::path::Prefixes;

/// `OLD=NEW` of the command line.
pub fn parse_prefix(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((old, new)) if !old.is_empty() && !new.is_empty() => Ok((old.to_owned(), new.to_owned())),
        _ => Err("OLD=NEW, a folder of the build and where its files are now".to_owned()),
    }
}

/// What the pairs of the command line do to paths.
pub fn prefixes(pairs: &[(String, String)]) -> Prefixes {
    Prefixes::new(pairs.iter().cloned())
}

/// The text of a source file with code, if it is there.
pub fn of_source(source: &Source, folder: Option<&Path>) -> Option<String> {
    let last = source.lines.last().map_or(0, |line| line.line);
    read(&source.path, last, folder)
}

/// The text of the file at `path` that has a line `last`.
pub fn read(path: &str, last: u32, folder: Option<&Path>) -> Option<String> {
    places(path, folder).into_iter().find_map(|place| {
        let bytes = std::fs::read(place).ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        (text.lines().count() as u64 >= u64::from(last)).then_some(text)
    })
}

/// Where it may be, the likeliest first.
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
    }
}
