// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files of several inputs are the same object.
//!
//! In: runs, archives, folders with `.gcda` files, single files. Out: objects, each with the inputs that have it. Runs and
//! archives name an object by its path on the machine that built it. Two folders of one build (copies made between runs, or
//! `GCOV_PREFIX`) have it under the same path below each folder, with the same stamp.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use kprism_gcov::data;

/// Stamp and checksum of the compilation.
type Build = (u32, u32);

/// A name of an object. Files with one of them in common are the same object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    /// Path on the machine that built it.
    At(PathBuf),
    /// That path, if the folder that was named is one that `GCOV_PREFIX` named.
    Prefixed(PathBuf),
    /// Path below the folder that was named.
    Below(PathBuf, Build),
    /// Name of a file in a folder.
    InFolder(OsString, Build),
    /// Name of a file that was named by itself.
    Alone(OsString, Build),
}

/// The names that a file has, and those that it is looked for by, the best first.
#[derive(Debug, Default)]
pub struct Names {
    known: Vec<Key>,
    sought: Vec<Key>,
}

impl Names {
    /// Names of an object of a run or an archive.
    pub fn of_archive(object: PathBuf) -> Self {
        Names {
            known: vec![Key::At(object.clone())],
            sought: vec![Key::At(object.clone()), Key::Prefixed(object)],
        }
    }

    /// Names of a file below `folder`, or one by itself.
    pub fn of_file(path: &Path, folder: Option<&Path>) -> Self {
        let object = path.with_extension("");
        let place = path.canonicalize().unwrap_or_else(|_| path.to_owned()).with_extension("");
        let at = Key::At(place.clone());
        let (Some(name), Some(build)) = (object.file_name(), build(path)) else {
            return Names { known: vec![at.clone()], sought: vec![at] };
        };
        let below = folder.and_then(|folder| object.strip_prefix(folder).ok());
        let key = Key::Below(below.unwrap_or(Path::new(name)).to_owned(), build);
        // GCOV_PREFIX puts a folder before the whole path.
        let whole = below.map(|below| Path::new("/").join(below));
        let own = match folder {
            Some(_) => Key::InFolder(name.to_owned(), build),
            None => Key::Alone(name.to_owned(), build),
        };
        let mut names =
            Names { known: vec![at.clone(), key.clone(), own], sought: vec![key, at, Key::Prefixed(place)] };
        names.sought.extend(whole.clone().map(Key::At));
        names.known.extend(whole.map(Key::Prefixed));
        names.sought.push(Key::Alone(name.to_owned(), build));
        if folder.is_none() {
            names.sought.push(Key::InFolder(name.to_owned(), build));
        }
        names
    }
}

fn build(path: &Path) -> Option<Build> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(data::HEADER as u64).read_to_end(&mut bytes).ok()?;
    let header = data::header(&bytes).ok()?;
    Some((header.stamp, header.checksum))
}

/// An object: the path of its counters without suffix, and the inputs that have it, with its index there.
pub type Shared = (PathBuf, Vec<(usize, usize)>);

/// Objects under construction.
#[derive(Debug, Default)]
pub struct Objects {
    pub all: Vec<Shared>,
    known: HashMap<Key, Vec<usize>>,
}

impl Objects {
    /// Adds an input's file to the object that it is, or as a new one. No two files of an input are one object.
    pub fn add(&mut self, names: Names, object: PathBuf, (run, index): (usize, usize)) {
        let mut place = None;
        for key in &names.sought {
            let all = self.known.get(key).map_or(&[][..], Vec::as_slice);
            let mut free = all.iter().filter(|&&at| self.all[at].1.iter().all(|&(other, _)| other != run));
            // A name alone may be that of several files.
            place = match (key, free.next(), free.next()) {
                (Key::InFolder(..) | Key::Alone(..), _, Some(_)) => None,
                (_, first, _) => first.copied(),
            };
            if place.is_some() {
                break;
            }
        }
        let place = place.unwrap_or(self.all.len());
        match self.all.get_mut(place) {
            Some((_, found)) => found.push((run, index)),
            None => self.all.push((object, vec![(run, index)])),
        }
        for key in names.known {
            let places = self.known.entry(key).or_default();
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::folder::Found;
    use super::*;

    #[test]
    fn copies_of_a_build_have_the_same_objects() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        let write = |name: &str, stamp: u8| {
            fs::create_dir_all(place(name).parent().unwrap()).unwrap();
            let header = [&b"adcg*22B"[..], &[stamp, 0, 0, 0, 1, 0, 0, 0]].concat();
            fs::write(place(name), header).unwrap();
        };
        for (name, stamp) in [
            ("m1/a.gcda", 1),
            ("m1/sub/a.gcda", 1),
            ("m1/b.gcda", 2),
            ("m2/a.gcda", 1),
            ("m2/sub/a.gcda", 1),
            ("m2/b.gcda", 3),
            ("one/a.gcda", 1),
            ("one/b.gcda", 3),
        ] {
            write(name, stamp);
        }
        let mut objects = Objects::default();
        for (run, folder) in ["m1", "m2"].iter().enumerate() {
            let found = Found::below(&place(folder)).unwrap();
            for (index, file) in found.data.iter().enumerate() {
                let names = Names::of_file(file, Some(&place(folder)));
                objects.add(names, file.with_extension(""), (run, index));
            }
        }
        for (run, file) in [(2, "one/a.gcda"), (3, "one/b.gcda")] {
            objects.add(Names::of_file(&place(file), None), place(file).with_extension(""), (run, 0));
        }
        let found: Vec<_> =
            objects.all.iter().map(|(path, runs)| (path.strip_prefix(&dir).unwrap(), &runs[..])).collect();
        let expected: [(&Path, &[(usize, usize)]); 4] = [
            // The single file's path is that of m1/a below its folder.
            (Path::new("m1/a"), &[(0, 0), (1, 0), (2, 0)]),
            (Path::new("m1/b"), &[(0, 1)]),
            (Path::new("m1/sub/a"), &[(0, 2), (1, 2)]),
            // Another build's: its own object, and found by name and stamp.
            (Path::new("m2/b"), &[(1, 1), (3, 0)]),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_prefix_of_the_whole_path_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("build/x/a.gcda");
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, b"adcg*22B\x01\0\0\0\x01\0\0\0").unwrap();
        let mut objects = Objects::default();
        objects.add(Names::of_archive("/build/x/a".into()), "/build/x/a".into(), (0, 7));
        objects.add(Names::of_file(&file, Some(dir.path())), file.with_extension(""), (1, 0));
        assert_eq!(objects.all, [("/build/x/a".into(), vec![(0, 7), (1, 0)])]);
    }
}
