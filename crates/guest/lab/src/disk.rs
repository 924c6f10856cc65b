// SPDX-License-Identifier: MIT OR Apache-2.0
//! Disk images of the user's: copied into the cache as raw images, so that the user's files are only read.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::{Cache, Key, Scratch};
use crate::error::{Context, Error, Result};
use crate::image_format::{self, RAW};
use crate::options::{Progress, Report};
use crate::program;

/// Number of images of each kind in the cache. A guest cannot have more disks: the first would be removed for the last.
pub(crate) const KEPT: usize = 8;

/// Sizes are rounded up to this: the guest maps a disk in pages of 2 MiB.
const ALIGNMENT: u64 = 2 << 20;

/// A raw image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    /// The image. It must not be written to.
    pub raw: PathBuf,
    /// Its size, a multiple of 2 MiB.
    pub bytes: u64,
    /// Identifies its content.
    pub key: String,
}

impl Image {
    /// The raw image with the content of the user's file.
    ///
    /// # Errors
    /// The file cannot be read, is encrypted, or is written to by another program at this time.
    pub fn find(path: &Path, cache: &Cache, report: Report<'_>) -> Result<Self> {
        let bad = |reason: &str| Error::BadFile { path: path.to_owned(), reason: reason.into() };
        let parts = image_format::parts(path)?;
        let files: Vec<PathBuf> = parts.iter().map(|part| part.path.clone()).collect();
        let name = identity(&files, true)?;
        let need_mib = image_format::space_mib(&parts) + 64;
        let (raw, key) = keep("image", &name, cache, need_mib, |raw| {
            report(Progress::Step(&format!("copying the disk image {}", path.display())));
            match &parts[..] {
                [only] if only.format == RAW => copy(path, raw)?,
                _ => {
                    image_format::convert(&parts, raw)?;
                    only_ours(raw)?;
                }
            }
            if identity(&files, true)? != name || image_format::any_is_being_written(&parts) {
                return Err(bad(
                    "it was changed while it was copied: end the program that writes to it first",
                ));
            }
            let file = File::options().write(true).open(raw).at("open", raw)?;
            let bytes = file.metadata().at("read", raw)?.len();
            if bytes == 0 {
                return Err(bad("an empty disk image: the file has no bytes"));
            }
            file.set_len(bytes.next_multiple_of(ALIGNMENT)).at("write", raw)
        })?;
        let bytes = fs::metadata(&raw).at("read", &raw)?.len();
        Ok(Self { raw, bytes, key })
    }
}

/// A file that `make` makes from the user's files, which `name` identifies: from the cache, if it was made before. Returns
/// its path, and a key by its content.
pub(crate) fn keep(
    kind: &str,
    name: &str,
    cache: &Cache,
    need_mib: u64,
    mut make: impl FnMut(&Path) -> Result<()>,
) -> Result<(PathBuf, String)> {
    let mut add = || {
        let scratch = Scratch::new(cache.folder(), &format!(".{kind}."))?;
        let made = scratch.path().join("made");
        crate::cache::require_space(scratch.path(), need_mib)?;
        make(&made)?;
        let key = content(&File::open(&made).at("open", &made)?).at("read", &made)?;
        cache.entry(kind, &key, 0, |folder| fs::rename(&made, folder.join(kind)).at("rename", &made))?;
        Ok(key)
    };
    let mut key = cache.remembered(kind, name, false, &mut add)?;
    if !cache.folder().join(kind).join(&key).exists() {
        // It was used long ago, and removed.
        key = cache.remembered(kind, name, true, &mut add)?;
    }
    let folder = cache.folder().join(kind).join(&key);
    cache.keep_recent(kind, &folder, KEPT);
    Ok((folder.join(kind), key))
}

/// Copies a raw image with its holes; without copying any data where the file system can do that.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    let arguments = ["--reflink=auto", "--sparse=always", "--"].map(std::ffi::OsStr::new);
    let output = program::output(Command::new("cp").args(arguments).args([from, to]))?;
    if output.status.success() {
        return only_ours(to);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("No space left") {
        return Err(Error::Full { path: to.to_owned() });
    }
    Err(Error::BadFile { path: from.to_owned(), reason: format!("it cannot be copied: {said}") })
}

/// Disk space that an image takes, in MiB.
pub(crate) fn space_mib(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |found| (found.blocks() * 512) >> 20)
}

/// A copy can be written to whatever the mode of the user's file, and others cannot read it.
fn only_ours(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).at("change the mode of", path)
}

/// A name for these files as they are now: it changes when one of them is written to or replaced.
/// If `follows`, a symbolic link stands for its target.
pub(crate) fn identity(files: &[PathBuf], follows: bool) -> Result<String> {
    let mut key = Key::default().add("layout 1");
    for path in files {
        let path = std::path::absolute(path).at("find", path)?;
        let found = if follows { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let found = found.at("read", &path)?;
        key = key.add(path.as_os_str().as_encoded_bytes());
        for number in [found.dev(), found.ino(), found.size(), found.mode().into()] {
            key = key.add(number.to_le_bytes());
        }
        for time in [found.mtime(), found.mtime_nsec(), found.ctime(), found.ctime_nsec()] {
            key = key.add(time.to_le_bytes());
        }
    }
    Ok(key.finish())
}

/// Identifies a file's content: 24 hexadecimal digits. Holes are not read. Blocks of zeros count as holes, so that an
/// image has the same name however its zeros are stored.
fn content(mut file: &File) -> io::Result<String> {
    const BLOCK: usize = 1 << 16;
    let length = file.metadata()?.len();
    let mut key = Key::default().add(length.to_le_bytes());
    let mut block = vec![0; BLOCK];
    let mut at = 0;
    while at < length {
        // SAFETY: seeks in a file that is ours.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
        if data < 0 {
            match io::Error::last_os_error() {
                // No data from here on.
                error if error.raw_os_error() == Some(libc::ENXIO) => break,
                error => return Err(error),
            }
        }
        at = data as u64 / BLOCK as u64 * BLOCK as u64;
        if kprism_signals::end_requested() {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        let count = BLOCK.min((length - at) as usize);
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(&mut block[..count])?;
        if block[..count].iter().any(|&byte| byte != 0) {
            key = key.add(at.to_le_bytes()).add(&block[..count]);
        }
        at += count as u64;
    }
    Ok(key.finish())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;
    use crate::image_format::WRITER_LOCK;

    fn silent(path: &Path, cache: &Cache) -> Result<Image> {
        Image::find(path, cache, &mut |_| {})
    }

    #[test]
    fn an_image_is_named_by_its_content_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let (sparse, full) = (folder.path().join("sparse"), folder.path().join("full"));
        let mut bytes = vec![0; 3 << 20];
        bytes[2 << 20] = 7;
        fs::write(&full, &bytes).unwrap();
        let file = File::create(&sparse).unwrap();
        file.set_len(3 << 20).unwrap();
        file.write_all_at(&[7], 2 << 20).unwrap();
        let (a, b) = (silent(&sparse, &cache).unwrap(), silent(&full, &cache).unwrap());
        assert_eq!((a.key.as_str(), a.bytes), (b.key.as_str(), 4 << 20));
        assert_eq!(fs::read(&a.raw).unwrap()[..3 << 20], bytes);
        assert_eq!(fs::metadata(&full).unwrap().len(), 3 << 20);
        // A changed file is another image; one that was removed from the cache is copied again.
        bytes[0] = 1;
        fs::write(&full, &bytes).unwrap();
        fs::set_permissions(&full, fs::Permissions::from_mode(0o444)).unwrap();
        let changed = silent(&full, &cache).unwrap();
        assert_ne!(changed.key, a.key);
        assert_eq!(fs::metadata(&changed.raw).unwrap().mode() & 0o777, 0o600);
        fs::remove_dir_all(a.raw.parent().unwrap()).unwrap();
        assert!(silent(&sparse, &cache).unwrap().raw.exists());
    }

    #[test]
    fn what_is_no_image_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let refused = |path: &Path| silent(path, &cache).unwrap_err().to_string();
        assert!(refused(folder.path()).contains("not a file"));
        let path = folder.path().join("image");
        fs::write(&path, "").unwrap();
        assert!(refused(&path).contains("an empty disk image"));
        let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
        header.resize(512, 0);
        header[35] = 2;
        fs::write(&path, &header).unwrap();
        assert!(refused(&path).contains("encrypted"));
    }

    /// The lock is one that QEMU takes; see `WRITER_LOCK`.
    #[test]
    fn an_image_that_is_written_to_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::at(folder.path().join("cache")).unwrap();
        let path = folder.path().join("image");
        fs::write(&path, [1; 4096]).unwrap();
        let writer = File::options().read(true).write(true).open(&path).unwrap();
        // SAFETY: an all-zero flock is valid, and lives through the call.
        unsafe {
            let mut lock: libc::flock = std::mem::zeroed();
            (lock.l_type, lock.l_start, lock.l_len) = (libc::F_RDLCK as i16, WRITER_LOCK, 1);
            assert_eq!(libc::fcntl(writer.as_raw_fd(), libc::F_OFD_SETLK, &lock), 0);
        }
        assert!(silent(&path, &cache).unwrap_err().to_string().contains("in use by another QEMU"));
        drop(writer);
        silent(&path, &cache).unwrap();
    }
}
