// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packet iterator.

use std::iter::FusedIterator;

use crate::decode::{Decoded, WINDOW, bip, decode};
use crate::opcode::{BIP, EXT, EXT_EXT2, EXT_OVF, EXT_TMA, EXT_TNT64};
use crate::{PSB, Packet, PacketError, PacketErrorKind, find_psb};

/// State of the BIP block, with the width of its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Closed,
    Open { size4: bool },
}

/// Errata of processors that change the bytes of packets. On other processors the same bytes mean something else, so a
/// reader applies none unless [`PacketReader::with_errata`] says so.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByteErrata {
    /// SKD007: an OVF may take the place of all but the first byte of a CYC. The CYC is lost with it.
    pub skd007: bool,
    /// SKZ84: a TMA in a guest whose TSC is offset or scaled has wrong values, and a byte too many.
    pub skz84: bool,
}

/// Length of the TMA of SKZ84, bytes.
const BROKEN_TMA: usize = 8;

/// Iterates over a stream's packets: `(offset, packet)` or an error that names the offset.
///
/// After an error the iterator is exhausted, because packets have no common length field to skip by. Continue with
/// [`PacketReader::resync`], which always makes progress. A reader may start at any offset, but its output is
/// meaningful only from a packet boundary on. PSB is the only boundary that can be searched for.
#[derive(Debug, Clone)]
pub struct PacketReader<'a> {
    bytes: &'a [u8],
    pos: usize,
    block: Block,
    failed: bool,
    errata: ByteErrata,
}

impl<'a> PacketReader<'a> {
    /// Starts at the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::at(bytes, 0)
    }

    /// Starts at `offset`, which must be a packet boundary outside a BIP block. An offset past the end counts as the
    /// end.
    pub fn at(bytes: &'a [u8], offset: usize) -> Self {
        let errata = ByteErrata { skd007: false, skz84: false };
        Self { bytes, pos: offset.min(bytes.len()), block: Block::Closed, failed: false, errata }
    }

    /// The same reader for a processor with these errata.
    #[must_use]
    pub fn with_errata(self, errata: ByteErrata) -> Self {
        Self { errata, ..self }
    }

    /// Goes to `offset`, which must be as in [`PacketReader::at`].
    #[inline(always)]
    pub fn seek(&mut self, offset: usize) {
        self.pos = offset.min(self.bytes.len());
        self.block = Block::Closed;
        self.failed = false;
    }

    /// After an error: goes on behind a TMA broken by SKZ84, if it is one, and returns its length. Only reserved bits that are
    /// set tell it from a whole one.
    pub fn skip_broken_tma(&mut self) -> Option<usize> {
        let broken = self.errata.skz84
            && self.failed
            && self.bytes.get(self.pos..self.pos + BROKEN_TMA)?.starts_with(&[EXT, EXT_TMA]);
        broken.then(|| {
            self.pos += BROKEN_TMA;
            self.failed = false;
            BROKEN_TMA
        })
    }

    /// Offset of the next packet; after an error, of the packet that caused it.
    #[inline]
    pub fn offset(&self) -> usize {
        self.pos
    }

    /// Moves to the next PSB at or after [`PacketReader::offset`] and returns its offset. `None` if there is none; the
    /// reader is then at the end.
    ///
    /// After an error, the PSB may begin up to 15 bytes earlier. If a packet was truncated by the wrap of a buffer or
    /// the end of a snapshot, the reader takes the beginning of the following PSB for the packet's tail, and fails only
    /// inside the PSB. The PSB always ends after the error, so a reader that continues there makes progress.
    pub fn resync(&mut self) -> Option<usize> {
        let from = if self.failed { self.pos.saturating_sub(PSB.len() - 1) } else { self.pos };
        let psb = find_psb(self.bytes, from);
        self.seek(psb.unwrap_or(self.bytes.len()));
        psb
    }

    /// Decodes within 16 bytes of the end: from a zero-padded copy, with a check of the length afterwards.
    #[cold]
    fn decode_tail(&self) -> Decoded {
        let rest = &self.bytes[self.pos..];
        let mut window = [0; WINDOW];
        window[..rest.len()].copy_from_slice(rest);
        match self.decode_window(&window) {
            Ok((_, len)) if len > rest.len() => Err(PacketErrorKind::Truncated),
            Err(_) if is_cut_off(rest) => Err(PacketErrorKind::Truncated),
            decoded => decoded,
        }
    }

    #[inline(always)]
    fn decode_window(&self, window: &[u8; WINDOW]) -> Decoded {
        match self.block {
            Block::Open { size4 } if window[0] & 7 == BIP => Ok(bip(window, size4)),
            _ => decode(window),
        }
    }

    /// Tracks BIP blocks. SDM, "Block Begin Packet (BBP)": packets that are allowed inside a block leave it open; all
    /// others close it, even without a BEP.
    #[inline(always)]
    fn track_block(&mut self, packet: &Packet) {
        match packet {
            Packet::Bbp { size4, .. } => self.block = Block::Open { size4: *size4 },
            _ if self.block == Block::Closed => {}
            Packet::Pad
            | Packet::Tsc { .. }
            | Packet::Tma { .. }
            | Packet::Mtc { .. }
            | Packet::Cyc { .. }
            | Packet::Cbr { .. }
            | Packet::Mnt { .. }
            | Packet::Fup(_)
            | Packet::Exstop { .. }
            | Packet::Pwre { .. }
            | Packet::Pwrx { .. }
            | Packet::Bip { .. } => {}
            Packet::Psb
            | Packet::PsbEnd
            | Packet::Tnt { .. }
            | Packet::Tip(_)
            | Packet::TipPge(_)
            | Packet::TipPgd(_)
            | Packet::ModeExec { .. }
            | Packet::ModeTsx { .. }
            | Packet::Pip { .. }
            | Packet::Vmcs { .. }
            | Packet::Ovf
            | Packet::TraceStop
            | Packet::Ptw { .. }
            | Packet::Mwait { .. }
            | Packet::Bep { .. }
            | Packet::Cfe { .. }
            | Packet::Evd { .. }
            | Packet::Trig { .. } => self.block = Block::Closed,
        }
    }
}

/// Returns true if `rest`, the end of the stream, failed to decode only because it is truncated: an incomplete opcode,
/// or a payload that must not be zero.
fn is_cut_off(rest: &[u8]) -> bool {
    match rest {
        [EXT] | [EXT, EXT_EXT2] => true,
        [EXT, EXT_TNT64, ..] => rest.len() < 8,
        _ => PSB.starts_with(rest),
    }
}

impl Iterator for PacketReader<'_> {
    type Item = Result<(usize, Packet), PacketError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.pos;
        let rest = self.bytes.get(offset..)?;
        let decoded = match rest.first_chunk::<WINDOW>() {
            Some(window) if !self.failed => self.decode_window(window),
            _ if rest.is_empty() || self.failed => return None,
            _ => self.decode_tail(),
        };
        Some(match decoded {
            // A CYC of two bytes, of which the second is OVF's first, and behind it OVF's second.
            Ok((Packet::Cyc { .. }, 2)) if self.errata.skd007 && matches!(rest, [_, EXT, EXT_OVF, ..]) => {
                self.pos += 3;
                self.track_block(&Packet::Ovf);
                Ok((offset, Packet::Ovf))
            }
            Ok((packet, len)) => {
                self.pos += len;
                self.track_block(&packet);
                Ok((offset, packet))
            }
            Err(kind) => {
                self.failed = true;
                Err(PacketError { offset, kind })
            }
        })
    }
}

impl FusedIterator for PacketReader<'_> {}
