// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls that a recorder kept: `streams/bpf/calls.bin`.
//!
//! Records of 72 bytes, little-endian, no header, in the order in which the calls ended on each CPU:
//!
//! | offset | type | meaning |
//! |---|---|---|
//! | 0 | u64 | address of the function |
//! | 8 | u64 | time of entry, ns |
//! | 16 | u64 | time of exit, ns |
//! | 24 | u32 | thread id |
//! | 28 | u32 | process id |
//! | 32 | u32 | CPU of the exit |
//! | 36 | u32 | traced functions of the same thread that were open at entry |
//! | 40 | u64 | ns on a CPU in traced functions called by it |
//! | 48 | [u8; 16] | name of the task, ended by 0 |
//! | 64 | u64 | ns off the CPU, in it or in its callees |
//!
//! The crate reads them to [`CallRecord`]s, and writes them. A file that ends inside a record gives an error after the
//! complete ones.

/// Size of a record, bytes.
pub const SIZE: usize = 72;

/// A call that a recorder kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallRecord {
    /// Address of the function.
    pub func: u64,
    /// Time of entry, ns.
    pub enter_ns: u64,
    /// Time of exit, ns.
    pub exit_ns: u64,
    /// Thread id.
    pub pid: u32,
    /// Process id.
    pub tgid: u32,
    /// CPU of the exit.
    pub cpu: u32,
    /// Traced functions of the same thread that were open at entry.
    pub depth: u32,
    /// Time on a CPU in traced functions called by it, ns.
    pub child_ns: u64,
    /// Time off the CPU, in it or in its callees, ns.
    pub off_ns: u64,
    /// Name of the task, ended by 0.
    pub comm: [u8; 16],
}

/// The last record is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("calls.bin: offset {offset}: expected a record of {SIZE} bytes, found {found}")]
pub struct CutShort {
    /// Offset of its start.
    pub offset: u64,
    /// Number of bytes present.
    pub found: usize,
}

impl CallRecord {
    /// Encodes the record.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; SIZE] {
        let mut out = [0; SIZE];
        out[0..8].copy_from_slice(&self.func.to_le_bytes());
        out[8..16].copy_from_slice(&self.enter_ns.to_le_bytes());
        out[16..24].copy_from_slice(&self.exit_ns.to_le_bytes());
        out[24..28].copy_from_slice(&self.pid.to_le_bytes());
        out[28..32].copy_from_slice(&self.tgid.to_le_bytes());
        out[32..36].copy_from_slice(&self.cpu.to_le_bytes());
        out[36..40].copy_from_slice(&self.depth.to_le_bytes());
        out[40..48].copy_from_slice(&self.child_ns.to_le_bytes());
        out[48..64].copy_from_slice(&self.comm);
        out[64..72].copy_from_slice(&self.off_ns.to_le_bytes());
        out
    }

    /// Decodes a record.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; SIZE]) -> Self {
        let quad = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let long = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        CallRecord {
            func: quad(0),
            enter_ns: quad(8),
            exit_ns: quad(16),
            pid: long(24),
            tgid: long(28),
            cpu: long(32),
            depth: long(36),
            child_ns: quad(40),
            comm: std::array::from_fn(|i| bytes[48 + i]),
            off_ns: quad(64),
        }
    }

    /// The task's name.
    #[must_use]
    pub fn comm(&self) -> String {
        String::from_utf8_lossy(self.comm_bytes()).into_owned()
    }

    /// The task's name without the bytes behind its end, as the kernel has it: it need not be UTF-8.
    #[must_use]
    pub fn comm_bytes(&self) -> &[u8] {
        let end = self.comm.iter().position(|&b| b == 0).unwrap_or(self.comm.len());
        &self.comm[..end]
    }
}

/// The records of a file.
pub fn read(bytes: &[u8]) -> impl Iterator<Item = Result<CallRecord, CutShort>> + '_ {
    bytes.chunks(SIZE).enumerate().map(|(i, chunk)| {
        let whole: &[u8; SIZE] =
            chunk.try_into().map_err(|_| CutShort { offset: (i * SIZE) as u64, found: chunk.len() })?;
        Ok(CallRecord::from_bytes(whole))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_record_comes_back(bytes in prop::array::uniform32(any::<u8>()), more in prop::array::uniform32(any::<u8>()), last: [u8; 8]) {
            let whole: [u8; SIZE] = std::array::from_fn(|i| match i {
                0..32 => bytes[i],
                32..64 => more[i - 32],
                _ => last[i - 64],
            });
            prop_assert_eq!(CallRecord::from_bytes(&whole).to_bytes(), whole);
        }
    }

    #[test]
    fn fields_lie_where_the_page_says() {
        let mut bytes = [0; SIZE];
        (0..SIZE).for_each(|i| bytes[i] = i as u8);
        let record = CallRecord::from_bytes(&bytes);
        assert_eq!((record.func & 0xff, record.enter_ns & 0xff, record.exit_ns & 0xff), (0, 8, 16));
        assert_eq!(
            [record.pid & 0xff, record.tgid & 0xff, record.cpu & 0xff, record.depth & 0xff],
            [24, 28, 32, 36]
        );
        assert_eq!((record.child_ns & 0xff, record.comm[0], record.off_ns & 0xff), (40, 48, 64));
    }

    #[test]
    fn a_file_cut_short_gives_what_is_whole() {
        let record = CallRecord {
            func: 1,
            enter_ns: 2,
            exit_ns: 3,
            comm: *b"ls\0\0\0\0\0\0\0\0\0\0\0\0\0\0",
            ..Default::default()
        };
        let mut file = record.to_bytes().to_vec();
        file.extend([0; 10]);
        let read: Vec<_> = read(&file).collect();
        assert_eq!(read, [Ok(record), Err(CutShort { offset: 72, found: 10 })]);
        assert_eq!((record.comm().as_str(), record.comm_bytes()), ("ls", &b"ls"[..]));
    }
}
