// SPDX-License-Identifier: MIT OR Apache-2.0
//! Folders of source files: the one that paths are displayed from, and folders that moved since the build.

use std::borrow::Cow;
use std::collections::BTreeMap;

pub use kprism_gcov::path::absolute;

/// True if `path` is `folder`, or below it. Both are canonical; the folder may end with a slash.
pub fn is_below(folder: &str, path: &str) -> bool {
    let rest = path.strip_prefix(folder.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Directories that have been moved since the build: `OLD=NEW`, as in gcc's `-ffile-prefix-map`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefixes(Vec<(String, String)>);

impl Prefixes {
    /// Creates the mapping from pairs of an old and a new directory.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let plain = |path: String| if path == "/" { path } else { path.trim_end_matches('/').to_owned() };
        let mut pairs: Vec<_> = pairs.into_iter().map(|(old, new)| (plain(old), plain(new))).collect();
        // The longest match applies, independent of the order.
        pairs.sort_by_key(|(old, _)| std::cmp::Reverse(old.len()));
        Prefixes(pairs)
    }

    /// Replaces a prefix of whole path components, if one matches.
    pub fn map<'p>(&self, path: &'p str) -> Cow<'p, str> {
        for (old, new) in &self.0 {
            match path.strip_prefix(old.as_str()) {
                Some("") => return Cow::Owned(new.clone()),
                Some(rest) if rest.starts_with('/') || old.ends_with('/') => {
                    let (new, rest) = (new.trim_end_matches('/'), rest.trim_start_matches('/'));
                    return Cow::Owned(if new.is_empty() && !old.is_empty() {
                        format!("/{rest}")
                    } else {
                        format!("{new}/{rest}")
                    });
                }
                _ => {}
            }
        }
        Cow::Borrowed(path)
    }
}

/// Returns the folder that paths are displayed from: the deepest one at or above nine in ten of `folders`, which have
/// the number of objects each. If that is only `/`, the deepest one that most of them are below, so that a few objects
/// from elsewhere (modules of another tree) change nothing. None if there is none but `/`.
pub(crate) fn root_of(folders: &BTreeMap<String, u32>) -> Option<String> {
    let mut below: BTreeMap<&str, u64> = BTreeMap::new();
    for (folder, &count) in folders {
        let ends = folder.match_indices('/').map(|(at, _)| at).chain([folder.len()]);
        for end in ends.filter(|&end| end > 0) {
            *below.entry(&folder[..end]).or_default() += u64::from(count);
        }
    }
    let all: u64 = folders.values().map(|&count| u64::from(count)).sum();
    let deepest = |is_enough: &dyn Fn(u64) -> bool| {
        let enough = below.iter().filter(|&(_, &count)| is_enough(count));
        // More than half are below each, so that one is below the other.
        enough.max_by_key(|(folder, _)| folder.len()).map(|(folder, _)| (*folder).to_owned())
    };
    deepest(&|count| 10 * count >= 9 * all).or_else(|| deepest(&|count| 2 * count > all))
}

/// Returns the deepest folder at or above both; None if that is only `/`.
pub fn common<'p>(a: &'p str, b: &str) -> Option<&'p str> {
    let same = a.split('/').zip(b.split('/')).take_while(|(a, b)| a == b);
    let end = same.map(|(part, _)| part.len() + 1).sum::<usize>().saturating_sub(1);
    Some(&a[..end]).filter(|folder| !folder.is_empty())
}

/// Returns true for names of files that are included, not compiled: headers, by their suffix.
pub(crate) fn is_header(path: &str) -> bool {
    let name = path.rsplit_once('/').map_or(path, |(_, name)| name);
    match name.rsplit_once('.') {
        None => true,
        Some((_, suffix)) => {
            ["h", "hh", "hpp", "hxx", "h++", "H", "inc", "inl", "ipp", "tcc"].contains(&suffix)
        }
    }
}

/// Derives the sources' root directory from an object and its source: `/out/kernel/fork` and `/src/kernel/fork.c` give
/// `/src`. None if their names differ.
pub fn source_root<'s>(object: &str, source: &'s str) -> Option<&'s str> {
    let (folder, name) = source.rsplit_once('/')?;
    let (mut objects, own) = match object.rsplit_once('/') {
        Some((folder, own)) => (folder, own),
        None => ("", object),
    };
    // `a.gcno` for `a.c`, or `a.c.gcno`, as with CMake.
    if own != name && Some(own) != name.rsplit_once('.').map(|(stem, _)| stem) {
        return None;
    }
    let mut root = folder;
    while let (Some((above, a)), Some((objects_above, b))) = (root.rsplit_once('/'), objects.rsplit_once('/'))
        && a == b
    {
        (root, objects) = (above, objects_above);
    }
    Some(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beginnings_of_paths_are_replaced() {
        let pairs = [("/build/", "/src"), ("/build/linux/out", "/gen"), ("/", "/root")];
        let prefixes = Prefixes::new(pairs.map(|(a, b)| (a.to_owned(), b.to_owned())));
        for (path, mapped) in [
            ("/build/a.c", "/src/a.c"),
            ("/build", "/src"),
            ("/build/linux/out/b.h", "/gen/b.h"),
            ("/builder/a.c", "/root/builder/a.c"),
            ("a.c", "a.c"),
        ] {
            assert_eq!(prefixes.map(path), mapped, "{path}");
        }
        assert_eq!(Prefixes::default().map("/a"), "/a");
    }

    #[test]
    fn objects_tell_where_sources_are() {
        for (object, source, root) in [
            ("/out/kernel/fork", "/src/linux/kernel/fork.c", Some("/src/linux")),
            ("/p/build/CMakeFiles/x.dir/src/a.cpp", "/p/src/a.cpp", Some("/p")),
            ("/out/a", "/src/b.c", None),
            ("/src/kernel/fork", "/src/kernel/fork.c", Some("")),
        ] {
            assert_eq!(source_root(object, source), root, "{object}");
        }
    }

    #[test]
    fn the_folder_of_most_sources_is_above_them() {
        for (folders, root) in [
            (&[("/pr/lib", 4), ("/pr/src", 3)][..], Some("/pr")),
            (&[("/pr/lib", 4), ("/pr/src", 5)], Some("/pr")),
            (&[("/pr/src", 5)], Some("/pr/src")),
            (&[("/linux", 1300), ("/home/module", 1)], Some("/linux")),
            (&[("/linux", 6), ("/home/module", 4)], Some("/linux")),
            (&[("/a", 1), ("/b", 1)], None),
            (&[("/pr", 1), ("/prefix", 1)], None),
            (&[("relative", 1)], Some("relative")),
            (&[], None),
        ] {
            let folders = folders.iter().map(|&(folder, count)| (folder.to_owned(), count)).collect();
            assert_eq!(root_of(&folders).as_deref(), root, "{folders:?}");
        }
        for (a, b, folder) in [
            ("/pr/lib", "/pr/src", Some("/pr")),
            ("/pr", "/pr/src", Some("/pr")),
            ("/pr", "/pr", Some("/pr")),
            ("/pr", "/prefix", None),
            ("", "/a", None),
        ] {
            assert_eq!(common(a, b), folder);
        }
    }
}
