// SPDX-License-Identifier: MIT OR Apache-2.0
//! Looks up what a condition names in the running kernel: the code of its functions, the cgroups of containers.
//!
//! A container is a cgroup (version 2) whose folder has the name that a runtime gives it: 64 hexadecimal digits, alone
//! (`docker/ID`) or as a scope of systemd (`docker-ID.scope`, `cri-containerd-ID.scope`, `libpod-ID.scope`); or
//! `lxc.payload.NAME`, `machine-NAME.scope`, `systemd-nspawn@NAME.service`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use kprism_expr::emit::{MOST_PAIRS, Name};
use kprism_expr::error::suggestion;

/// A container that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    /// Its id, or its name where there is no id.
    pub id: String,
    /// Its cgroup's folder, below the mount.
    pub path: PathBuf,
    /// Number of folders above it, below the root.
    pub depth: u64,
    /// The cgroup's number: its folder's inode.
    pub cgroup: u64,
}

/// The names of one recording; the kernel's files are read once, when the first one is asked for.
#[derive(Debug, Default)]
pub struct Names {
    kallsyms: Option<String>,
}

impl Names {
    /// The pairs of numbers for a name; see [`Name`].
    ///
    /// # Errors
    /// The kernel has no such name, or more than a program can look for. The text is for the user.
    pub fn find(&mut self, name: &Name) -> Result<Vec<(u64, u64)>, String> {
        match name {
            Name::Function(name) => {
                if self.kallsyms.is_none() {
                    let text = std::fs::read_to_string("/proc/kallsyms")
                        .map_err(|e| format!("/proc/kallsyms: {e}"))?;
                    self.kallsyms = Some(text);
                }
                code_of(self.kallsyms.as_deref().unwrap_or_default(), name)
            }
            Name::Container(id) => {
                let root = cgroups()?;
                if root.join("cgroup.events").exists() {
                    return Err(
                        "containers cannot be told apart from inside one: record on the machine itself"
                            .to_owned(),
                    );
                }
                let all = containers(&root);
                let found = one(&all, id)?;
                Ok(vec![(found.depth, found.cgroup)])
            }
        }
    }
}

/// The folder in which cgroups of version 2 are mounted.
///
/// # Errors
/// They are not.
pub fn cgroups() -> Result<PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at))
    });
    mount.ok_or_else(|| {
        "`$container` is told by cgroups of version 2, and none are mounted: mount -t cgroup2 none DIR"
            .to_owned()
    })
}

/// The id that a container's cgroup has in its folder's name; `None` if it is no container's.
pub fn id_of(folder: &str) -> Option<&str> {
    let hex = |text: &str| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
    let scope = folder.strip_suffix(".scope");
    // What watches a container is not in it.
    if folder.contains("conmon-") {
        return None;
    }
    if let Some(name) = folder.strip_prefix("lxc.payload.") {
        return Some(name);
    }
    if let Some(name) = folder.strip_prefix("systemd-nspawn@") {
        return name.strip_suffix(".service");
    }
    if let Some(name) = scope.and_then(|scope| scope.strip_prefix("machine-")) {
        return Some(name);
    }
    let last = scope.unwrap_or(folder).rsplit('-').next().unwrap_or(folder);
    hex(last).then_some(last)
}

/// All containers below this folder, where cgroups of version 2 are mounted.
pub fn containers(root: &Path) -> Vec<Container> {
    let mut found = Vec::new();
    let mut folders = vec![(root.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let (path, name) = (entry.path(), entry.file_name());
            if let (Some(id), Ok(of)) = (name.to_str().and_then(id_of), entry.metadata()) {
                let below = path.strip_prefix(root).unwrap_or(&path).to_owned();
                found.push(Container { id: id.to_owned(), path: below, depth: depth + 1, cgroup: of.ino() });
            }
            folders.push((path, depth + 1));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The ids of containers by cgroup, for the cgroups inside them too: the innermost container's.
pub fn by_cgroup() -> Vec<(u64, String)> {
    let Ok(root) = cgroups() else { return Vec::new() };
    let mut all = Vec::new();
    let mut folders = vec![(root, String::new())];
    while let Some((folder, inside)) = folders.pop() {
        all.extend(std::fs::metadata(&folder).map(|of| (of.ino(), inside.clone())));
        let entries = std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok);
        for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let name = entry.file_name();
            let own = name.to_str().and_then(id_of).map_or_else(|| inside.clone(), str::to_owned);
            folders.push((entry.path(), own));
        }
    }
    all
}

fn one<'c>(all: &'c [Container], id: &str) -> Result<&'c Container, String> {
    let exact: Vec<&Container> = all.iter().filter(|known| known.id == id).collect();
    let begun = || all.iter().filter(|known| known.id.starts_with(id)).collect();
    let found: Vec<&Container> = if exact.is_empty() { begun() } else { exact };
    let list = |some: &mut dyn Iterator<Item = &Container>| {
        some.take(8).map(|known| known.path.display().to_string()).collect::<Vec<_>>().join(", ")
    };
    match &found[..] {
        [found] => Ok(found),
        [] if all.is_empty() => {
            Err(format!("no container `{id}`: there are none now (one that starts later is not seen)"))
        }
        [] => Err(format!(
            "no container `{id}` now (one that starts later is not seen); there are {}",
            list(&mut all.iter())
        )),
        several => Err(format!(
            "`{id}` are {} containers ({}): write more of the id",
            several.len(),
            list(&mut several.iter().copied())
        )),
    }
}

/// The parts of a function's code, by kallsyms: the second address of each, and its length up to the next symbol.
fn code_of(kallsyms: &str, name: &str) -> Result<Vec<(u64, u64)>, String> {
    let line = |line: &'_ str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let code = matches!(words.next()?, "t" | "T" | "w" | "W");
        Some((address, code))
    };
    let named = |line: &str| {
        let symbol = line.split_whitespace().nth(2).unwrap_or_default();
        symbol == name || symbol.split('.').next() == Some(name)
    };
    let mut starts: Vec<u64> = kallsyms
        .lines()
        .filter(|text| named(text))
        .filter_map(line)
        .filter(|(_, code)| *code)
        .map(|(at, _)| at)
        .collect();
    starts.sort_unstable();
    starts.dedup();
    if starts.is_empty() {
        let symbols = kallsyms.lines().filter_map(|line| line.split_whitespace().nth(2));
        let near = suggestion(name, symbols).map_or_else(String::new, |near| format!("; {near}"));
        return Err(format!(
            "called_by: this kernel has no function `{name}`{near} (one that was inlined is on no stack)"
        ));
    }
    if starts == [0] {
        return Err(
            "called_by: /proc/kallsyms tells no addresses: run as root, or sysctl kernel.kptr_restrict=0"
                .to_owned(),
        );
    }
    if starts.len() > MOST_PAIRS {
        return Err(format!(
            "called_by: `{name}` are {} functions of this kernel, {MOST_PAIRS} can be looked for",
            starts.len()
        ));
    }
    let mut ends = vec![u64::MAX; starts.len()];
    for (address, _) in kallsyms.lines().filter_map(line) {
        for (start, end) in starts.iter().zip(&mut ends) {
            if address > *start {
                *end = (*end).min(address);
            }
        }
    }
    // Behind the last symbol of a module may be nothing.
    const LONGEST: u64 = 1 << 20;
    Ok(starts.iter().zip(ends).map(|(start, end)| (start + 1, (end - start).min(LONGEST))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_by_symbols() {
        let text = "ffffffff81000010 T one\nffffffff81000040 t other\nffffffff81000040 d data\nffffffff81000100 t one.cold\n\
                    ffffffff81000108 D end\n";
        let one = vec![(0xffff_ffff_8100_0011, 0x30), (0xffff_ffff_8100_0101, 8)];
        assert_eq!(code_of(text, "one"), Ok(one));
        let why = code_of(text, "onee").unwrap_err();
        assert!(why.contains("no function `onee`; did you mean `one`?"), "{why}");
    }

    #[test]
    fn names_of_containers() {
        let id = "3f2a".repeat(16);
        for folder in [id.clone(), format!("docker-{id}.scope"), format!("cri-containerd-{id}.scope")] {
            assert_eq!(id_of(&folder), Some(id.as_str()), "{folder}");
        }
        assert_eq!(id_of("lxc.payload.web"), Some("web"));
        assert_eq!(id_of("systemd-nspawn@web.service"), Some("web"));
        for folder in ["", "user.slice", "docker-3f2a.scope", &format!("libpod-conmon-{id}.scope")] {
            assert_eq!(id_of(folder), None, "{folder}");
        }
        let container = |id: &str| Container { id: id.into(), path: id.into(), depth: 1, cgroup: 7 };
        let all = [container("3f2a"), container("3f2b"), container("3f")];
        assert_eq!(one(&all, "3f2b").map(|c| c.id.as_str()), Ok("3f2b"));
        assert_eq!(one(&all, "3f").map(|c| c.id.as_str()), Ok("3f"));
        assert!(one(&all, "3f2").unwrap_err().contains("2 containers"));
        assert!(one(&all, "9").unwrap_err().contains("starts later is not seen"));
    }
}
