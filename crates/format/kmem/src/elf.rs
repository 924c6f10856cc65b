// SPDX-License-Identifier: MIT OR Apache-2.0
//! Headers of a kernel's core files: `/proc/kcore`, `/proc/vmcore`, and files written by kdump or by QEMU's
//! `dump-guest-memory`.
//!
//! Input: the first bytes of the file. Output: the mapping of file ranges to memory, and the notes about the kernel
//! (VMCOREINFO, Documentation/admin-guide/kdump/vmcoreinfo.rst). Compressed dumps (makedumpfile) are not supported;
//! `makedumpfile -E` writes an ELF file.

/// Limit of the size of headers and notes, in bytes.
pub const HEADERS: usize = 1 << 20;

/// A range of memory in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Virtual address; 0 if unknown.
    pub virtual_address: u64,
    /// Physical address; 0 or all ones if unknown.
    pub physical_address: u64,
    /// Offset in the file.
    pub offset: u64,
    /// Size in the file, in bytes.
    pub size: u64,
}

/// Contents of the headers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Core {
    /// Memory ranges in the file.
    pub segments: Vec<Segment>,
    /// Text of VMCOREINFO: `NAME=VALUE` lines.
    pub info: String,
}

impl Core {
    /// Parses the headers.
    ///
    /// # Errors
    /// A message with the offset, if this is not a core file of a 64-bit machine.
    pub fn read(bytes: &[u8]) -> Result<Self, String> {
        if !bytes.starts_with(b"\x7fELF\x02\x01") {
            let found = &bytes[..bytes.len().min(8)];
            return Err(match found.starts_with(b"KDUMP") {
                true => "offset 0: a compressed dump: makedumpfile -E writes one in ELF".into(),
                false => {
                    format!("offset 0: not a core file of a 64-bit machine: it begins with {found:02x?}")
                }
            });
        }
        let kind = number(bytes, 16, 2)?;
        if kind != 4 {
            return Err(format!("offset 16: the ELF file's kind is {kind}, expected 4 (core)"));
        }
        let (at, size, count) = (number(bytes, 32, 8)?, number(bytes, 54, 2)?, number(bytes, 56, 2)?);
        if size < 56 {
            return Err(format!("offset 54: headers of {size} bytes, expected 56"));
        }
        let mut core = Core::default();
        for index in 0..count {
            let header = usize::try_from(at.saturating_add(index * size)).map_err(|e| e.to_string())?;
            let field = |place: usize| number(bytes, header.saturating_add(place), 8);
            let (offset, length) = (field(8)?, field(32)?);
            match number(bytes, header, 4)? {
                1 => core.segments.push(Segment {
                    offset,
                    virtual_address: field(16)?,
                    physical_address: field(24)?,
                    size: length,
                }),
                4 => {
                    let end = offset.saturating_add(length).min(bytes.len() as u64);
                    let notes = bytes.get(offset as usize..end as usize).unwrap_or_default();
                    core.info.push_str(&vmcoreinfo(notes));
                }
                _ => {}
            }
        }
        Ok(core)
    }

    /// Returns a value of VMCOREINFO, such as `SYMBOL(swapper_pg_dir)`. The documentation defines which are
    /// hexadecimal.
    pub fn value(&self, name: &str, radix: u32) -> Option<u64> {
        let found = self.info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
        u64::from_str_radix(found.trim(), radix).ok()
    }

    /// Returns the file offset of the byte at a virtual address, and the number of bytes available there.
    pub fn virtual_place(&self, address: u64) -> Option<(u64, u64)> {
        place(&self.segments, address, |segment| segment.virtual_address)
    }

    /// As [`Core::virtual_place`], by physical address.
    pub fn physical_place(&self, address: u64) -> Option<(u64, u64)> {
        place(&self.segments, address, |segment| segment.physical_address)
    }
}

fn place(segments: &[Segment], address: u64, from: impl Fn(&Segment) -> u64) -> Option<(u64, u64)> {
    segments.iter().find_map(|segment| {
        let within = address.checked_sub(from(segment)).filter(|within| *within < segment.size)?;
        Some((segment.offset.checked_add(within)?, segment.size - within))
    })
}

fn number(bytes: &[u8], at: usize, length: usize) -> Result<u64, String> {
    let end = at.saturating_add(length);
    let field = bytes.get(at..end).ok_or_else(|| format!("offset {at}: the headers end before"))?;
    Ok(field.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
}

/// Returns the text of the VMCOREINFO note.
fn vmcoreinfo(notes: &[u8]) -> String {
    let mut at = 0usize;
    while let (Ok(name), Ok(size)) = (number(notes, at, 4), number(notes, at.saturating_add(4), 4)) {
        let start = at.saturating_add(12);
        let contents = start.saturating_add((name as usize).next_multiple_of(4));
        let end = contents.saturating_add(size as usize);
        if notes.get(start..).is_some_and(|rest| rest.starts_with(b"VMCOREINFO\0")) {
            let text = notes.get(contents..end.min(notes.len())).unwrap_or_default();
            return String::from_utf8_lossy(text).into_owned();
        }
        at = end.checked_next_multiple_of(4).unwrap_or(usize::MAX);
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u32, offset: u64, addresses: (u64, u64), size: u64) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend([0; 4]);
        for field in [offset, addresses.0, addresses.1, size, size, 0] {
            bytes.extend(field.to_le_bytes());
        }
        bytes
    }

    fn small() -> Vec<u8> {
        let text = b"SYMBOL(swapper_pg_dir)=ffffffff82045000\nNUMBER(phys_base)=-16\n";
        let mut note = [11u32.to_le_bytes(), (text.len() as u32).to_le_bytes(), [0; 4]].concat();
        note.extend(b"VMCOREINFO\0\0");
        note.extend(text);
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(64, 0);
        (bytes[16], bytes[32], bytes[54], bytes[56]) = (4, 64, 56, 2);
        bytes.extend(header(4, 176, (0, 0), note.len() as u64));
        bytes.extend(header(1, 4096, (0xffff_ffff_8100_0000, 0x100_0000), 0x2000));
        bytes.extend(note);
        bytes
    }

    #[test]
    fn segments_and_notes_are_found() {
        let core = Core::read(&small()).unwrap();
        assert_eq!(core.value("SYMBOL(swapper_pg_dir)", 16), Some(0xffff_ffff_8204_5000));
        assert_eq!(core.virtual_place(0xffff_ffff_8100_1000), Some((8192, 0x1000)));
        assert_eq!(core.physical_place(0x100_0000), Some((4096, 0x2000)));
        assert_eq!(core.virtual_place(0xffff_ffff_8100_2000), None);
    }

    #[test]
    fn any_bytes_are_an_error_or_headers() {
        assert!(Core::read(b"KDUMP   ").unwrap_err().contains("makedumpfile -E"));
        let good = small();
        for at in 0..good.len() {
            let mut bytes = good.clone();
            bytes[at] = 0xff;
            Core::read(&bytes).ok();
            Core::read(&good[..at]).ok();
        }
    }
}
