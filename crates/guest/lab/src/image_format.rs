// SPDX-License-Identifier: MIT OR Apache-2.0
//! Formats of the user's disk images, and the files that an image is made of.
//!
//! A format is found out once, here, by the first bytes. QEMU's programs are told it, with the name of each file, and look for
//! nothing themselves: an image that came from elsewhere could name any file of this machine as the one that it is a change of.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::error::{Context, Error, Result};
use crate::program;

/// Byte that QEMU holds a lock on while it may write to an image (`block/file-posix.c`, RAW_LOCK_PERM_BASE and
/// BLK_PERM_WRITE).
pub(crate) const WRITER_LOCK: i64 = 100 + 1;

/// Formats of disk images other than raw: offset and bytes by which they are known, name.
const FORMATS: [(u64, &[u8], &str); 5] = [
    (0, b"QFI\xfb", "qcow2"),
    (0, b"KDMV", "vmdk"),
    (0, b"vhdxfile", "vhdx"),
    (0, b"conectix", "vpc"),
    (0x40, b"\x7f\x10\xda\xbe", "vdi"),
];

/// An image without a format: its bytes are the disk's.
pub(crate) const RAW: &str = "raw";

/// Most files that one image is made of.
const MOST_FILES: usize = 32;

/// A file of an image, and its format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The file, absolute.
    pub path: PathBuf,
    /// Its format, as QEMU calls it.
    pub format: &'static str,
}

fn bad(path: &Path, reason: impl Into<String>) -> Error {
    Error::BadFile { path: path.to_owned(), reason: reason.into() }
}

/// The image's file, and behind it those that it is a change of.
///
/// # Errors
/// One of them is no file, is encrypted, is written to by a QEMU, or lies outside of the image's folder.
pub(crate) fn parts(path: &Path) -> Result<Vec<Part>> {
    let path = std::path::absolute(path).at("find", path)?;
    let mut parts: Vec<Part> = Vec::new();
    let mut next = Some((path.clone(), None));
    while let Some((file, stated)) = next.take() {
        let part = look(&file, stated)?;
        let format = part.format;
        parts.push(part);
        if parts.len() > MOST_FILES {
            return Err(bad(&path, "it is a change of a change of a change … without end"));
        }
        if format != RAW {
            next = below(&path, &file, format)?;
        }
    }
    Ok(parts)
}

/// The file with its format: `stated` if the image above it states one.
fn look(path: &Path, stated: Option<&'static str>) -> Result<Part> {
    let file = File::open(path).at("open", path)?;
    if !file.metadata().at("read", path)?.is_file() {
        return Err(bad(path, "not a file: a disk image is expected"));
    }
    if is_being_written(&file) {
        return Err(bad(
            path,
            "in use by another QEMU, which may write to it: end that first, or give a copy (of a machine that runs, its \
             snapshot)",
        ));
    }
    let format = match stated {
        Some(format) => format,
        None => format(path, &file).at("read", path)?,
    };
    let number = |at: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).at("read", path)?;
        Ok(u64::from_be_bytes(bytes))
    };
    let mut start = [0; 21];
    if format == RAW && file.read_exact_at(&mut start, 0).is_ok() && &start == b"# Disk DescriptorFile" {
        let reason = "a disk image in several files: make one of them (`qemu-img convert -f vmdk -O raw`)";
        return Err(bad(path, reason));
    }
    // Offset 32 holds the method of encryption, 4 bytes.
    if format == "qcow2" && number(32)? >> 32 != 0 {
        return Err(bad(path, "encrypted: give an image without encryption (`qemu-img convert`)"));
    }
    // The capacity is 0 if the file describes others (`block/vmdk.c`, vmdk_open_vmdk4).
    if format == "vmdk" && number(12)? == 0 {
        let reason = "its data are in other files: make one of them (`qemu-img convert -f vmdk -O raw`)";
        return Err(bad(path, reason));
    }
    Ok(Part { path: path.to_owned(), format })
}

/// The file that `file`, a part of the image `top`, is a change of.
fn below(top: &Path, file: &Path, format: &str) -> Result<Option<(PathBuf, Option<&'static str>)>> {
    let mut command = Command::new("qemu-img");
    command.args(["info", "-U", "-f", format, "--output=json", "--"]).arg(file);
    let output = qemu_img(file, &mut command)?;
    let found: Value = serde_json::from_slice(&output)
        .map_err(|error| bad(file, format!("qemu-img describes it as nothing known: {error}")))?;
    let details = found.pointer("/format-specific/data");
    if let Some(data) = details.and_then(|data| data.get("data-file")).and_then(Value::as_str) {
        let reason = format!("its data are in {data}: make one file of them (`qemu-img convert -O raw`)");
        return Err(bad(file, reason));
    }
    let extents = details.and_then(|data| data.get("extents")).and_then(Value::as_array);
    for extent in extents.into_iter().flatten().filter_map(|extent| extent.get("filename")?.as_str()) {
        if Path::new(extent) != file {
            let reason =
                format!("its data are in {extent}: make one file of them (`qemu-img convert -O raw`)");
            return Err(bad(file, reason));
        }
    }
    let text = |name: &str| found.get(name).and_then(Value::as_str);
    let Some(named) = text("full-backing-filename").or(text("backing-filename")) else { return Ok(None) };
    let place = PathBuf::from(named);
    let folder = |path: &Path| path.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned));
    let home = top.parent().and_then(|folder| folder.canonicalize().ok());
    let is_near = place.is_absolute()
        && folder(&place).is_some_and(|found| Some(&found) == home.as_ref() || Some(found) == folder(top));
    if !is_near {
        return Err(bad(
            file,
            format!(
                "it is a change of {named}, which is not in its folder, so it is not read: put both into one folder, or \
                 make one image of them (`qemu-img convert -O raw {} NEW`)",
                file.display()
            ),
        ));
    }
    let stated = match text("backing-filename-format") {
        None => None,
        Some(RAW) => Some(RAW),
        Some(name) => match FORMATS.iter().find(|(.., known)| *known == name) {
            Some((.., known)) => Some(*known),
            None => {
                return Err(bad(
                    &place,
                    format!("of the format {name}: convert it (`qemu-img convert -O raw`)"),
                ));
            }
        },
    };
    Ok(Some((place, stated)))
}

/// Makes a raw image of the parts.
pub(crate) fn convert(parts: &[Part], raw: &Path) -> Result<()> {
    let [top, ..] = parts else { return Ok(()) };
    let mut source = OsString::from("json:");
    source.push(description(parts)?.to_string());
    let mut command = Command::new("qemu-img");
    // -U: a QEMU that is started meanwhile may have the image. That it was changed then is noticed.
    command.args(["convert", "-U", "-O", "raw", "--"]).arg(source).arg(raw);
    qemu_img(&top.path, &mut command).map(drop)
}

/// The parts for QEMU, each with its format and its file: nothing is left for it to find out.
fn description(parts: &[Part]) -> Result<Value> {
    let mut whole = Value::Null;
    for part in parts.iter().rev() {
        let name =
            part.path.to_str().ok_or_else(|| bad(&part.path, "QEMU takes names in UTF-8: rename it"))?;
        let file = json!({ "driver": "file", "filename": name });
        let mut described = json!({ "driver": part.format, "file": file });
        if matches!(part.format, "qcow2" | "vmdk") {
            described["backing"] = whole;
        }
        whole = described;
    }
    Ok(whole)
}

fn qemu_img(path: &Path, command: &mut Command) -> Result<Vec<u8>> {
    let output = program::output(command).map_err(|error| match error {
        Error::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => Error::MissingProgram {
            program: "qemu-img".into(),
            remedy: "install qemu-utils, or give a raw image",
        },
        other => other,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("No space left") {
        return Err(Error::Full { path: path.to_owned() });
    }
    Err(bad(path, said.trim().trim_start_matches("qemu-img: ")))
}

/// The format. A name that ends in `.raw` says it, whatever the first bytes are, which a guest may have written.
fn format(path: &Path, file: &File) -> io::Result<&'static str> {
    if path.extension().is_some_and(|name| name == RAW) {
        return Ok(RAW);
    }
    for (at, magic, name) in FORMATS {
        let mut bytes = vec![0; magic.len()];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) if bytes == magic => return Ok(name),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(error),
            _ => {}
        }
    }
    Ok(RAW)
}

/// True if a QEMU holds the lock of a writer. A file system without locks shows none.
pub(crate) fn is_being_written(file: &File) -> bool {
    // SAFETY: an all-zero flock is valid, and lives through the call.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as i16;
        lock.l_whence = libc::SEEK_SET as i16;
        lock.l_start = WRITER_LOCK;
        lock.l_len = 1;
        libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) == 0
            && lock.l_type != libc::F_UNLCK as i16
    }
}

/// True if a QEMU may write to one of the parts now.
pub(crate) fn any_is_being_written(parts: &[Part]) -> bool {
    parts.iter().any(|part| File::open(&part.path).is_ok_and(|file| is_being_written(&file)))
}

/// Size of the parts on the disk, MiB.
pub(crate) fn space_mib(parts: &[Part]) -> u64 {
    use std::os::unix::fs::MetadataExt;
    parts.iter().map(|part| fs::metadata(&part.path).map_or(0, |found| found.blocks() * 512) >> 20).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_ends_in_raw_is_believed() {
        let folder = tempfile::tempdir().unwrap();
        let bytes = [b"QFI\xfb\0\0\0\x03".to_vec(), vec![0; 512]].concat();
        let format_of = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, &bytes).unwrap();
            format(&path, &File::open(&path).unwrap()).unwrap()
        };
        assert_eq!((format_of("a.raw"), format_of("a.img")), (RAW, "qcow2"));
    }

    #[test]
    fn qemu_is_told_each_format_and_file() {
        let part = |name: &str, format| Part { path: name.into(), format };
        let told = description(&[part("/a,b", "qcow2"), part("/c", RAW)]).unwrap();
        let expected = json!({
            "driver": "qcow2", "file": {"driver": "file", "filename": "/a,b"},
            "backing": {"driver": "raw", "file": {"driver": "file", "filename": "/c"}},
        });
        assert_eq!(told, expected);
        // Without this, QEMU would follow the image's header.
        assert!(description(&[part("/a", "qcow2")]).unwrap()["backing"].is_null());
    }

    #[test]
    fn images_in_several_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let said = |bytes: &[u8]| {
            let path = folder.path().join("image");
            fs::write(&path, bytes).unwrap();
            parts(&path).unwrap_err().to_string()
        };
        assert!(said(b"# Disk DescriptorFile\nversion=1\n").contains("in several files"));
        let mut header = b"KDMV\x01\0\0\0".to_vec();
        header.resize(512, 0);
        assert!(said(&header).contains("in other files"));
        let mut header = b"QFI\xfb\0\0\0\x03".to_vec();
        header.resize(512, 0);
        header[35] = 2;
        assert!(said(&header).contains("encrypted"));
    }
}
