// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cache folder. It holds everything that can be made again from apt and this program.
//!
//! An entry is a folder `KIND/KEY`, whose key is derived from its content. It is built in `KIND/.KEY.new` under a lock
//! and then renamed. So a reader sees all of it or nothing, and two builders do not do the work twice.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::error::{Context, Error, Result};

/// Interval at which a taken lock is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// The cache's folder, which may not exist yet: `$XDG_CACHE_HOME/kprism`, or `~/.cache/kprism`.
pub(crate) fn base() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(base.join("kprism"))
}

/// The cache folder.
#[derive(Debug, Clone)]
pub struct Cache(PathBuf);

impl Cache {
    /// Opens `$XDG_CACHE_HOME/kprism`, or `~/.cache/kprism`. Creates it if it is missing.
    pub fn open() -> Result<Self> {
        let base = base().ok_or_else(|| {
            Error::Option("neither XDG_CACHE_HOME nor HOME names a folder: set one, for the cache".into())
        })?;
        Self::at(base)
    }

    /// Opens a cache in `folder`. Creates it if it is missing.
    pub fn at(folder: PathBuf) -> Result<Self> {
        fs::create_dir_all(&folder).at("create", &folder)?;
        Ok(Self(folder))
    }

    /// The cache's folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// Returns the entry `kind/key`. If it is missing, `build` builds it in an empty folder. `need_mib` is the disk
    /// space that building takes.
    pub fn entry(
        &self,
        kind: &str,
        key: &str,
        need_mib: u64,
        build: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        let folder = self.0.join(kind);
        let place = folder.join(key);
        if place.exists() {
            return Ok(place);
        }
        fs::create_dir_all(&folder).at("create", &folder)?;
        let _lock = Lock::take(&folder.join(format!(".{key}.lock")))?;
        if place.exists() {
            return Ok(place);
        }
        require_space(&folder, need_mib)?;
        let staging = folder.join(format!(".{key}.new"));
        remove(&staging)?;
        fs::create_dir(&staging).at("create", &staging)?;
        let built = build(&staging).and_then(|()| fs::rename(&staging, &place).at("rename", &staging));
        if let Err(error) = built {
            remove(&staging).ok();
            return Err(match error {
                Error::Full { path } => Error::NoSpace { path, need_mib },
                other => other,
            });
        }
        Ok(place)
    }

    /// Returns a remembered answer, the file `kind/name.current`. If it is missing, or `again` is true, `find` computes
    /// it.
    pub fn remembered(
        &self,
        kind: &str,
        name: &str,
        again: bool,
        find: impl FnOnce() -> Result<String>,
    ) -> Result<String> {
        let folder = self.0.join(kind);
        let file = folder.join(format!("{name}.current"));
        if let (false, Ok(text)) = (again, fs::read_to_string(&file)) {
            return Ok(text);
        }
        fs::create_dir_all(&folder).at("create", &folder)?;
        let _lock = Lock::take(&folder.join(format!(".{name}.current.lock")))?;
        if let (false, Ok(text)) = (again, fs::read_to_string(&file)) {
            return Ok(text);
        }
        let text = find()?;
        let mut staging = tempfile::Builder::new()
            .prefix(&format!(".{name}.current."))
            .permissions(fs::Permissions::from_mode(0o644))
            .tempfile_in(&folder)
            .at("create a file in", &folder)?;
        io::Write::write_all(&mut staging, text.as_bytes()).at("write", staging.path())?;
        staging.persist(&file).map_err(|error| error.error).at("write", &file)?;
        Ok(text)
    }

    /// Marks the entry as just used, and removes all but the `keep` most recently used of its kind. `$KPRISM_CACHE_KEEP` is a number for
    /// `used` alone, if it is more: so what one program needs stays when another one, which does not set it, runs.
    pub fn keep_recent(&self, kind: &str, used: &Path, keep: usize) {
        let asked = std::env::var("KPRISM_CACHE_KEEP").ok().and_then(|number| number.parse().ok());
        self.keep_number(kind, used, keep, asked);
    }

    /// As `keep_recent`, with what is asked for.
    fn keep_number(&self, kind: &str, used: &Path, keep: usize, asked: Option<usize>) {
        // The file first: it changes the folder's time.
        if let Some(asked) = asked.filter(|asked| *asked != kept_among(used)) {
            // By a rename: who reads it meanwhile removes nothing.
            let whole = tempfile::NamedTempFile::new_in(used).and_then(|mut file| {
                io::Write::write_all(&mut file, asked.to_string().as_bytes())?;
                file.persist(used.join(KEEP)).map_err(|error| error.error)
            });
            whole.ok();
        }
        if let Ok(folder) = File::open(used) {
            folder.set_modified(SystemTime::now()).ok();
        }
        let Ok(entries) = fs::read_dir(self.0.join(kind)) else { return };
        let mut dated: Vec<(SystemTime, PathBuf)> = entries
            .flatten()
            // Remembered answers are files.
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        dated.sort_unstable_by(|a, b| b.cmp(a));
        let old = dated.iter().enumerate().skip(keep);
        for (_, (_, path)) in old.filter(|(rank, (_, path))| path != used && *rank >= kept_among(path)) {
            remove(path).ok();
        }
    }
}

/// File in an entry: among how many of the most recently used of its kind it stays.
const KEEP: &str = ".keep";

/// What the file says; 0 without one.
fn kept_among(entry: &Path) -> usize {
    fs::read_to_string(entry.join(KEEP)).ok().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// A folder for temporary files, removed on drop. Nobody else has its name, which is random: machines and containers that share
/// a cache have the same process IDs. What a killed process left is removed by the next that asks for a folder of the same kind.
#[derive(Debug)]
pub(crate) struct Scratch {
    folder: tempfile::TempDir,
    /// Held for its lock, by which others see that the folder is in use.
    _lock: Lock,
}

impl Scratch {
    /// Creates `PREFIX…` in `folder`.
    ///
    /// # Errors
    /// `folder` cannot be written to.
    pub fn new(folder: &Path, prefix: &str) -> Result<Self> {
        clean(folder, prefix);
        // Whatever folder it is in: sockets and outputs are this user's alone.
        let mode = fs::Permissions::from_mode(0o700);
        let made = tempfile::Builder::new().prefix(prefix).permissions(mode).tempdir_in(folder);
        let made = made.at("create a folder in", folder)?;
        // Its name comes after the lock, so that nobody sees it without one.
        let (begun, name) = (made.path().join(".lock"), made.path().join(IN_USE));
        let lock = Lock::take(&begun)?;
        fs::rename(&begun, &name).at("rename", &begun)?;
        Ok(Self { folder: made, _lock: lock })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Lock file in a [`Scratch`] folder.
const IN_USE: &str = ".in-use";

/// Removes [`Scratch`] folders whose owner is gone. One without its lock file may just be made, and stays.
pub(crate) fn clean(folder: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let is_left = File::open(entry.path().join(IN_USE)).is_ok_and(|file| {
            // SAFETY: flock on a descriptor that is ours.
            unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
        });
        if is_left {
            remove(&entry.path()).ok();
        }
    }
}

/// A lock file held until drop, also against other processes. The system releases it if this process dies.
#[derive(Debug)]
pub(crate) struct Lock(#[expect(dead_code, reason = "held for its lock")] File);

impl Lock {
    /// Waits for the lock.
    pub fn take(path: &Path) -> Result<Self> {
        let file = File::create(path).at("create", path)?;
        // Polled instead of waited for, so that a Ctrl-C gets through.
        loop {
            // SAFETY: flock on a descriptor that is ours.
            if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Self(file));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted if kprism_signals::end_requested() => {
                    return Err(Error::Interrupted);
                }
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => std::thread::sleep(RETRY),
                _ => return Err(Error::Io { what: "lock", path: path.to_owned(), source: error }),
            }
        }
    }
}

/// Removes a folder and its contents, whatever the modes. A missing folder is no error.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.at("remove", path),
    }
}

/// Fails early if the disk at `path` has less than `need_mib` MiB of free space.
pub(crate) fn require_space(path: &Path, need_mib: u64) -> Result<()> {
    match free_space(path) {
        Some(free) if free >> 20 < need_mib => Err(Error::NoSpace { path: path.to_owned(), need_mib }),
        _ => Ok(()),
    }
}

/// Free bytes of the disk at `path`, for users without privileges; `None` if its file system does not tell.
pub(crate) fn free_space(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statvfs is valid, and is only filled in; the name ends in NUL.
    let (result, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &mut stat), stat)
    };
    (result == 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Builds a key from the parts that determine an entry's content.
#[derive(Default)]
pub(crate) struct Key(Sha256);

impl Key {
    /// Adds one part. Its length is hashed too, so parts cannot run into each other.
    pub fn add(mut self, part: impl AsRef<[u8]>) -> Self {
        let part = part.as_ref();
        self.0.update((part.len() as u64).to_le_bytes());
        self.0.update(part);
        self
    }

    /// 24 hex digits.
    pub fn finish(self) -> String {
        self.0.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> Cache {
        let folder = std::env::temp_dir().join(format!("kprism-cache-{name}-{}", std::process::id()));
        remove(&folder).unwrap();
        Cache::at(folder).unwrap()
    }

    #[test]
    fn an_entry_is_built_once_by_many() {
        let cache = scratch("once");
        let built = std::sync::atomic::AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let build = |folder: &Path| {
                        built.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        fs::write(folder.join("file"), "content").at("write", folder)
                    };
                    let place = cache.entry("kind", "key", 1, build).unwrap();
                    assert_eq!(fs::read_to_string(place.join("file")).unwrap(), "content");
                });
            }
        });
        assert_eq!(built.into_inner(), 1);
        remove(cache.folder()).unwrap();
    }

    #[test]
    fn a_failed_build_leaves_nothing() {
        let cache = scratch("failed");
        let fail = |folder: &Path| {
            fs::write(folder.join("half"), "x").unwrap();
            Err(Error::Interrupted)
        };
        assert!(cache.entry("kind", "key", 1, fail).is_err());
        assert!(
            cache
                .entry("kind", "key", 1, |folder| {
                    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
                    Ok(())
                })
                .is_ok()
        );
        remove(cache.folder()).unwrap();
    }

    #[test]
    fn too_little_space_is_said_before_the_work() {
        let cache = scratch("space");
        let error = cache.entry("kind", "key", u64::MAX >> 20, |_| unreachable!()).unwrap_err();
        assert!(matches!(error, Error::NoSpace { .. }), "{error}");
        remove(cache.folder()).unwrap();
    }

    #[test]
    fn scratch_folders_have_names_of_their_own_and_do_not_outlive_their_owners() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) =
            (Scratch::new(folder.path(), ".x.").unwrap(), Scratch::new(folder.path(), ".x.").unwrap());
        assert_ne!(a.path(), b.path());
        // The folder of a process that was killed has a lock file, and no lock.
        let left = folder.path().join(".x.left");
        fs::create_dir(&left).unwrap();
        fs::write(left.join(IN_USE), "").unwrap();
        let other = folder.path().join(".y.other");
        fs::create_dir(&other).unwrap();
        let c = Scratch::new(folder.path(), ".x.").unwrap();
        assert!(!left.exists() && other.exists() && a.path().exists() && b.path().exists());
        drop((a, b, c));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn the_oldest_entries_go() {
        let cache = scratch("recent");
        for key in ["a", "b", "c"] {
            let place = cache.entry("kind", key, 1, |_| Ok(())).unwrap();
            cache.keep_number("kind", &place, 2, None);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert!(!cache.folder().join("kind/a").exists());
        assert!(cache.folder().join("kind/b").exists() && cache.folder().join("kind/c").exists());
        remove(cache.folder()).unwrap();
    }

    #[test]
    fn what_is_to_stay_longer_outlives_what_others_keep() {
        let cache = scratch("kept");
        let asked = |key: &str, asked| {
            let place = cache.entry("kind", key, 1, |_| Ok(())).unwrap();
            cache.keep_number("kind", &place, 1, asked);
            std::thread::sleep(std::time::Duration::from_millis(20));
        };
        asked("a", Some(3));
        asked("b", None);
        asked("c", None);
        let is_there = |key: &str| cache.folder().join("kind").join(key).exists();
        assert!(is_there("a") && !is_there("b") && is_there("c"));
        asked("d", Some(3));
        asked("e", Some(3));
        // Three were used after it.
        asked("f", None);
        assert!(!is_there("a") && !is_there("c") && is_there("d") && is_there("e") && is_there("f"));
        remove(cache.folder()).unwrap();
    }
}
