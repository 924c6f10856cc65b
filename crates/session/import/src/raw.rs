// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads a bare PT file, with code named on the command line.

use std::path::{Path, PathBuf};

use kprism_image::Bytes;

use crate::elf::{is_elf, parse};
use crate::error::read_file;
use crate::{Capture, ImportError, Module, Stream};

/// Code named by the user: `FILE@VA`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeFile {
    /// An ELF file or raw bytes.
    pub path: PathBuf,
    /// Raw bytes: their address. ELF: offset to the addresses in the file (0 for a program that is not position
    /// independent).
    pub va: u64,
}

impl CodeFile {
    /// Reads `FILE@VA`, VA in hex with or without `0x`; without `@VA` it is 0.
    ///
    /// # Errors
    /// [`ImportError::Format`] when VA is no hex number.
    pub fn parse(text: &str) -> Result<Self, ImportError> {
        let Some((path, va)) = text.rsplit_once('@') else {
            return Ok(Self { path: text.into(), va: 0 });
        };
        let digits = va.strip_prefix("0x").unwrap_or(va);
        match u64::from_str_radix(digits, 16) {
            Ok(va) => Ok(Self { path: path.into(), va }),
            Err(_) => Err(ImportError::format(
                Path::new(path),
                format!("code address `{va}`"),
                "FILE@VA with VA in hex",
            )),
        }
    }
}

/// Reads a PT file alone.
pub(crate) fn read(file: &Path) -> Result<Capture, ImportError> {
    let label = file.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let stream = Stream { label, pt: read_file(file)?, regions: Vec::new(), first: None };
    Ok(Capture { streams: vec![stream], ..Capture::default() })
}

/// Adds code to every stream.
pub(crate) fn add_code(capture: &mut Capture, code: &[CodeFile]) -> Result<(), ImportError> {
    for CodeFile { path, va } in code {
        let bytes = read_file(path)?;
        let name = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        let mut place = |start: u64, bytes: Bytes, pgoff: u64, file: Option<PathBuf>| {
            capture.modules.push(Module {
                path: name.to_string_lossy().into_owned(),
                file,
                pid: 0,
                start,
                end: start.saturating_add(bytes.len() as u64),
                pgoff,
                asid: 0,
                t: 0,
            });
            let region = capture.add_region(start, bytes);
            capture.streams.iter_mut().for_each(|stream| stream.regions.push(region));
        };
        if is_elf(&bytes) {
            for segment in parse(path, &bytes)?.code {
                place(segment.va.wrapping_add(*va), segment.bytes, segment.offset, Some(path.clone()));
            }
        } else {
            place(*va, bytes, 0, None);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_arguments() {
        let code = CodeFile::parse("/a/b@c/lib.so@7f00").unwrap();
        assert_eq!((code.path.to_str(), code.va), (Some("/a/b@c/lib.so"), 0x7f00));
        assert_eq!(CodeFile::parse("x@0x10").unwrap().va, 0x10);
        assert_eq!(CodeFile::parse("x").unwrap().va, 0);
        assert!(CodeFile::parse("x@y").unwrap_err().to_string().contains("VA in hex"));
    }
}
