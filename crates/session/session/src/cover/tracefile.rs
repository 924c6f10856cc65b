// SPDX-License-Identifier: MIT OR Apache-2.0
//! Coverage that another program worked out: lcov's tracefile, such as `llvm-cov export -format=lcov` writes of a program
//! built by clang with `-fcoverage-mapping`.
//!
//! In: the file. Out: a coverage as of counters, and an account of what a tracefile cannot tell. LLVM's own files are told
//! apart, and refused with the commands that make a tracefile of them.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, bail};
use kprism_cover::lcov;
use kprism_store::{Account, Fate};

use super::loaded::Loaded;
use super::options::Options;
use super::sources::{self, Built};

/// Formats of coverage files, told by their first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begins {
    /// lcov's tracefile.
    Tracefile,
    /// LLVM's raw profile, as a program writes it at its end, of either byte order.
    RawProfile,
    /// LLVM's indexed profile, of `llvm-profdata merge`.
    IndexedProfile,
    /// Something else.
    Otherwise,
}

/// Bytes that are looked at.
const BEGINNING: u64 = 4096;

/// Returns the kind of a file. Of what is no file, or cannot be read, it is [`Begins::Otherwise`].
pub fn begins(input: &Path) -> Begins {
    let mut bytes = Vec::new();
    if !input.is_file()
        || fs::File::open(input).and_then(|f| f.take(BEGINNING).read_to_end(&mut bytes)).is_err()
    {
        return Begins::Otherwise;
    }
    // llvm/ProfileData/InstrProf.h: 255 "lprof" 129 of 64-bit programs, 255 "lprofR" 129 without the first l of 32-bit ones.
    let magic = |word: &[u8; 8]| {
        let reversed: Vec<u8> = word.iter().rev().copied().collect();
        bytes.starts_with(word) || bytes.starts_with(&reversed)
    };
    if magic(b"\xfflprofr\x81") || magic(b"\xfflprofR\x81") {
        Begins::RawProfile
    } else if bytes.starts_with(b"\xfflprofi\x81") {
        Begins::IndexedProfile
    } else if lcov::begins(&bytes) {
        Begins::Tracefile
    } else {
        Begins::Otherwise
    }
}

/// Refuses LLVM's profiles: their counters are of regions that only the program's own coverage mapping names.
///
/// # Errors
/// It is one; the error has the commands to run.
pub fn refuse_profile(input: &Path) -> Result<()> {
    let file = input.display();
    match begins(input) {
        Begins::RawProfile => bail!(
            "{file}: a raw profile of LLVM's, whose counters only the program's coverage mapping explains; make a tracefile of \
             both: `llvm-profdata merge {file} -o all.profdata`, then \
             `llvm-cov export -format=lcov PROGRAM -instr-profile=all.profdata >all.info`, and give all.info"
        ),
        Begins::IndexedProfile => bail!(
            "{file}: a profile of LLVM's, whose counters only the program's coverage mapping explains; make a tracefile of \
             both: `llvm-cov export -format=lcov PROGRAM -instr-profile={file} >all.info`, and give all.info"
        ),
        Begins::Tracefile | Begins::Otherwise => Ok(()),
    }
}

/// Reads a tracefile.
///
/// # Errors
/// It cannot be read, is damaged, or options are given that go with counters only.
pub fn load(input: &Path, options: &Options) -> Result<Loaded> {
    let name = input.display();
    if !options.merge.is_empty() {
        bail!(
            "{name}: --merge adds up gcov's counters; `lcov -a A -a B` or `llvm-profdata merge` adds up these"
        );
    }
    if options.since_boot || options.build_dir.is_some() {
        bail!(
            "{name}: --since-boot and --build-dir are for gcov's counters; this is a tracefile, without any"
        );
    }
    let bytes = fs::read(input).with_context(|| name.to_string())?;
    let mut found = lcov::read(&bytes).with_context(|| name.to_string())?;
    let prefixes = sources::prefixes(&options.source_prefix);
    for source in &mut found.cover.sources {
        source.path = prefixes.map(&source.path).into_owned();
    }
    found.cover.root = found.cover.root.map(|root| prefixes.map(&root).into_owned());
    found.cover.sources.sort_by(|a, b| a.path.cmp(&b.path));
    let account = Account::new()
        .with(Fate::Seen, "records of a tracefile", found.records)
        .with(Fate::Kept, "source files", found.cover.sources.len() as u64)
        .at(Fate::NotUnderstood, "lines of unknown kinds", found.unknown.0, found.unknown.1)
        .at(Fate::NotUnderstood, "functions without a line", found.placeless.0, found.placeless.1)
        .with(Fate::Guessed, "decisions that ran as often as their branches together", found.decisions);
    let recorded = fs::metadata(input).and_then(|file| file.modified()).ok();
    Ok(Loaded {
        cover: found.cover,
        problems: Vec::new(),
        footprint: None,
        unsettled: None,
        runs: None,
        account,
        built: Built { recorded, ..Built::default() },
        inferred: None,
        windows: Vec::new(),
        resets: Vec::new(),
    })
}
