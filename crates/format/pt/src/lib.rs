// SPDX-License-Identifier: MIT OR Apache-2.0
//! Intel Processor Trace packets: bytes to [`Packet`] values and back.
//!
//! **Input:** a byte slice with (part of) a PT stream, as the processor or a simulator wrote it. **Output:** packets
//! with their offsets, or an error that contains the offset.
//!
//! **Why a crate of its own:** the flow decoder *reads* this encoding and the whole-system observer *writes* it, and
//! the two must agree exactly. With both directions over one [`Packet`] type, property tests and fuzzing can check
//! that.
//!
//! This layer does not know instructions or follow control flow. It keeps only the context that the encoding itself
//! needs: whether a block of BIP packets is open, and the width of its items. IP decompression needs the previous IP,
//! so packets contain the compressed [`IpPayload`], and [`LastIp`] converts it to addresses.
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
//! Modules: [`Packet`] defines the packets, `opcode` the byte values, `decode` and `encode` the two directions,
//! `reader` the iterator, `sync` the search for PSB, `ip` the IP compression, `text` names and payloads in words, [`mix`] the
//! statistics of a stream.
//!
//! Source for every encoding: Intel 64 and IA-32 Architectures Software Developer's Manual (SDM), volume 3, chapter
//! "Intel Processor Trace", section "Packet Definitions", including block items and event trace packets. Reserved bits
//! are ignored on reading and written as zero, except where a set bit can only mean that the reader is not at a packet
//! boundary (TMA, MODE leaf).

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
mod text;

pub use error::{PacketError, PacketErrorKind};
pub use ip::{IpPayload, LastIp};
pub use packet::Packet;
pub use reader::{ByteErrata, PacketReader};
pub use sync::{PSB, find_psb};
