// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events that packets state beside the control flow: values that a program wrote (PTWRITE), power states, interrupts and
//! other events with their vectors (event trace), PEBS records, changes of the core's clock.
//!
//! A packet's event is told at its place in the flow: behind the PTWRITE instruction, or before the instruction that the FUP
//! behind the packet names. Packets that wait for such a FUP, or for the instruction that they belong to, are in
//! `Waiting`.

use kprism_pt::Packet;

/// Kind of an event, by its packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum PacketEventKind {
    /// PTW: a PTWRITE instruction wrote a value.
    Ptwrite,
    /// MWAIT: the instruction asked for a C-state.
    Mwait,
    /// PWRE: a C-state was entered.
    Pwre,
    /// PWRX: a C-state was left.
    Pwrx,
    /// EXSTOP: execution stopped.
    Exstop,
    /// CFE: an event of the control flow, such as an interrupt.
    Cfe,
    /// EVD: data of the next CFE.
    Evd,
    /// BBP: a block of values begins.
    Bbp,
    /// BIP: a value of a block.
    Bip,
    /// BEP: the block ends.
    Bep,
    /// CBR: the ratio of the core's clock to the bus clock.
    Cbr,
    /// TRIG: a trigger matched.
    Trig,
    /// MNT: data that only the processor's maker knows.
    Mnt,
}

impl PacketEventKind {
    /// All kinds, with their words and meanings.
    pub const ALL: &[(PacketEventKind, &[&str], &str)] = &[
        (PacketEventKind::Ptwrite, &["ptwrite"], "Values that programs wrote with PTWRITE"),
        (PacketEventKind::Mwait, &["mwait"], "MWAIT asked for a C-state"),
        (PacketEventKind::Pwre, &["pwre"], "Entries of C-states"),
        (PacketEventKind::Pwrx, &["pwrx"], "Ends of C-states"),
        (PacketEventKind::Exstop, &["exstop"], "Execution stopped"),
        (
            PacketEventKind::Cfe,
            &["cfe"],
            "Events of the control flow, such as interrupts, with their vectors",
        ),
        (PacketEventKind::Evd, &["evd"], "Data of the next event of the control flow"),
        (PacketEventKind::Bbp, &["bbp"], "Beginnings of blocks of values (PEBS)"),
        (PacketEventKind::Bip, &["bip"], "Values of blocks"),
        (PacketEventKind::Bep, &["bep"], "Ends of blocks"),
        (PacketEventKind::Cbr, &["cbr"], "Changes of the core's clock, as a multiple of the bus clock"),
        (PacketEventKind::Trig, &["trig"], "Triggers that matched"),
        (PacketEventKind::Mnt, &["mnt"], "Maintenance packets"),
    ];

    /// Its word.
    pub fn name(self) -> &'static str {
        Self::ALL[self as usize].1[0]
    }

    /// The kind of a packet's event; `None` if the packet tells the flow or the time.
    pub fn of(packet: &Packet) -> Option<Self> {
        Some(match packet {
            Packet::Ptw { .. } => Self::Ptwrite,
            Packet::Mwait { .. } => Self::Mwait,
            Packet::Pwre { .. } => Self::Pwre,
            Packet::Pwrx { .. } => Self::Pwrx,
            Packet::Exstop { .. } => Self::Exstop,
            Packet::Cfe { .. } => Self::Cfe,
            Packet::Evd { .. } => Self::Evd,
            Packet::Bbp { .. } => Self::Bbp,
            Packet::Bip { .. } => Self::Bip,
            Packet::Bep { .. } => Self::Bep,
            Packet::Cbr { .. } => Self::Cbr,
            Packet::Trig { .. } => Self::Trig,
            Packet::Mnt { .. } => Self::Mnt,
            Packet::Pad
            | Packet::Psb
            | Packet::PsbEnd
            | Packet::Tnt { .. }
            | Packet::Tip(_)
            | Packet::TipPge(_)
            | Packet::TipPgd(_)
            | Packet::Fup(_)
            | Packet::ModeExec { .. }
            | Packet::ModeTsx { .. }
            | Packet::Pip { .. }
            | Packet::Vmcs { .. }
            | Packet::Tsc { .. }
            | Packet::Tma { .. }
            | Packet::Mtc { .. }
            | Packet::Cyc { .. }
            | Packet::Ovf
            | Packet::TraceStop => return None,
        })
    }
}

/// An event at its place in the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketEvent {
    /// The packet.
    pub packet: Packet,
    /// The instruction that it belongs to, if the packet or the code says so.
    pub ip: Option<u64>,
    /// It is a CBR in a PSB+, which states the ratio and is no change. It is told once, and when the ratio is another one.
    pub restated: bool,
}

/// Number of packets for each kind. A CBR inside PSB+ is not counted: it restates the ratio.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketEventCounts([u64; PacketEventKind::ALL.len()]);

impl PacketEventCounts {
    pub(crate) fn count(&mut self, kind: PacketEventKind) {
        self.0[kind as usize] += 1;
    }

    /// Adds the counts of another part.
    pub fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, n)| *sum += n);
    }

    /// The kinds that came, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (PacketEventKind, u64)> {
        PacketEventKind::ALL.iter().zip(self.0).map(|(kind, n)| (kind.0, n)).filter(|(_, n)| *n > 0)
    }
}

/// Packets whose instruction is not known yet, in their order.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub packets: Vec<Packet>,
    /// The instruction of those that wait for its branch, if a FUP named it.
    pub branch: Option<u64>,
    /// The ratio told last.
    pub ratio: Option<u8>,
    /// The ratio that a PSB+ states.
    pub stated: Option<u8>,
}
