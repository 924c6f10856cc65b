// SPDX-License-Identifier: MIT OR Apache-2.0
//! BTF, the kernel's own description of its types (Documentation/bpf/btf.rst): where a member lies in a struct.
//!
//! In: the bytes of `/sys/kernel/btf/vmlinux`, or any bytes at all. Out: offsets, or an error that says where
//! the bytes stop making sense. Only structs and unions are kept.

use std::collections::HashMap;

const MAGIC: u16 = 0xeb9f;
/// Anonymous members within anonymous members: the kernel has a handful of levels.
const DEEPEST: u32 = 32;

/// Why bytes are no BTF.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset}: expected {expected}")]
pub struct BtfError {
    /// Where, from the start of the bytes.
    pub offset: usize,
    /// What should have been there.
    pub expected: &'static str,
}

/// The types of one BTF section, over its bytes.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type's record lies in `types`, by type ID - 1.
    records: Vec<u32>,
    /// Structs and unions by name; the first wins.
    named: HashMap<&'a [u8], u32>,
}

/// Kinds, `BTF_KIND_*` of include/uapi/linux/btf.h.
mod kind {
    pub const STRUCT: u32 = 4;
    pub const UNION: u32 = 5;
    pub const TYPEDEF: u32 = 8;
    pub const VOLATILE: u32 = 9;
    pub const CONST: u32 = 10;
    pub const RESTRICT: u32 = 11;
    pub const TYPE_TAG: u32 = 18;
}

impl<'a> Btf<'a> {
    /// Checks the whole section and indexes it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let word = |offset| word(bytes, offset);
        let magic = word(0)?;
        if magic & 0xffff != u32::from(MAGIC) {
            return Err(BtfError { offset: 0, expected: "the magic number 0xeb9f, little-endian" });
        }
        if magic >> 16 & 0xff != 1 {
            return Err(BtfError { offset: 2, expected: "version 1" });
        }
        let header = word(4)? as usize;
        let section = |at: usize, expected| -> Result<(usize, &'a [u8]), BtfError> {
            let start = header.saturating_add(word(at)? as usize);
            let end = start.saturating_add(word(at + 4)? as usize);
            Ok((start, bytes.get(start..end).ok_or(BtfError { offset: at, expected })?))
        };
        let (types_at, types) = section(8, "a type section within the bytes")?;
        let (_, strings) = section(16, "a string section within the bytes")?;
        let mut btf = Self { types, strings, records: Vec::new(), named: HashMap::new() };
        let mut at = 0;
        while at < types.len() {
            let here = |error: BtfError| BtfError { offset: types_at + error.offset, ..error };
            let size = btf.record_size(at).map_err(here)?;
            if types.len() - at < size {
                return Err(BtfError { offset: types_at + at, expected: "a whole type record" });
            }
            btf.records.push(at as u32);
            let record = btf.record(btf.records.len() as u32).map_err(here)?;
            if record.is_composite() && !record.name.is_empty() {
                btf.named.entry(record.name).or_insert(btf.records.len() as u32);
            }
            at += size;
        }
        Ok(btf)
    }

    /// Offset in bytes of `member` in the struct or union `name`; members of anonymous members count as its
    /// own. None if there is no such member, or it is a bit-field.
    pub fn offset(&self, name: &str, member: &str) -> Option<u64> {
        let bits = self.find(*self.named.get(name.as_bytes())?, member.as_bytes(), DEEPEST)?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    /// Offset in bits.
    fn find(&self, id: u32, member: &[u8], depth: u32) -> Option<u64> {
        let record = self.record(self.strip(id)?).ok()?;
        if !record.is_composite() || depth == 0 {
            return None;
        }
        for index in 0..record.count {
            let at = record.at + 12 + index * 12;
            let name = self.string(word(self.types, at).ok()?)?;
            let offset = word(self.types, at + 8).ok()?;
            // With the flag, the top byte is a bit-field's width.
            let offset = u64::from(if record.flag { offset & 0xff_ffff } else { offset });
            if name == member {
                return Some(offset);
            }
            if name.is_empty()
                && let Some(inner) = self.find(word(self.types, at + 4).ok()?, member, depth - 1)
            {
                return Some(offset + inner);
            }
        }
        None
    }

    /// The type itself, below qualifiers and names.
    fn strip(&self, mut id: u32) -> Option<u32> {
        for _ in 0..DEEPEST {
            let record = self.record(id).ok()?;
            match record.kind {
                kind::TYPEDEF | kind::VOLATILE | kind::CONST | kind::RESTRICT | kind::TYPE_TAG => {
                    id = record.size
                }
                _ => return Some(id),
            }
        }
        None
    }

    fn record(&self, id: u32) -> Result<Record<'a>, BtfError> {
        let missing = BtfError { offset: 0, expected: "a type ID that exists" };
        let at =
            *id.checked_sub(1).and_then(|index| self.records.get(index as usize)).ok_or(missing)? as usize;
        let info = word(self.types, at + 4)?;
        let name = self
            .string(word(self.types, at)?)
            .ok_or(BtfError { offset: at, expected: "a name within the string section" })?;
        Ok(Record {
            at,
            name,
            kind: info >> 24 & 0x1f,
            flag: info >> 31 == 1,
            count: (info & 0xffff) as usize,
            size: word(self.types, at + 8)?,
        })
    }

    fn record_size(&self, at: usize) -> Result<usize, BtfError> {
        let info = word(self.types, at + 4)?;
        let count = (info & 0xffff) as usize;
        Ok(12
            + match info >> 24 & 0x1f {
                1 | 14 | 17 => 4,                                   // INT, VAR, DECL_TAG
                2 | 7..=12 | 16 | 18 => 0, // PTR, FWD, TYPEDEF, qualifiers, FUNC, FLOAT, TYPE_TAG
                3 => 12,                   // ARRAY
                kind::STRUCT | kind::UNION | 15 | 19 => count * 12, // and DATASEC, ENUM64
                6 | 13 => count * 8,       // ENUM, FUNC_PROTO
                _ => return Err(BtfError { offset: at + 4, expected: "a known kind of type, 1 to 19" }),
            })
    }

    fn string(&self, offset: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(offset as usize..)?;
        rest.split(|&byte| byte == 0).next()
    }
}

/// One type.
struct Record<'a> {
    at: usize,
    name: &'a [u8],
    kind: u32,
    flag: bool,
    count: usize,
    /// Size, or the ID of the type that this one is made of.
    size: u32,
}

impl Record<'_> {
    fn is_composite(&self) -> bool {
        matches!(self.kind, kind::STRUCT | kind::UNION)
    }
}

fn word(bytes: &[u8], offset: usize) -> Result<u32, BtfError> {
    let field = bytes.get(offset..offset.saturating_add(4)).and_then(|field| field.try_into().ok());
    field.map(u32::from_le_bytes).ok_or(BtfError { offset, expected: "four more bytes" })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A section of `types` (words) and `strings`.
    fn section(types: &[u32], strings: &[u8]) -> Vec<u8> {
        let length = types.len() as u32 * 4;
        let mut bytes: Vec<u8> = [0x0001_eb9f, 24, 0, length, length, strings.len() as u32]
            .iter()
            .chain(types)
            .flat_map(|word| word.to_le_bytes())
            .collect();
        bytes.extend_from_slice(strings);
        bytes
    }

    /// `struct s { int a; union { const struct { int c, d; } (anonymous); int e; }; int f : 3; }`
    fn example() -> Vec<u8> {
        let strings = b"\0s\0a\0c\0d\0e\0f\0int\0";
        let kind = |kind: u32, count: u32| kind << 24 | count;
        let types = [
            13,
            kind(1, 0),
            4,
            32, // 1: int
            0,
            kind(4, 2),
            8,
            5,
            1,
            0,
            7,
            1,
            32, // 2: struct { c, d }
            0,
            kind(10, 0),
            2, // 3: const 2
            0,
            kind(5, 2),
            8,
            0,
            3,
            0,
            9,
            1,
            0, // 4: union { 3; e }
            1,
            kind(4, 3) | 1 << 31,
            16,
            3,
            1,
            0,
            0,
            4,
            64,
            11,
            1,
            3 << 24 | 129, // 5: struct s
        ];
        section(&types, strings)
    }

    #[test]
    fn members_of_anonymous_members_are_found() {
        let bytes = example();
        let btf = Btf::parse(&bytes).unwrap();
        let offsets = ["a", "c", "d", "e", "f", "x"].map(|member| btf.offset("s", member));
        assert_eq!(offsets, [Some(0), Some(8), Some(12), Some(8), None, None]);
        assert_eq!(btf.offset("int", "a"), None);
    }

    #[test]
    fn a_type_within_itself_ends() {
        let types = [1, 4 << 24 | 1, 8, 0, 1, 0];
        let bytes = section(&types, b"\0s\0");
        assert_eq!(Btf::parse(&bytes).unwrap().offset("s", "a"), None);
        let circle = [0, 10 << 24, 1, 1, 4 << 24 | 1, 8, 0, 1, 0];
        let bytes = section(&circle, b"\0s\0");
        assert_eq!(Btf::parse(&bytes).unwrap().offset("s", "a"), None);
    }

    #[test]
    fn errors_tell_the_place() {
        assert_eq!(Btf::parse(b"").unwrap_err().offset, 0);
        assert_eq!(Btf::parse(&[0; 24]).unwrap_err().offset, 0);
        let bytes = example();
        assert_eq!(Btf::parse(&bytes[..bytes.len() - 1]).unwrap_err().offset, 16);
        let unknown = section(&[0, 31 << 24, 0], b"\0");
        assert_eq!(Btf::parse(&unknown).unwrap_err().offset, 28);
        let short = section(&[0, 4 << 24 | 9, 0], b"\0");
        assert_eq!(Btf::parse(&short).unwrap_err(), BtfError { offset: 24, expected: "a whole type record" });
    }

    #[test]
    fn any_bytes_give_a_value_or_an_error() {
        let good = example();
        // A fixed sequence of pseudo-random damage: failures can be repeated.
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize
        };
        for _ in 0..50_000 {
            let mut bytes = good.clone();
            for _ in 0..1 + next() % 6 {
                let at = next() % bytes.len();
                bytes[at] = next() as u8;
            }
            bytes.truncate(bytes.len() - next() % 8);
            if let Ok(btf) = Btf::parse(&bytes) {
                for member in ["a", "d", "f", "zzz"] {
                    btf.offset("s", member);
                }
            }
        }
    }
}
