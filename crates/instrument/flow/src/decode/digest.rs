// SPDX-License-Identifier: MIT OR Apache-2.0
//! Digests of the decoded flow, segment by segment, for comparison with another decoder.

use kprism_image::Image;
use kprism_image::resolve::Regions;
use kprism_pt::find_psb;

use crate::clock::ClockConfig;
use crate::decode::decoder::{Decoder, Setup};
use crate::decode::errata::Errata;
use crate::decode::event::{Event, Sink};

/// Digest of one segment, from a PSB to the next, decoded on its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest {
    /// Offset of the PSB in the stream.
    pub offset: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// 64-bit FNV-1a over the instructions' addresses, eight little-endian bytes each, in order.
    pub hash: u64,
    /// Decoding errors. Overflows in the processor are not among them.
    pub errors: u64,
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

/// A sink that hashes the instructions' addresses.
#[derive(Debug)]
struct Hash(u64);

impl Sink for Hash {
    const IPS: bool = true;

    fn event(&mut self, _event: Event) {}

    fn time(&mut self, _insns: u32, _ns: u64) {}

    fn ips(&mut self, ips: &[u64]) {
        for ip in ips {
            for byte in ip.to_le_bytes() {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
            }
        }
    }
}

/// Offsets of all PSBs: where decoding may start.
pub fn segments(bytes: &[u8]) -> Vec<usize> {
    let mut offsets = Vec::new();
    let mut from = 0;
    while let Some(psb) = find_psb(bytes, from) {
        offsets.push(psb);
        from = psb + 16;
    }
    offsets
}

/// Decodes each segment by itself, up to the address that the next PSB states. Neither functions nor times are in a digest.
pub fn segment_digests(bytes: &[u8], image: &Image) -> Vec<Digest> {
    let (resolver, clock, errata) = (&Regions::default(), ClockConfig::default(), Errata::default());
    let setup = Setup { image, resolver, clock, watch: None, errata };
    let offsets = segments(bytes);
    let mut decoder = Decoder::new(bytes, setup, true);
    let ends = offsets.iter().skip(1).copied().chain([bytes.len()]);
    offsets
        .iter()
        .zip(ends)
        .map(|(&from, to)| {
            let mut hash = Hash(FNV_OFFSET);
            let stats = decoder.run(from, to, &mut hash);
            Digest {
                offset: from as u64,
                instructions: stats.instructions,
                hash: hash.0,
                errors: stats.errors,
            }
        })
        .collect()
}
