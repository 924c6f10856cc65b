// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intel Processor Trace packets: bytes to [`Packet`] values and back.
//!
//! **In:** a byte slice holding (part of) a PT stream, as the processor, or a simulator, wrote it.
//! **Out:** packets with the offset each one starts at, or an error that names the offset.
//!
//! **Why a crate of its own:** the same encoding is *read* by the flow decoder and *written* by the
//! whole-system observer, and the two must agree to the bit. Keeping both directions over one [`Packet`]
//! type lets property tests and fuzzing hold them together.
//!
//! This layer knows nothing of instructions: it does not follow control flow and keeps only the one bit of
//! context the encoding itself demands, namely whether a block of BIP packets is open and how wide its items
//! are. IP decompression needs the previous IP, so packets carry the compressed [`IpPayload`] and [`LastIp`]
//! turns it into addresses.
//!
//! ```
//! use kprism_pt::{IpPayload, LastIp, Packet, PacketReader};
//!
//! let mut bytes = Vec::new();
//! Packet::Psb.encode(&mut bytes);
//! Packet::PsbEnd.encode(&mut bytes);
//! let mut ip = LastIp::default();
//! Packet::TipPge(ip.compress(0xffff_ffff_8100_0000)).encode(&mut bytes);
//!
//! let packets: Vec<_> = PacketReader::new(&bytes).collect::<Result<_, _>>().unwrap();
//! assert_eq!(packets[2], (18, Packet::TipPge(IpPayload::Sext48(0xffff_8100_0000))));
//! ```
//!
//! Layout: [`Packet`] is the vocabulary, `opcode` the byte values, `decode` and `encode` the two directions,
//! `reader` the iterator, `sync` the search for PSB, `ip` the IP compression, [`mix`] the shares of a stream.
//!
//! Source for every encoding: Intel 64 and IA-32 Architectures Software Developer's Manual (SDM), volume 3,
//! chapter "Intel Processor Trace", section "Packet Definitions"; block items and event trace packets
//! included. Reserved bits are ignored on reading and written as zero, except where a set bit can only mean
//! that the stream is out of step (TMA, MODE leaf).

#![forbid(unsafe_code)]

mod decode;
mod encode;
mod error;
mod ip;
pub mod mix;
mod opcode;
mod packet;
mod reader;
mod sync;

pub use error::{PacketError, PacketErrorKind};
pub use ip::{IpPayload, LastIp};
pub use packet::Packet;
pub use reader::PacketReader;
pub use sync::{PSB, find_psb};
