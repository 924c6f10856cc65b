// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opcode bytes (SDM vol. 3, "Packet Definitions", first table of each packet).

/// Low five bits of the four packets that carry an IP; IPBytes in bits 7:5.
pub const TIP: u8 = 0x0d;
pub const TIP_PGE: u8 = 0x11;
pub const TIP_PGD: u8 = 0x01;
pub const FUP: u8 = 0x1d;
/// Mask of these opcodes.
pub const IP_MASK: u8 = 0x1f;

pub const PAD: u8 = 0x00;
pub const TSC: u8 = 0x19;
pub const MTC: u8 = 0x59;
pub const MODE: u8 = 0x99;
pub const TRIG: u8 = 0xd9;
/// CYC: the two low bits; bit 2 says that more bytes follow.
pub const CYC: u8 = 0x03;
/// BIP: the three low bits, inside a block only; item number in bits 7:3.
pub const BIP: u8 = 0x04;
/// First byte of all two-byte opcodes below.
pub const EXT: u8 = 0x02;

pub const EXT_PSB: u8 = 0x82;
pub const EXT_PSBEND: u8 = 0x23;
pub const EXT_TNT64: u8 = 0xa3;
pub const EXT_PIP: u8 = 0x43;
pub const EXT_VMCS: u8 = 0xc8;
pub const EXT_CBR: u8 = 0x03;
pub const EXT_TMA: u8 = 0x73;
pub const EXT_OVF: u8 = 0xf3;
pub const EXT_STOP: u8 = 0x83;
/// Maintenance page: a third opcode byte follows.
pub const EXT_EXT2: u8 = 0xc3;
pub const EXT2_MNT: u8 = 0x88;
/// PTW: IP in bit 7, payload size in bits 6:5 (0: 4 bytes, 1: 8 bytes).
pub const EXT_PTW: u8 = 0x12;
pub const EXT_EXSTOP: u8 = 0x62;
pub const EXT_MWAIT: u8 = 0xc2;
pub const EXT_PWRE: u8 = 0x22;
pub const EXT_PWRX: u8 = 0xa2;
pub const EXT_BBP: u8 = 0x63;
pub const EXT_BEP: u8 = 0x33;
pub const EXT_CFE: u8 = 0x13;
pub const EXT_EVD: u8 = 0x53;
/// IP bit of the `02` opcodes that have one: a FUP follows.
pub const EXT_IP: u8 = 0x80;

/// MODE leaf in bits 7:5 of the payload.
pub const MODE_LEAF: u8 = 0xe0;
pub const MODE_EXEC: u8 = 0x00;
pub const MODE_TSX: u8 = 0x20;
