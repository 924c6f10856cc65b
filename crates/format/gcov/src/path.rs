// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of source files, as text: one file has one name however the compiler wrote it.

use std::borrow::Cow;

/// A path without `.` and empty parts and, as far as the text tells, without `..`. gcov asks the file system
/// whether a folder before `..` is a link; in a kernel's build none is.
pub(crate) fn canonical(path: Cow<'_, str>) -> Cow<'_, str> {
    let plain = |path: &str| !path.contains("//") && path.split('/').all(|part| part != "." && part != "..");
    if plain(&path) { path } else { Cow::Owned(joined("", &path)) }
}

/// `path`, seen from the folder `cwd`, canonical.
pub fn absolute(cwd: Option<&str>, path: &str) -> String {
    joined(cwd.filter(|_| !path.starts_with('/')).unwrap_or(""), path)
}

/// [`absolute`] of a folder and a path that are canonical: of most there is nothing to work out.
pub(crate) fn below(cwd: Option<&str>, path: &str) -> String {
    match cwd {
        Some(cwd) if !path.is_empty() && !path.ends_with('/') && !path.starts_with(['/', '.']) => {
            [cwd.trim_end_matches('/'), path].join("/")
        }
        _ => absolute(cwd, path),
    }
}

fn joined(base: &str, path: &str) -> String {
    let rooted = base.starts_with('/') || path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in base.split('/').chain(path.split('/')) {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    let path = parts.join("/");
    if rooted { format!("/{path}") } else { path }
}

/// Folders that are elsewhere than where the code was built: `OLD=NEW`, as of gcc's `-ffile-prefix-map`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prefixes(Vec<(String, String)>);

impl Prefixes {
    /// From pairs of an old and a new folder.
    pub fn new(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let plain = |path: String| if path == "/" { path } else { path.trim_end_matches('/').to_owned() };
        let mut pairs: Vec<_> = pairs.into_iter().map(|(old, new)| (plain(old), plain(new))).collect();
        // The longest that fits is meant, whatever the order they were given in.
        pairs.sort_by_key(|(old, _)| std::cmp::Reverse(old.len()));
        Prefixes(pairs)
    }

    /// The path with its beginning replaced, where one fits whole parts of it.
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

/// The folder of the sources, as an object and its source tell it: `/out/kernel/fork` made of `/src/kernel/fork.c` says
/// `/src`. None if they have no name in common.
pub fn source_root<'s>(object: &str, source: &'s str) -> Option<&'s str> {
    let (folder, name) = source.rsplit_once('/')?;
    let (mut objects, own) = match object.rsplit_once('/') {
        Some((folder, own)) => (folder, own),
        None => ("", object),
    };
    // `a.gcno` of `a.c`, or, as CMake has it, `a.c.gcno`.
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
    fn paths_are_one_however_they_are_written() {
        for (cwd, name, path) in [
            (Some("/build"), "./include/a.h", "/build/include/a.h"),
            (Some("/build"), "kernel/../include/a.h", "/build/include/a.h"),
            (Some("/build/out"), "../kernel/a.c", "/build/kernel/a.c"),
            (Some("/build"), "/usr/include/a.h", "/usr/include/a.h"),
            (None, "../a.c", "../a.c"),
            (Some("/"), "../../a.c", "/a.c"),
            (Some("/"), "a.c", "/a.c"),
            (Some("/build"), "a/", "/build/a"),
            (Some("/build"), ".hidden/a.c", "/build/.hidden/a.c"),
        ] {
            assert_eq!(absolute(cwd, name), path);
            assert_eq!(below(cwd, &canonical(name.into())), path);
        }
        assert_eq!(canonical("a/b.c".into()), "a/b.c");
        assert_eq!(canonical("./a//x/../b.c".into()), "a/b.c");
    }
}
