// SPDX-License-Identifier: MIT OR Apache-2.0
//! Record of the changes that a recording makes in tracefs. Each change is on disk before it is made, so that it can be
//! undone however the recording ends.
//!
//! There is one file for the machine, with one line of JSON per change: the old contents of a file, or the name of an
//! instance to be removed. The recorder holds a lock on the file, which the kernel releases when the process ends;
//! contents without a lock were therefore left by a recorder that was killed. Contents from an earlier boot are
//! ignored, because tracefs does not survive a reboot.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Context as _, Error, Result};
use crate::guard;
use crate::tracefs::{self, Tracefs};

const FOLDER: &str = "/run/kprism";
const FILE: &str = "tracefs.journal";

/// A line of the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
enum Entry {
    /// The first line of a recording.
    Begun { pid: u32, boot: String, tracefs: PathBuf },
    /// A file is about to be changed for the first time.
    File { name: String, old: String },
    /// An instance is about to be created.
    Instance { name: String },
    /// The top-level buffer, which was empty, is about to be filled.
    Buffer,
}

/// The result of undoing the changes of a recorder that was killed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undone {
    /// Process ID of that recorder.
    pub pid: u32,
    /// Names of the files restored and the instances removed.
    pub restored: Vec<String>,
    /// Errors of the changes that could not be undone.
    pub failed: Vec<String>,
}

/// The changes of the current recording. Dropping the journal undoes all of them.
#[derive(Debug)]
pub struct Journal {
    /// `None` if nothing is noted.
    file: Option<File>,
    tracefs: Tracefs,
    entries: Vec<Entry>,
}

impl Journal {
    /// Opens the journal for a recording of this process. Changes left by a killed recorder are undone first. Fails if
    /// another recording holds the journal.
    pub fn begin(tracefs: &Tracefs) -> Result<(Self, Option<Undone>)> {
        let (mut file, undone) = open_and_undo()?;
        let entry =
            Entry::Begun { pid: std::process::id(), boot: boot(), tracefs: tracefs.root().to_owned() };
        let path = path();
        file.seek(SeekFrom::End(0)).at("write", &path)?;
        let mut journal = Self { file: Some(file), tracefs: tracefs.clone(), entries: Vec::new() };
        journal.note(entry)?;
        Ok((journal, undone))
    }

    /// A journal that notes nothing, so that nothing is undone: for a guest, which ends with the recording.
    pub fn none(tracefs: &Tracefs) -> Self {
        Self { file: None, tracefs: tracefs.clone(), entries: Vec::new() }
    }

    /// Writes an entry to disk before anything else happens.
    fn note(&mut self, entry: Entry) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let path = path();
        let mut line = serde_json::to_vec(&entry).map_err(std::io::Error::other).at("write", &path)?;
        line.push(b'\n');
        file.write_all(&line).and_then(|()| file.sync_data()).at("write", &path)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Notes the contents of a file, unless the journal has them already.
    fn remember(&mut self, name: &str) -> Result<()> {
        let known = |entry: &Entry| matches!(entry, Entry::File { name: known, .. } if known == name);
        if self.file.is_none() || self.entries.iter().any(known) {
            return Ok(());
        }
        let old = self.tracefs.read(name)?;
        self.note(Entry::File { name: name.to_owned(), old })
    }

    /// Writes values to a file after noting its contents.
    pub fn set(&mut self, name: &str, values: &[&str]) -> Result<()> {
        self.remember(name)?;
        tracefs::write(&self.tracefs.path(name), values)
    }

    /// Creates an instance and returns its folder, relative to tracefs.
    pub fn make_instance(&mut self) -> Result<String> {
        let name = format!("instances/kprism-{}", std::process::id());
        self.note(Entry::Instance { name: name.clone() })?;
        let path = self.tracefs.path(&name);
        fs::create_dir(&path).at("create", &path)?;
        Ok(name)
    }

    /// Notes that the top-level buffer, which is empty now, must be emptied later.
    pub fn use_buffer(&mut self) -> Result<()> {
        self.note(Entry::Buffer)
    }

    /// Undoes all changes. Returns the errors of those that could not be undone.
    pub fn undo(mut self) -> Vec<String> {
        self.put_back()
    }

    fn put_back(&mut self) -> Vec<String> {
        let entries = std::mem::take(&mut self.entries);
        if entries.is_empty() {
            return Vec::new();
        }
        let (_, failed) = undo_entries(&self.tracefs, &entries);
        if failed.is_empty() {
            // If a change could not be undone, the file stays for the next start to try again.
            self.file.iter().for_each(|file| drop(file.set_len(0)));
        }
        failed
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// Undoes the changes of a killed recording, if there is one.
pub fn undo_stale() -> Result<Option<Undone>> {
    // The file is empty after each recording that ended normally.
    if fs::metadata(path()).map_or(0, |file| file.len()) == 0 {
        return Ok(None);
    }
    open_and_undo().map(|(_, undone)| undone)
}

fn path() -> PathBuf {
    Path::new(FOLDER).join(FILE)
}

/// The journal's folder, which the first recording on a machine makes.
pub fn folder() -> &'static Path {
    Path::new(FOLDER)
}

/// Removes the journal and its folder, for a recorder that leaves no file on the machine. They stay while another recording
/// holds the journal, or if it has changes that could not be undone.
pub fn forget() {
    let Ok(file) = OpenOptions::new().read(true).write(true).open(path()) else { return };
    if lock(&file, &path()).is_ok() && file.metadata().is_ok_and(|file| file.len() == 0) {
        fs::remove_file(path()).and_then(|()| fs::remove_dir(FOLDER)).ok();
    }
}

/// Identifier of this boot. Changes made in an earlier boot are gone.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn open_and_undo() -> Result<(File, Option<Undone>)> {
    let (folder, path) = (Path::new(FOLDER), path());
    fs::create_dir_all(folder).at("create", folder)?;
    let open = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
    let mut file = match open {
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return Err(Error::NotRoot { path });
        }
        other => other.at("open", &path)?,
    };
    lock_after_guard(&file, &path)?;
    let mut text = Vec::new();
    file.read_to_end(&mut text).at("read", &path)?;
    let entries = parse(&String::from_utf8_lossy(&text));
    let undone = match entries.first() {
        Some(Entry::Begun { pid, boot: then, tracefs }) if *then == boot() => {
            let (restored, failed) = undo_entries(&Tracefs::at(tracefs), &entries);
            Some(Undone { pid: *pid, restored, failed })
        }
        _ => None,
    };
    if undone.as_ref().is_none_or(|undone| undone.failed.is_empty()) {
        file.set_len(0).at("write", &path)?;
        file.rewind().at("write", &path)?;
    }
    Ok((file, undone))
}

/// Parses the complete entries. A line that was cut short belongs to a change that was not made yet.
fn parse(text: &str) -> Vec<Entry> {
    text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
}

/// Locks the file. If the guard of a killed recorder holds the lock, waits for it, because it will soon be done.
fn lock_after_guard(file: &File, path: &Path) -> Result<()> {
    for _ in 0..1000 {
        match lock(file, path) {
            Err(Error::Recording { pid }) if guard::is_guard(pid) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
    lock(file, path)
}

/// Locks the file for this process with fcntl(2). A command started by a killed recorder does not inherit such a lock.
fn lock(file: &File, path: &Path) -> Result<()> {
    // SAFETY: an all-zero flock is a valid one: the whole file.
    let mut wanted: libc::flock = unsafe { std::mem::zeroed() };
    wanted.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: the structure lives through the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &wanted) } == 0 {
        return Ok(());
    }
    let error = std::io::Error::last_os_error();
    // SAFETY: as above; the kernel fills in who holds it.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &mut wanted) };
    match u32::try_from(wanted.l_pid) {
        Ok(pid) if pid > 0 && wanted.l_type != libc::F_UNLCK as libc::c_short => {
            Err(Error::Recording { pid })
        }
        _ => Err(error).at("lock", path),
    }
}

/// Undoes the changes, newest first. Returns the names restored and the errors.
fn undo_entries(tracefs: &Tracefs, entries: &[Entry]) -> (Vec<String>, Vec<String>) {
    let (mut restored, mut failed) = (Vec::new(), Vec::new());
    let mut judge = |name: &str, result: Result<()>| match result {
        Ok(()) => restored.push(name.to_owned()),
        Err(error) => failed.push(error.to_string()),
    };
    // Tracers are switched off first: patching the kernel is slow while one of them is on.
    for entry in entries {
        if let Entry::Instance { name } = entry {
            for (file, value) in [("tracing_on", "0"), ("current_tracer", "nop")] {
                tracefs::write(&tracefs.path(&tracefs::join(name, file)), &[value]).ok();
            }
        }
    }
    for entry in entries.iter().rev() {
        match entry {
            Entry::Begun { .. } => {}
            Entry::File { name, old } if !tracefs.path(name).exists() => {
                // The instance was not created yet, or was removed with all its files.
                let _ = old;
            }
            Entry::File { name, old } => judge(name, restore(tracefs, name, old)),
            Entry::Instance { name } => {
                let path = tracefs.path(name);
                if path.exists() {
                    judge(name, remove_instance(&path));
                }
            }
            Entry::Buffer => judge("trace", tracefs::write(&tracefs.path("trace"), &[])),
        }
    }
    (restored, failed)
}

fn restore(tracefs: &Tracefs, name: &str, old: &str) -> Result<()> {
    if tracefs.read(name).is_ok_and(|now| now == old) {
        return Ok(());
    }
    let values = values(name, old);
    tracefs::write(&tracefs.path(name), &values)
}

/// The values to write to a file of tracefs so that it reads as `text`.
fn values<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    // In a list of functions, brackets contain a function's module. In other files they mark the current choice.
    let is_list = name.starts_with("set_");
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    // The kernel's texts for an empty list: "#### all functions enabled ####", "no pid".
    let lines = lines.filter(|line| !line.starts_with('#') && *line != "no pid");
    lines
        .map(|line| {
            if is_list {
                return line.split_whitespace().next().unwrap_or("");
            }
            if let Some(chosen) = tracefs::bracketed(line) {
                return chosen;
            }
            match line.split_once("(expanded: ") {
                // A buffer that still has its minimum size, with the size to which it grows on first use.
                Some((_, size)) => size.trim_end_matches(')'),
                None => line,
            }
        })
        .collect()
}

/// Removes an instance. It is busy while one of its files is open, which for a killed recorder can last a moment.
fn remove_instance(path: &Path) -> Result<()> {
    for _ in 0..200 {
        match fs::remove_dir(path) {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other.at("remove", path),
        }
    }
    fs::remove_dir(path).at("remove", path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_to_write_to_put_a_file_back() {
        let cases: [(&str, &str, &[&str]); 9] = [
            ("tracing_thresh", "0\n", &["0"]),
            ("trace_clock", "[local] global counter uptime\n", &["local"]),
            ("trace_clock", "local global [mono] boot\n", &["mono"]),
            ("trace_clock", "local [x86-tsc]\n", &["x86-tsc"]),
            ("set_graph_function", "#### all functions enabled ####\n", &[]),
            ("set_ftrace_pid", "no pid\n", &[]),
            ("set_ftrace_pid", "130\n147\n", &["130", "147"]),
            ("buffer_size_kb", "7 (expanded: 1408)\n", &["1408"]),
            ("set_ftrace_filter", "vfs_read\next4_sync_file [ext4]\n", &["vfs_read", "ext4_sync_file"]),
        ];
        for (name, text, expected) in cases {
            assert_eq!(values(name, text), expected, "{name}: {text:?}");
        }
    }

    #[test]
    fn a_journal_cut_short_gives_its_whole_lines() {
        let begun = Entry::Begun { pid: 7, boot: "b".into(), tracefs: "/t".into() };
        let file = Entry::File { name: "tracing_thresh".into(), old: "0\n".into() };
        let text: String = [&begun, &file].map(|entry| serde_json::to_string(entry).unwrap() + "\n").concat();
        for end in 0..=text.len() {
            let found = parse(&text[..end]);
            assert!(found.len() <= 2 && [begun.clone(), file.clone()].starts_with(&found), "{end}");
        }
        assert_eq!(parse(&text).len(), 2);
        assert!(parse("garbage\n").is_empty());
    }
}
