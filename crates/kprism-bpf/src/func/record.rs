// SPDX-License-Identifier: MIT OR Apache-2.0
//! A kept call, as the program writes it into the ring and `streams/bpf/calls.bin` holds it.
//!
//! 64 bytes, little-endian: `function u64, enter_ns u64, exit_ns u64, pid u32, tgid u32, cpu u32, depth u32,
//! child_ns u64, comm [u8; 16]`. In the ring `function` is a number, in the file an address.

/// Bytes of one.
pub const RECORD_BYTES: usize = 64;

/// One call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The function.
    pub function: u64,
    /// When it was entered, on the kernel's monotonic clock.
    pub enter_ns: u64,
    /// When it returned.
    pub exit_ns: u64,
    /// The thread.
    pub pid: u32,
    /// Its process.
    pub tgid: u32,
    /// Where it returned.
    pub cpu: u32,
    /// How many traced calls were open around it.
    pub depth: u32,
    /// What traced calls from it took.
    pub child_ns: u64,
    /// The thread's name, padded with NUL.
    pub comm: [u8; 16],
}

impl Call {
    /// From its bytes.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let mut comm = [0; 16];
        comm.copy_from_slice(&bytes[48..]);
        Self {
            function: word(0),
            enter_ns: word(8),
            exit_ns: word(16),
            pid: word(24) as u32,
            tgid: (word(24) >> 32) as u32,
            cpu: word(32) as u32,
            depth: (word(32) >> 32) as u32,
            child_ns: word(40),
            comm,
        }
    }

    /// To its bytes.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let words = [
            self.function,
            self.enter_ns,
            self.exit_ns,
            pair(self.pid, self.tgid),
            pair(self.cpu, self.depth),
            self.child_ns,
        ];
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes[48..].copy_from_slice(&self.comm);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let bytes: [u8; RECORD_BYTES] = std::array::from_fn(|i| i as u8);
        let call = Call::decode(&bytes);
        assert_eq!((call.tgid, call.depth), (0x1f1e_1d1c, 0x2726_2524));
        assert_eq!(call.encode(), bytes);
    }
}
