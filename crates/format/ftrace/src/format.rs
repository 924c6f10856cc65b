// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parses the kernel's description of its records: `events/*/*/format` and `events/header_page`.
//!
//! Input: text with lines `field:TYPE NAME; offset:N; size:N; signed:N;`. Output: the location of each field. The ring
//! buffer determines a record's length, not the format: the last fields may be missing, and bytes after the last field
//! are stale.

use crate::bytes::Order;
use crate::fault::FtraceError;
use crate::raw::{MISSED_EVENTS, MISSED_STORED};

/// A field of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name of the field; common fields begin with `common_`.
    pub name: String,
    /// C type as the kernel spells it.
    pub kind: String,
    /// Offset in the record, in bytes.
    pub offset: usize,
    /// Size in bytes; 0 if the field extends to the end of the record.
    pub size: usize,
    /// Whether the format calls the number signed; kernels before 2.6.31 do not say.
    pub signed: Option<bool>,
    /// True if the declaration has a length in brackets behind the name: several of the type.
    pub is_array: bool,
}

/// The format of an event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Format {
    /// Subsystem, `ftrace` for the tracers' events; empty if unknown.
    pub system: String,
    /// Name within the subsystem.
    pub name: String,
    /// Event number, as in records.
    pub id: u16,
    /// Fields, the common ones first.
    pub fields: Vec<Field>,
}

impl Format {
    /// Parses a `format` file. `system` is the name of its directory's parent.
    ///
    /// # Errors
    /// A line `field…` is malformed, or the name or number is missing.
    pub fn parse(system: &str, text: &[u8]) -> Result<Format, FtraceError> {
        let mut format = Format { system: system.into(), ..Format::default() };
        let mut id = None;
        for (i, line) in text.split(|&b| b == b'\n').enumerate() {
            let line = String::from_utf8_lossy(line);
            let line = line.trim();
            if let Some(name) = line.strip_prefix("name:") {
                format.name = name.trim().into();
            } else if let Some(number) = line.strip_prefix("ID:") {
                let number = number
                    .trim()
                    .parse()
                    .map_err(|_| place(system, &format.name, i, "a number up to 65535"))?;
                id = Some(number);
            } else if line.starts_with("field") {
                let known = field(line).ok_or_else(|| {
                    place(system, &format.name, i, "`field:TYPE NAME; offset:N; size:N; signed:N;`")
                })?;
                format.fields.push(known);
            } else if line.starts_with("print fmt:") {
                break; // what follows may run over lines and look like anything
            }
        }
        match id {
            Some(id) if !format.name.is_empty() => Ok(Format { id, ..format }),
            _ => Err(FtraceError::format(format!("format in events/{system}"), "`name:` and `ID:`")),
        }
    }

    /// Finds a field by its name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|f| f.name == name)
    }
}

fn place(system: &str, name: &str, line: usize, expected: &str) -> FtraceError {
    FtraceError::format(format!("events/{system}/{name}/format: line {}", line + 1), expected)
}

/// Parses a line `field: TYPE NAME; offset:N; size:N; …`.
fn field(line: &str) -> Option<Field> {
    let (_, rest) = line.split_once(':')?;
    let mut parts = rest.split(';').map(str::trim);
    let declared = parts.next()?;
    let (mut offset, mut size, mut signed) = (None, None, None);
    for part in parts {
        match part.split_once(':') {
            Some(("offset", n)) => offset = n.trim().parse().ok(),
            Some(("size", n)) => size = n.trim().parse().ok(),
            Some(("signed", n)) => signed = n.trim().parse::<u8>().ok().map(|n| n != 0),
            _ => {}
        }
    }
    // Arrays are written `char comm[16]` or `__data_loc char[] name`.
    let array = declared.split_once('[').filter(|(head, _)| head.contains(' ') && declared.ends_with(']'));
    let is_array = array.is_some();
    let declared = array.map_or(declared, |(head, _)| head);
    let (kind, name) = declared.rsplit_once([' ', '\t', '*'])?;
    let (name, kind) = (name.into(), kind.trim().into());
    Some(Field { name, kind, offset: offset?, size: size?, signed, is_array })
}

/// Layout of a page of the ring buffer. All values are in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageLayout {
    /// Offset of the commit word.
    pub commit_at: usize,
    /// Size of the commit word: 8, or 4 on 32-bit kernels.
    pub commit_size: usize,
    /// Offset of the events.
    pub data_at: usize,
    /// Capacity for events.
    pub data_size: usize,
}

impl Default for PageLayout {
    /// A 64-bit kernel with pages of 4 KiB.
    fn default() -> Self {
        PageLayout { commit_at: 8, commit_size: 8, data_at: 16, data_size: 4080 }
    }
}

/// Limit in bytes. Any sub-buffer is smaller: at most order 7 with pages of 64 KiB.
const LARGEST: usize = 1 << 24;

impl PageLayout {
    /// Parses `header_page`.
    ///
    /// # Errors
    /// A field is missing or has an impossible offset or size.
    pub fn parse(text: &[u8]) -> Result<PageLayout, FtraceError> {
        let text = String::from_utf8_lossy(text);
        let fields: Vec<Field> = text.lines().filter_map(|line| field(line.trim())).collect();
        let find = |name: &str| {
            let found = fields.iter().find(|f| f.name == name);
            found.ok_or_else(|| FtraceError::format("header_page", format!("a field `{name}`")))
        };
        let (commit, data) = (find("commit")?, find("data")?);
        let layout = PageLayout {
            commit_at: commit.offset,
            commit_size: commit.size,
            data_at: data.offset,
            data_size: data.size,
        };
        let fits = matches!(commit.size, 4 | 8)
            && commit.offset >= 8
            && data.offset <= LARGEST
            && commit.offset.saturating_add(commit.size) <= data.offset
            && (8..LARGEST).contains(&data.size);
        if fits {
            Ok(layout)
        } else {
            Err(FtraceError::format("header_page", "timestamp, commit word and data in a page"))
        }
    }

    /// Whether pages are of a big-endian machine, told by their commit words: read in the other order, the number of bytes used
    /// in a page is larger than the page. The kernel's formats do not say it. `None`: no page tells, as all are empty or damaged.
    #[must_use]
    pub fn is_big_endian(&self, pages: &[u8]) -> Option<bool> {
        pages.chunks(self.page_size()).find_map(|page| {
            let may_be = |order: Order| {
                let commit = order.number(page, self.commit_at, self.commit_size)?;
                let used = commit & !(MISSED_EVENTS | MISSED_STORED);
                Some(used > 0 && used <= self.data_size as u64 && used.is_multiple_of(4))
            };
            let (little, big) = (may_be(Order::Little)?, may_be(Order::Big)?);
            (little != big).then_some(big)
        })
    }

    /// Size of a page in bytes.
    #[must_use]
    pub fn page_size(&self) -> usize {
        self.data_at + self.data_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_all_shapes_are_found() {
        let text = b"name: sched_switch\nID: 310\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\tfield:char prev_comm[16];\toffset:8;\tsize:16;\tsigned:0;\n\tfield:__data_loc char[] name;\toffset:24;\tsize:4;\tsigned:0;\n\tfield:const char * fmt;\toffset:28;\tsize:8;\tsigned:0;\n\tfield:u32 buf[];\toffset:36;\tsize:0;\tsigned:0;\n\nprint fmt: \"field:\", x\nfield:bad\n";
        let format = Format::parse("sched", text).expect("a format");
        let names: Vec<_> = format.fields.iter().map(|f| (f.name.as_str(), f.offset, f.size)).collect();
        assert_eq!((format.name.as_str(), format.id), ("sched_switch", 310));
        assert_eq!(
            names,
            [("common_type", 0, 2), ("prev_comm", 8, 16), ("name", 24, 4), ("fmt", 28, 8), ("buf", 36, 0)]
        );
    }

    #[test]
    fn what_is_no_format_says_where() {
        let error = Format::parse("sched", b"name: x\nID: 70000\n").expect_err("too large");
        assert_eq!(error.to_string(), "events/sched/x/format: line 2: expected a number up to 65535");
        assert!(Format::parse("a", b"name: x\nID: 1\nfield: y\n").is_err());
        assert!(Format::parse("a", b"").is_err());
    }

    #[test]
    fn pages_tell_their_byte_order() {
        let layout = PageLayout::default();
        let page = |commit: [u8; 8]| {
            let mut page = vec![0; layout.page_size()];
            page[8..16].copy_from_slice(&commit);
            page
        };
        for used in [4u64, 0x100, 0xff0, 0x10 | MISSED_EVENTS | MISSED_STORED] {
            assert_eq!(layout.is_big_endian(&page(used.to_le_bytes())), Some(false), "{used:x}");
            assert_eq!(layout.is_big_endian(&page(used.to_be_bytes())), Some(true), "{used:x}");
        }
        // Empty pages, and damaged ones, are passed.
        let pages = [page([0; 8]), page([0xff; 8]), page(8u64.to_be_bytes())].concat();
        assert_eq!(layout.is_big_endian(&pages), Some(true));
        assert_eq!(layout.is_big_endian(&pages[..8192]), None);
        assert_eq!(layout.is_big_endian(&[]), None);
        let of_32_bits = PageLayout { commit_at: 8, commit_size: 4, data_at: 12, data_size: 4084 };
        let mut page = vec![0; 4096];
        page[8..12].copy_from_slice(&(0xff4u32 | 1 << 31).to_be_bytes());
        assert_eq!(of_32_bits.is_big_endian(&page), Some(true));
    }

    #[test]
    fn pages_of_32_and_64_bits() {
        let text = b"\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\tfield: local_t commit;\toffset:8;\tsize:4;\tsigned:1;\n\tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\tfield: char data;\toffset:12;\tsize:16372;\tsigned:0;\n";
        let layout = PageLayout::parse(text).expect("a layout");
        assert_eq!((layout.commit_size, layout.page_size()), (4, 16384));
        assert!(PageLayout::parse(b"field: local_t commit; offset:8; size:8;").is_err());
        assert!(
            PageLayout::parse(
                b"field: local_t commit; offset:8; size:8;\nfield: char data; offset:99999999999; size:8;"
            )
            .is_err()
        );
    }
}
