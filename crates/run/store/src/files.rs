// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which files of a recording are there.
//!
//! In: a run's folder and its manifest. Out: the lengths of what was recorded, for the manifest; and, when a manifest is
//! read, the files that are missing, shorter or longer than recorded. Tables show nothing of that: they are kept from before. So
//! a run that lost a stream, or got another's, would look as whole as it was.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use kprism_manifest::{Instrument, Manifest, NOT_ENDED, PLACES};
use serde::Deserialize;

use crate::Run;

/// Folders of what was recorded. Tables are made from it, and can be made again.
const RECORDED: [&str; 3] = ["streams", "symbols", "tests"];

/// Enters the files that are in the folder. A file that was listed before stays listed, with its longest length: it may
/// have been lost since. One that was found to be longer than recorded stays so, whoever writes the manifest again. While a recording goes on its files are not listed.
pub(crate) fn list(run: &Run, manifest: &Manifest) -> BTreeMap<String, u64> {
    let mut files = manifest.files.clone();
    if manifest.stopped.as_deref() == Some(NOT_ENDED) {
        return files;
    }
    for folder in RECORDED {
        add(&run.dir().join(folder), folder, &mut files);
    }
    for path in manifest.grown.keys() {
        if let (Some(now), Some(recorded)) = (files.get_mut(path), manifest.files.get(path)) {
            *now = *recorded;
        }
    }
    files
}

fn add(folder: &Path, name: &str, files: &mut BTreeMap<String, u64>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (Ok(kind), Some(own)) = (entry.file_type(), entry.file_name().to_str().map(str::to_owned)) else {
            continue;
        };
        let path = format!("{name}/{own}");
        // Parts of the sideband are merged into one file; others get their name when they are whole.
        let is_part =
            own.starts_with('.') || [".side.jsonl", ".part", ".new"].iter().any(|end| own.ends_with(end));
        if kind.is_dir() {
            add(&entry.path(), &path, files);
        } else if kind.is_file()
            && !is_part
            && let Ok(there) = entry.metadata()
        {
            let length = files.entry(path).or_default();
            *length = there.len().max(*length);
        }
    }
}

/// The files that are missing, shorter than recorded, or not to be read by this user, each with what is there.
pub(crate) fn absent(run: &Run, manifest: &Manifest) -> Vec<String> {
    if manifest.files.is_empty() {
        let mut there = BTreeMap::new();
        RECORDED.iter().for_each(|folder| add(&run.dir().join(folder), folder, &mut there));
        let closed = there.keys().filter_map(|path| closed(run, path));
        return absent_of_older(run, manifest).into_iter().chain(closed).collect();
    }
    let lacks = |(path, length): (&String, &u64)| match run.dir().join(path).symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Some(format!("{path}: missing")),
        Err(error) => Some(format!("{path}: {error}")),
        Ok(there) if there.is_file() && there.len() < *length => {
            Some(format!("{path}: {} of {length} bytes", there.len()))
        }
        Ok(there) if there.is_file() => closed(run, path),
        Ok(_) => None,
    };
    manifest.files.iter().filter_map(lacks).collect()
}

/// The files that are longer than recorded, with what is there: something was appended, or they are another run's.
pub(crate) fn grown(run: &Run, manifest: &Manifest) -> BTreeMap<String, String> {
    if manifest.stopped.as_deref() == Some(NOT_ENDED) {
        return BTreeMap::new();
    }
    let is_longer = |(path, length): (&String, &u64)| {
        let there = run.dir().join(path).symlink_metadata().ok().filter(fs::Metadata::is_file)?;
        let text = || (path.clone(), format!("{path}: {} of {length} bytes", there.len()));
        (there.len() > *length).then(text)
    };
    manifest.files.iter().filter_map(is_longer).collect()
}

/// True if nobody knows which files belong to the recording: it has ended and was read, and its manifest lists none.
pub(crate) fn is_unlisted(run: &Run, manifest: &Manifest) -> bool {
    let was_read = run.has_tables() || !manifest.accounts.is_empty();
    manifest.files.is_empty() && was_read && manifest.stopped.as_deref() != Some(NOT_ENDED)
}

/// Why a file cannot be read, most often that it is another user's; `None` if it can. Readers take some files for absent
/// then, such as programs with symbols.
fn closed(run: &Run, path: &str) -> Option<String> {
    let error = fs::File::open(run.dir().join(path)).err()?;
    Some(format!("{path}: cannot be read: {error}"))
}

/// The same of a run whose manifest does not list its files: what the instruments cannot be without.
fn absent_of_older(run: &Run, manifest: &Manifest) -> Vec<String> {
    let decoded = run.has_tables() || !manifest.accounts.is_empty();
    if !decoded {
        // What was never read has no result that could look whole.
        return Vec::new();
    }
    let mut instruments = manifest.instruments.clone();
    instruments.extend(manifest.accounts.keys().copied());
    let needs = |instrument: Instrument| match instrument {
        Instrument::Flow => run.code_dict(),
        Instrument::Boot => run.boot_facts(),
        Instrument::Durations if run.has_files_of(Instrument::Durations) => run.streams(),
        Instrument::Durations => run.ftrace(),
        Instrument::Tlb => run.tlb(),
        Instrument::Probe => run.probes(),
        Instrument::Cover => run.gcov().folder().to_path_buf(),
    };
    let shown = |path: &Path| format!("{}: missing", path.strip_prefix(run.dir()).unwrap_or(path).display());
    let missing = |instrument: &Instrument| Some(needs(*instrument)).filter(|path| !path.exists());
    let mut absent: Vec<String> = match run.streams().exists() {
        true => instruments.iter().filter_map(missing).map(|path| shown(&path)).collect(),
        false => vec!["streams: missing".to_owned()],
    };
    absent.sort();
    absent.dedup();
    if let Some(counts) =
        fs::read(run.counts()).ok().and_then(|text| serde_json::from_slice::<Counts>(&text).ok())
    {
        let ran = (0..).zip(&counts.vcpus).filter(|(_, cpu)| cpu.instructions.is_some_and(|n| n > 0));
        let lost = ran.map(|(cpu, _)| run.pt(cpu)).filter(|path| !path.exists());
        absent.extend(lost.take(PLACES).map(|path| shown(&path)));
    }
    absent
}

/// The recorder's counts of each CPU of a flow.
#[derive(Deserialize)]
struct Counts {
    #[serde(default)]
    vcpus: Vec<Cpu>,
}

#[derive(Deserialize)]
struct Cpu {
    instructions: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RunKind;

    fn run() -> (tempfile::TempDir, Run) {
        let folder = tempfile::tempdir().unwrap();
        let run = Run::create(&folder.path().join("run")).unwrap();
        (folder, run)
    }

    #[test]
    fn a_file_that_was_listed_is_missed() {
        let (_folder, run) = run();
        fs::write(run.pt(0), [7; 40]).unwrap();
        fs::write(run.streams().join("cpu0.side.jsonl"), "").unwrap();
        let mut manifest = Manifest::new(RunKind::Lab, 1);
        manifest.stopped = Some(NOT_ENDED.into());
        run.write_manifest(&manifest).unwrap();
        assert!(run.manifest().unwrap().files.is_empty(), "still being recorded");
        manifest.stopped = None;
        run.write_manifest(&manifest).unwrap();
        let read = run.manifest().unwrap();
        assert_eq!(read.files, BTreeMap::from([("streams/cpu0.pt".to_owned(), 40)]));
        assert_eq!(read.absent, [""; 0]);
        fs::write(run.pt(0), [7; 39]).unwrap();
        assert_eq!(run.manifest().unwrap().absent, ["streams/cpu0.pt: 39 of 40 bytes"]);
        fs::remove_dir_all(run.streams()).unwrap();
        // Written again, as by a reader that enters its account: it stays known.
        run.write_manifest(&run.manifest().unwrap()).unwrap();
        assert_eq!(run.manifest().unwrap().absent, ["streams/cpu0.pt: missing"]);
    }

    #[test]
    fn a_file_that_grew_is_told_whoever_writes_the_manifest_again() {
        let (_folder, run) = run();
        fs::write(run.pt(0), [7; 40]).unwrap();
        run.write_manifest(&Manifest::new(RunKind::Lab, 1)).unwrap();
        assert!(run.manifest().unwrap().grown.is_empty());
        fs::write(run.pt(0), [7; 41]).unwrap();
        for _ in 0..2 {
            let read = run.manifest().unwrap();
            let told: Vec<&str> = read.grown.values().map(String::as_str).collect();
            assert_eq!(told, ["streams/cpu0.pt: 41 of 40 bytes"]);
            run.write_manifest(&read).unwrap();
        }
        // Its own recorder knows what it wrote.
        run.write_manifest(&run.own_manifest().unwrap()).unwrap();
        assert!(run.manifest().unwrap().grown.is_empty());
    }

    #[test]
    fn a_list_of_files_that_was_taken_out_is_missed() {
        let (_folder, run) = run();
        fs::write(run.code_dict(), "").unwrap();
        let text = r#"{"version": 1, "kind": "lab", "vcpus": 1, "accounts": {"flow": []}}"#;
        fs::write(run.manifest_path(), text).unwrap();
        let read = run.manifest().unwrap();
        assert!(read.unlisted && read.absent.is_empty());
        run.write_manifest(&read).unwrap();
        assert!(!run.manifest().unwrap().unlisted);
    }

    #[test]
    fn an_older_run_cannot_be_without_its_streams() {
        let (_folder, run) = run();
        let text = r#"{"version": 1, "kind": "lab", "vcpus": 2, "accounts": {"flow": []}}"#;
        fs::write(run.manifest_path(), text).unwrap();
        assert_eq!(run.manifest().unwrap().absent, ["streams/code.dict: missing"]);
        fs::write(run.code_dict(), "").unwrap();
        fs::write(run.pt(0), "").unwrap();
        fs::write(run.counts(), r#"{"vcpus": [{"instructions": 1}, {"instructions": 2}, {}]}"#).unwrap();
        assert_eq!(run.manifest().unwrap().absent, ["streams/cpu1.pt: missing"]);
        fs::remove_dir_all(run.streams()).unwrap();
        assert_eq!(run.manifest().unwrap().absent, ["streams: missing"]);
    }
}
