// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many files put into place as one. Input: files written elsewhere in the lake, and where they belong. Output: all of
//! them there, or, after a crash, all of them once the next command has looked into the journal.
//!
//! The journal is written when everything is on the disk. So a crash before it leaves nothing, and after it the work is
//! done again from the journal: renames and removals may be repeated.

use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use crate::layout::{Lake, names};

/// Renames and removals that belong together. Paths are relative to the lake.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Journal {
    /// From a staging folder to the file's place; done first.
    pub data: Vec<(PathBuf, PathBuf)>,
    /// The same for files of `manifest`; done after all others.
    pub manifest: Vec<(PathBuf, PathBuf)>,
    /// Files that no longer count; removed last.
    pub remove: Vec<PathBuf>,
}

/// The right to change the lake's files. Held for renames only, not while tables are written.
pub struct Commit<'a> {
    lake: &'a Lake,
    _lock: File,
}

/// Takes a lock of the lake, waiting for it.
fn wait(lake: &Lake, name: &str) -> Result<File> {
    let file = open(lake, name)?;
    file.lock().with_context(|| lake.own().join(name).display().to_string())?;
    Ok(file)
}

fn open(lake: &Lake, name: &str) -> Result<File> {
    let path = lake.own().join(name);
    let file = File::options().create(true).truncate(false).read(true).write(true).open(&path);
    file.with_context(|| path.display().to_string())
}

/// Opened for reading alone if the lake is on a read-only mount: then nobody writes to it here.
fn shared(lake: &Lake, name: &str) -> Result<Option<File>> {
    let path = lake.own().join(name);
    let file = match File::open(&path) {
        Err(why) if why.kind() == ErrorKind::NotFound => match open(lake, name) {
            Ok(file) => file,
            Err(_) => return Ok(None),
        },
        file => file.with_context(|| path.display().to_string())?,
    };
    file.lock_shared().with_context(|| path.display().to_string())?;
    Ok(Some(file))
}

/// Keeps files from being removed until it is dropped.
pub struct Reader {
    lock: Option<File>,
}

impl Reader {
    /// Lets a program that takes the place of this process hold the lock on.
    ///
    /// # Errors
    /// The system refuses.
    pub fn survive(&self) -> Result<()> {
        use std::os::fd::AsRawFd as _;
        if let Some(lock) = &self.lock {
            // SAFETY: the descriptor is open, and FD_CLOEXEC is its only flag.
            let set = unsafe { libc::fcntl(lock.as_raw_fd(), libc::F_SETFD, 0) };
            if set < 0 {
                return Err(std::io::Error::last_os_error()).context("a lock");
            }
        }
        Ok(())
    }
}

/// Lists files while none is renamed, and keeps them until the reader is dropped.
///
/// # Errors
/// The lake cannot be read.
pub fn reading<T>(lake: &Lake, list: impl FnOnce() -> Result<T>) -> Result<(Reader, T)> {
    let commit = shared(lake, "commit.lock")?;
    let reader = Reader { lock: shared(lake, "readers.lock")? };
    let listed = list()?;
    drop(commit);
    Ok((reader, listed))
}

/// The right to merge or replace runs: one at a time.
pub fn exclusive(lake: &Lake) -> Result<File> {
    let file = open(lake, "compact.lock")?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "{}: another kprism is merging or replacing runs; try again when it is done",
                lake.root().display()
            )
        }
        Err(TryLockError::Error(why)) => {
            Err(why).context(lake.own().join("compact.lock").display().to_string())
        }
    }
}

impl<'a> Commit<'a> {
    /// Waits for the right to change files, ends what a killed process left half done, and clears what it left unfinished.
    ///
    /// # Errors
    /// The lake cannot be written.
    pub fn begin(lake: &'a Lake) -> Result<Self> {
        let commit = Commit { lake, _lock: wait(lake, "commit.lock")? };
        commit.recover()?;
        commit.sweep()?;
        Ok(commit)
    }

    fn journal(&self) -> PathBuf {
        self.lake.own().join("journal.json")
    }

    /// Puts everything into place.
    ///
    /// # Errors
    /// A file cannot be renamed. What is missing is done by the next command.
    pub fn put(&self, journal: &Journal) -> Result<()> {
        for (_, to) in journal.data.iter().chain(&journal.manifest) {
            let folder = self.lake.root().join(to).parent().map(Path::to_path_buf).unwrap_or_default();
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        }
        let bytes = serde_json::to_vec(journal)?;
        write_synced(&self.journal(), &bytes)?;
        self.apply(journal)
    }

    fn apply(&self, journal: &Journal) -> Result<()> {
        for renames in [&journal.data, &journal.manifest] {
            for (from, to) in renames {
                let (from, to) = (self.lake.root().join(from), self.lake.root().join(to));
                match fs::rename(&from, &to) {
                    // Done before the crash.
                    Err(why) if why.kind() == ErrorKind::NotFound && to.exists() => {}
                    renamed => renamed.with_context(|| to.display().to_string())?,
                }
            }
            let mut folders: Vec<_> = renames.iter().filter_map(|(_, to)| to.parent()).collect();
            folders.sort();
            folders.dedup();
            folders.into_iter().try_for_each(|folder| sync(&self.lake.root().join(folder)))?;
        }
        if !journal.remove.is_empty() {
            // A reader that has listed them may still open them.
            drop(wait(self.lake, "readers.lock")?);
        }
        for file in &journal.remove {
            remove(&self.lake.root().join(file))?;
        }
        remove(&self.journal())?;
        sync(&self.lake.own())
    }

    /// Ends what the journal holds.
    fn recover(&self) -> Result<()> {
        let path = self.journal();
        let bytes = match fs::read(&path) {
            Err(why) if why.kind() == ErrorKind::NotFound => return Ok(()),
            bytes => bytes.with_context(|| path.display().to_string())?,
        };
        let journal: Journal = serde_json::from_slice(&bytes).with_context(|| path.display().to_string())?;
        let leaves = |file: &PathBuf| {
            file.is_absolute() || file.components().any(|part| part == std::path::Component::ParentDir)
        };
        let renames = journal.data.iter().chain(&journal.manifest).flat_map(|(from, to)| [from, to]);
        if let Some(file) = renames.chain(&journal.remove).find(|file| leaves(file)) {
            bail!("{}: {} is not in the lake", path.display(), file.display());
        }
        self.apply(&journal)
    }

    /// Removes folders of files that were being written by a process that is gone.
    fn sweep(&self) -> Result<()> {
        for name in names(&self.lake.staging())? {
            let folder = self.lake.staging().join(name);
            let held = File::open(folder.join(OWNER)).is_ok_and(|file| file.try_lock().is_err());
            if !held {
                fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
            }
        }
        Ok(())
    }

    /// A new folder for files being written, removed when dropped.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn stage(&self, name: &str) -> Result<Staging> {
        let (mut number, pid) = (0, std::process::id());
        let relative = loop {
            let relative = PathBuf::from(format!("_lake/staging/{name}.{pid}.{number}"));
            match fs::create_dir(self.lake.root().join(&relative)) {
                Err(why) if why.kind() == ErrorKind::AlreadyExists => number += 1,
                made => break made.map(|()| relative).context("a folder for files being written")?,
            }
        };
        let folder = self.lake.root().join(&relative);
        let owner = File::create(folder.join(OWNER)).with_context(|| folder.display().to_string())?;
        owner.lock().with_context(|| folder.display().to_string())?;
        Ok(Staging { folder, relative, _owner: owner })
    }

    /// A number that no part of the lake had before.
    ///
    /// # Errors
    /// The counter cannot be written.
    pub fn next_part(&self) -> Result<i64> {
        let path = self.lake.own().join("part");
        let last = match fs::read_to_string(&path) {
            Err(why) if why.kind() == ErrorKind::NotFound => 0,
            text => {
                let text = text.with_context(|| path.display().to_string())?;
                text.trim().parse::<i64>().with_context(|| path.display().to_string())?
            }
        };
        write_synced(&path, (last + 1).to_string().as_bytes())?;
        Ok(last + 1)
    }
}

/// The file whose lock says that the writer lives.
const OWNER: &str = "owner";

/// A folder of files being written.
pub struct Staging {
    /// Its path.
    pub folder: PathBuf,
    /// The same relative to the lake.
    pub relative: PathBuf,
    _owner: File,
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(why) if why.kind() != ErrorKind::NotFound => Err(why).with_context(|| path.display().to_string()),
        _ => Ok(()),
    }
}

fn sync(folder: &Path) -> Result<()> {
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(|| folder.display().to_string())
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("new");
    let written = File::create(&part)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&part, path));
    if written.is_err() {
        let _ = fs::remove_file(&part);
    }
    written.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crash after any number of the steps: the next command does the rest.
    #[test]
    fn a_journal_is_ended_after_any_step() {
        for crash in 0..=4 {
            let dir = tempfile::tempdir().unwrap();
            let lake = Lake::create(dir.path()).unwrap();
            let file = |path: &str| dir.path().join(path);
            let journal = Journal {
                data: vec![
                    ("_lake/staging/x/a".into(), "a/1".into()),
                    ("_lake/staging/x/b".into(), "b/1".into()),
                ],
                manifest: vec![("_lake/staging/x/m".into(), "manifest/1".into())],
                remove: vec!["a/0".into()],
            };
            for (path, text) in [
                ("_lake/staging/x/a", "A"),
                ("_lake/staging/x/b", "B"),
                ("_lake/staging/x/m", "M"),
                ("a/0", "old"),
            ] {
                fs::create_dir_all(file(path).parent().unwrap()).unwrap();
                fs::write(file(path), text).unwrap();
            }
            fs::create_dir_all(file("b")).unwrap();
            fs::create_dir_all(file("manifest")).unwrap();
            fs::write(file("_lake/journal.json"), serde_json::to_vec(&journal).unwrap()).unwrap();
            for (from, to) in journal.data.iter().chain(&journal.manifest).take(crash) {
                fs::rename(dir.path().join(from), dir.path().join(to)).unwrap();
            }
            if crash == 4 {
                fs::remove_file(file("a/0")).unwrap();
            }
            drop(Commit::begin(&lake).unwrap());
            for (path, text) in [("a/1", "A"), ("b/1", "B"), ("manifest/1", "M")] {
                assert_eq!(fs::read_to_string(file(path)).unwrap(), text);
            }
            assert!(!file("a/0").exists() && !file("_lake/journal.json").exists());
            assert_eq!(names(&lake.staging()).unwrap(), Vec::<String>::new());
        }
    }

    #[test]
    fn a_journal_that_leaves_the_lake_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let lake = Lake::create(dir.path()).unwrap();
        let journal = Journal { remove: vec!["../x".into()], ..Journal::default() };
        fs::write(dir.path().join("_lake/journal.json"), serde_json::to_vec(&journal).unwrap()).unwrap();
        let error = Commit::begin(&lake).err().unwrap().to_string();
        assert!(error.contains("../x is not in the lake"), "{error}");
    }
}
