// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds tests of `tools/testing/selftests` of a kernel tree, outside of the tree.
//!
//! Input: the tree and the tests' names. Output: a folder in the cache with their programs, as `make install` of the
//! selftests lays it out. The tree is not changed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kprism_layout::KernelBuild;

use crate::cache::{Cache, Key, Lock};
use crate::error::{Context as _, Error, Result};
use crate::options::{Progress, Report};
use crate::program::run;

/// Tests that are built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selftests {
    /// The folder that holds a folder for each collection.
    pub folder: PathBuf,
    /// Collection and program of each test that was asked for, in the order of the collections' own lists.
    pub tests: Vec<(String, String)>,
    /// Sentences on what was not as usual.
    pub notes: Vec<String>,
}

const TOOLS: [&str; 3] = ["make", "gcc", "rsync"];

/// Builds the tests. Each of `wanted` is a collection, as `timers`, or one of its tests, as `timers:posix_timers`.
///
/// # Errors
/// The tree has no such tests, tools are missing, or a collection cannot be built.
pub fn build(tree: &Path, wanted: &[String], report: Report<'_>) -> Result<Selftests> {
    let tree = tree.canonicalize().at("find", tree)?;
    let source = KernelBuild::of(&tree).source().join("tools/testing/selftests");
    let bad = |path: &Path, reason: String| Err(Error::BadFile { path: path.to_owned(), reason });
    if !source.join("Makefile").is_file() {
        return bad(&source, "no selftests here: the tree needs the kernel's whole source".into());
    }
    let mut collections: Vec<&str> = Vec::new();
    for name in wanted {
        let collection = name.split(':').next().unwrap_or_default();
        let plain = collection.split('/').all(|part| !part.is_empty() && !part.starts_with('.'));
        if !plain || !source.join(collection).join("Makefile").is_file() {
            return bad(&source, format!("no collection {collection:?}; a test is named COLLECTION:TEST"));
        }
        if !collections.contains(&collection) {
            collections.push(collection);
        }
    }
    check_tools()?;
    let key = Key::default().add("kselftest 1").add(tree.as_os_str().as_encoded_bytes());
    let place = Cache::open()?.folder().join("kselftest").join(key.finish());
    fs::create_dir_all(&place).at("create", &place)?;
    let _lock = Lock::take(&place.join("lock"))?;
    let folder = place.join("install");
    crate::cache::remove(&folder)?;
    let mut notes = Vec::new();
    let headers = tree.join("usr/include");
    if !headers.join("linux").is_dir() {
        notes.push(format!(
            "{}: not there, so the tests are compiled with this machine's headers: run `make headers` in the tree",
            headers.display()
        ));
    }
    report(Progress::Step("building the selftests"));
    let mut make = Command::new("make");
    make.arg("-C").arg(&source).arg("-s");
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    make.arg(format!("-j{jobs}")).arg(format!("TARGETS={}", collections.join(" "))).arg("FORCE_TARGETS=1");
    let assigned = [("O", &place), ("INSTALL_PATH", &folder)];
    make.args(assigned.map(|(name, path)| format!("{name}={}", path.display())));
    make.arg(format!("KHDR_INCLUDES=-isystem {}", headers.display())).arg("install");
    for name in ["MAKEFLAGS", "KBUILD_OUTPUT", "ARCH", "CROSS_COMPILE", "TARGETS", "LLVM"] {
        make.env_remove(name);
    }
    run(&mut make, "building the selftests", &place.join("log")).map_err(|error| match error {
        Error::BadFile { path, reason } => {
            let remedies = notes.iter().map(|note| format!("\n{note}"));
            Error::BadFile { path, reason: reason + &remedies.collect::<String>() }
        }
        other => other,
    })?;
    let list = folder.join("kselftest-list.txt");
    let listed = fs::read_to_string(&list).at("read", &list)?;
    let all: Vec<(&str, &str)> = listed.lines().filter_map(|line| line.split_once(':')).collect();
    let asked = |(collection, test): &(&str, &str)| {
        wanted.iter().any(|name| match name.split_once(':') {
            Some((of, one)) => of == *collection && one == *test,
            None => name == collection,
        })
    };
    for name in wanted.iter().filter(|name| name.contains(':')) {
        if !all.iter().any(|(collection, test)| format!("{collection}:{test}") == **name) {
            return bad(&list, format!("no test {name}; there are:\n{}", listed.trim_end()));
        }
    }
    let tests = all.into_iter().filter(asked);
    let tests: Vec<_> = tests.map(|(of, test)| (of.to_owned(), test.to_owned())).collect();
    if tests.is_empty() {
        return bad(&list, format!("no tests in {}", collections.join(", ")));
    }
    Ok(Selftests { folder, tests, notes })
}

fn check_tools() -> Result<()> {
    let runs = |program: &&str| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    };
    let absent: Vec<&str> = TOOLS.into_iter().filter(|program| !runs(program)).collect();
    match absent.is_empty() {
        true => Ok(()),
        false => Err(Error::MissingProgram {
            program: absent.join(", "),
            remedy: "building selftests takes make, gcc and rsync: install them with apt",
        }),
    }
}
