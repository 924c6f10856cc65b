// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the files of the modules that the user built and that ran in the guest, so that their source lines come with the run.
//!
//! Input: a guest, the job that ran in it, the symbols of the run. Output: `symbols/ko/NAME.ko`, and entries of
//! [`KernelModule`] in the manifest. A module is one that was put into the guest by its file or from a tree, or one that
//! the command loaded from a shared folder: a file of the folder has its name, and its symbols came with the command. Views check by the
//! functions' places that a file is of the build that ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use kprism_image::BuildId;
use kprism_image::sideband::{self, Record};
use kprism_lab::{Job, Prepared, Share, module_name};
use kprism_store::{KernelModule, Manifest, Run};

/// Size above which a module is not kept, in bytes: that of debug files of programs.
const MAX_KEPT: u64 = 64 << 20;

/// Size of all modules above which no more are kept, in bytes.
const MAX_ALL: u64 = 256 << 20;

/// Keeps the modules that ran. What was not kept is noted in the manifest, with the reason. `begun`: the time before the shared folders
/// were copied into the guest.
pub(crate) fn keep(run: &Run, prepared: &Prepared, job: &Job, begun: SystemTime, manifest: &mut Manifest) {
    let Some(kernel) = &mut manifest.kernel else { return };
    let shared = shared(&job.shares);
    if prepared.module_files().is_empty() && shared.is_empty() {
        return;
    }
    let ran = modules_of(&run.kallsyms());
    let mut kept = Kept { run, begun, bytes: 0, notes: Vec::new() };
    for module in prepared.module_files().iter().filter(|module| ran.contains(&module.name)) {
        match module.contents() {
            Ok(bytes) => kept.write(&module.name, &module.file, &bytes),
            Err(error) => kept.notes.push(format!("{error}: the run does not keep it")),
        }
    }
    let mut loaded = BTreeSet::new();
    if !shared.is_empty() {
        loaded = ran;
        loaded.extend(passing(&run.sideband_text().unwrap_or_default()));
        // The lab knows its own best.
        let before = modules_of(&prepared.snapshot_folder().join("kallsyms"));
        loaded.retain(|name| !before.contains(name) && kernel.modules.iter().all(|m| m.name != *name));
    }
    for (name, files) in shared.into_iter().filter(|(name, _)| loaded.contains(name)) {
        if let Some((file, bytes)) = kept.only(&name, files) {
            kept.write(&name, &file, &bytes);
            let build_id = BuildId::of_elf(&bytes).map(|id| id.to_string()).unwrap_or_default();
            let file = std::path::absolute(&file).unwrap_or(file);
            kernel.modules.push(KernelModule { name, file, build_id });
        }
    }
    manifest.notes.extend(kept.notes);
}

/// Names of the modules that have symbols in a text as /proc/kallsyms.
fn modules_of(kallsyms: &Path) -> BTreeSet<String> {
    // Without symbols no function of a module is known by name, and there is nothing to find lines for.
    let text = fs::read(kallsyms).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let module = |line: &str| Some(line.strip_suffix(']')?.rsplit_once('[')?.1.to_owned());
    text.lines().filter_map(module).collect()
}

/// Names of the modules whose functions came while it was recorded: those of a module that is gone again are in no other list.
fn passing(sideband: &[u8]) -> BTreeSet<String> {
    // Most records are task switches, which need not be parsed.
    let lines = sideband.split_inclusive(|&byte| byte == b'\n');
    let kind = b"\"ksymbol\"";
    let symbols = lines.filter(|line| line.windows(kind.len()).any(|part| part == kind));
    let (records, _) = sideband::read(&symbols.collect::<Vec<_>>().concat());
    let module = |record: &Record| match record {
        Record::Ksymbol(symbol) => Some(symbol.module.strip_prefix('[')?.strip_suffix(']')?.to_owned()),
        _ => None,
    };
    records.iter().filter_map(module).collect()
}

/// The modules' files in shared folders, by the name of the module. Links are not followed.
fn shared(shares: &[Share]) -> BTreeMap<String, BTreeSet<PathBuf>> {
    let mut found: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    let mut paths: Vec<PathBuf> = shares.iter().map(|share| share.host.clone()).collect();
    while let Some(path) = paths.pop() {
        // What cannot be read now is looked for in vain, as if it were not there.
        let Ok(facts) = fs::symlink_metadata(&path) else { continue };
        let is_shared_link = facts.is_symlink() && shares.iter().any(|share| share.host == path);
        if facts.is_dir() || is_shared_link && path.is_dir() {
            paths.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        } else if (facts.is_file() || is_shared_link) && path.extension().is_some_and(|end| end == "ko") {
            found.entry(module_name(&path)).or_default().insert(path);
        }
    }
    found
}

/// The files that a run keeps.
struct Kept<'r> {
    run: &'r Run,
    /// Begin of the run: a shared file that was changed later need not be the one that ran.
    begun: SystemTime,
    /// Size of all that was kept.
    bytes: u64,
    /// Files that were not kept, each with the reason.
    notes: Vec<String>,
}

impl Kept<'_> {
    /// The one of several files that is this module: they have the same contents, or it is not known which one ran.
    fn only(&mut self, name: &str, files: BTreeSet<PathBuf>) -> Option<(PathBuf, Vec<u8>)> {
        let mut first: Option<(PathBuf, Vec<u8>)> = None;
        for file in files {
            let changed = fs::metadata(&file).and_then(|facts| facts.modified());
            if changed.is_ok_and(|changed| changed > self.begun) {
                let file = file.display();
                self.notes
                    .push(format!("{file}: the run does not keep it: it was changed after the run began"));
                return None;
            }
            let bytes = match read(&file) {
                Ok(bytes) => bytes,
                Err(why) => {
                    self.notes.push(format!("{}: the run does not keep it: {why}", file.display()));
                    continue;
                }
            };
            match &first {
                None => first = Some((file, bytes)),
                Some((_, other)) if *other == bytes => {}
                Some((other, _)) => {
                    self.notes.push(format!(
                        "{} and {} differ, and both are a module {name}: the run keeps neither; name the one that ran with \
                         --module-file for its source lines",
                        other.display(),
                        file.display()
                    ));
                    return None;
                }
            }
        }
        first
    }

    fn write(&mut self, name: &str, file: &Path, bytes: &[u8]) {
        let size = bytes.len() as u64;
        if size > MAX_KEPT || self.bytes.saturating_add(size) > MAX_ALL {
            self.notes.push(format!("{}: the run does not keep it: {}", file.display(), too_large(size)));
            return;
        }
        let to = self.run.module_file(name);
        let folder = to.parent().map_or(Ok(()), fs::create_dir_all);
        match folder.and_then(|()| fs::write(&to, bytes)) {
            Ok(()) => self.bytes += size,
            Err(error) => {
                // A part of it would be taken for a damaged one.
                let _ = fs::remove_file(&to);
                self.notes.push(format!("{}: the run does not keep it: {error}", file.display()));
            }
        }
    }
}

/// The reason not to keep a module of this size.
fn too_large(size: u64) -> String {
    format!(
        "it has {} MiB, and modules of up to {} MiB each and {} MiB together are kept",
        size >> 20,
        MAX_KEPT >> 20,
        MAX_ALL >> 20
    )
}

/// A module's file, if it can be one.
fn read(file: &Path) -> Result<Vec<u8>, String> {
    let size = fs::metadata(file).map_err(|error| error.to_string())?.len();
    if size > MAX_KEPT {
        return Err(too_large(size));
    }
    let bytes = fs::read(file).map_err(|error| error.to_string())?;
    match bytes.starts_with(b"\x7fELF") {
        true => Ok(bytes),
        false => Err("expected an ELF file".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_module_that_was_loaded_from_a_shared_folder_is_found_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let kallsyms = folder.path().join("kallsyms");
        fs::write(&kallsyms, "ffffffff81000000 T _text\nffffffffc0000000 t work\t[my_mod]\n").unwrap();
        let ran = modules_of(&kallsyms);
        assert_eq!(ran.iter().collect::<Vec<_>>(), ["my_mod"]);
        assert!(modules_of(&folder.path().join("absent")).is_empty());
        let sideband = concat!(
            r#"{"cpu":0,"end":3221225536,"gone":false,"k":"ksymbol","module":"[gone]","name":"f","start":3221225472,"t":5}"#,
            "\n",
            r#"{"k":"fork","t":2,"cpu":0,"pid":6,"tgid":6,"ppid":5}"#,
            "\n"
        );
        assert_eq!(passing(sideband.as_bytes()), BTreeSet::from(["gone".to_owned()]));

        let share = folder.path().join("share");
        fs::create_dir_all(share.join("one")).unwrap();
        let files = [share.join("one/my-mod.ko"), share.join("my-mod.ko")];
        for file in files.iter().chain([&share.join("other.ko"), &share.join("my-mod.o")]) {
            fs::write(file, b"\x7fELF the same").unwrap();
        }
        let find = |host: &Path| {
            let shares = [Share { host: host.to_owned(), guest: "/share".to_owned() }];
            shared(&shares).remove("my_mod").unwrap_or_default()
        };
        let found = find(&share);
        assert_eq!(found, BTreeSet::from(files.clone()));
        assert_eq!(find(&files[1]), BTreeSet::from([files[1].clone()]));

        let run = Run::create(&folder.path().join("run")).unwrap();
        let mut kept = Kept {
            run: &run,
            begun: SystemTime::now() + Duration::from_secs(3600),
            bytes: 0,
            notes: Vec::new(),
        };
        let (file, bytes) = kept.only("my_mod", found.clone()).unwrap();
        kept.write("my_mod", &file, &bytes);
        assert_eq!(fs::read(run.module_file("my_mod")).unwrap(), b"\x7fELF the same");
        assert!(kept.notes.is_empty() && kept.bytes == 13);

        // Two builds: which of them ran is not known.
        fs::write(&files[0], b"\x7fELF another").unwrap();
        assert!(kept.only("my_mod", found).is_none());
        assert!(kept.notes[0].contains("the run keeps neither"), "{:?}", kept.notes);

        kept.bytes = MAX_ALL;
        kept.write("more", &file, &bytes);
        assert!(kept.notes[1].contains("256 MiB together") && !run.module_file("more").exists());
    }
}
