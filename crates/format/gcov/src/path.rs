// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths of source files, normalized lexically, so that each file has a single name.

use std::borrow::Cow;

/// Removes `.` and empty components and, where possible, `..`. gcov checks whether a directory before `..` is a
/// symbolic link; a kernel's build has none.
pub fn canonical(path: Cow<'_, str>) -> Cow<'_, str> {
    let plain = |path: &str| !path.contains("//") && path.split('/').all(|part| part != "." && part != "..");
    if plain(&path) { path } else { Cow::Owned(joined("", &path)) }
}

/// Resolves `path` relative to the directory `cwd`, and normalizes it.
pub fn absolute(cwd: Option<&str>, path: &str) -> String {
    joined(cwd.filter(|_| !path.starts_with('/')).unwrap_or(""), path)
}

/// As [`absolute`], for a directory and a path that are already canonical. Most paths then need only to be joined.
pub fn below(cwd: Option<&str>, path: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
