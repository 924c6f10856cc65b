// SPDX-License-Identifier: MIT OR Apache-2.0
//! The packet types.

use crate::IpPayload;

/// One Intel PT packet. Names in quotes are the packets' names in the SDM (vol. 3, chapter "Intel Processor
/// Trace", section "Packet Definitions").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packet {
    /// "PAD": filler, no meaning.
    Pad,
    /// "PSB", packet stream boundary: a unique 16-byte pattern. Begins the PSB+ sequence, which restates the
    /// processor's state. Resets the last IP and the RET compression stack.
    Psb,
    /// "PSBEND": ends PSB+.
    PsbEnd,
    /// "TNT", taken / not taken, short or long form. The `len` (1..=47) low bits of `bits` are conditional branches or
    /// compressed returns, the oldest in the most significant bit; 1 is taken. Higher bits are 0.
    Tnt {
        /// The branch bits.
        bits: u64,
        /// Number of branch bits.
        len: u8,
    },
    /// "TIP": the target of an indirect branch, return, or event.
    Tip(IpPayload),
    /// "TIP.PGE": tracing begins, at this IP.
    TipPge(IpPayload),
    /// "TIP.PGD": tracing ends; the IP, if sent, is the first one not traced.
    TipPgd(IpPayload),
    /// "FUP", flow update: the source IP of an asynchronous event, or the IP that belongs to a preceding packet.
    Fup(IpPayload),
    /// "MODE.Exec": the code size from the next TIP or FUP on.
    ModeExec {
        /// CS.L and IA32_EFER.LMA: 64-bit code.
        cs_l: bool,
        /// CS.D: 32-bit code (16-bit when both are clear).
        cs_d: bool,
        /// RFLAGS.IF, if event trace is enabled.
        if_flag: bool,
    },
    /// "MODE.TSX": transaction state.
    ModeTsx {
        /// Inside a transaction.
        in_tx: bool,
        /// The transaction aborted.
        abort: bool,
    },
    /// "PIP", paging information: CR3 was written.
    Pip {
        /// CR3 as the register's value: bits 51:5; bits 4:0 are always 0.
        cr3: u64,
        /// VMX non-root operation.
        non_root: bool,
    },
    /// "VMCS": the current VMCS pointer.
    Vmcs {
        /// Physical address of the VMCS: bits 51:12.
        base: u64,
    },
    /// "CBR": the core:bus ratio (core clock in units of the bus clock, 100 MHz on most processors).
    Cbr {
        /// Core clock divided by bus clock.
        ratio: u8,
    },
    /// "TSC": the time-stamp counter.
    Tsc {
        /// Bits 55:0 of the TSC, in TSC ticks.
        tsc: u64,
    },
    /// "TMA", TSC/MTC alignment: the crystal clock at the time of the preceding TSC packet.
    Tma {
        /// Bits 15:0 of the common timestamp copy, in crystal clock ticks.
        ctc: u16,
        /// 9-bit fast counter: core clock ticks since that CTC value began.
        fast: u16,
    },
    /// "MTC", mini time counter.
    Mtc {
        /// 8 bits of the crystal clock: bits `MTCFreq+7 : MTCFreq`.
        ctc: u8,
    },
    /// "CYC": core clock cycles since the last CYC.
    Cyc {
        /// Cycles. Hardware saturates; the encoding carries any 64-bit value.
        cycles: u64,
    },
    /// "OVF": packets were lost.
    Ovf,
    /// "TraceStop": the IP entered a TraceStop region; tracing has ended.
    TraceStop,
    /// "MNT", maintenance: model specific.
    Mnt {
        /// Model-specific value.
        payload: u64,
    },
    /// "PTW": the operand of PTWRITE.
    Ptw {
        /// The operand, zero-extended.
        payload: u64,
        /// Operand size in bytes, 4 or 8.
        size: u8,
        /// A FUP with PTWRITE's IP follows.
        ip: bool,
    },
    /// "EXSTOP": execution stopped (a clock change or a C-state).
    Exstop {
        /// A FUP follows.
        ip: bool,
    },
    /// "MWAIT" completed and asked for a C-state.
    Mwait {
        /// EAX hints.
        hints: u32,
        /// ECX extensions.
        ext: u32,
    },
    /// "PWRE": entry to a C-state deeper than C0.1.
    Pwre {
        /// Resolved thread C-state (4 bits).
        state: u8,
        /// Resolved thread sub C-state (4 bits).
        sub_state: u8,
        /// True if the hardware entered the C-state by itself.
        hw: bool,
    },
    /// "PWRX": back in C0.
    Pwrx {
        /// Last core C-state (4 bits).
        last: u8,
        /// Deepest core C-state (4 bits).
        deepest: u8,
        /// Wake reason bits (4 bits): 1 interrupt, 4 store to a monitored address, 8 autonomous.
        reason: u8,
    },
    /// "BBP": a block of BIP items begins (PEBS via PT).
    Bbp {
        /// Block type (5 bits).
        typ: u8,
        /// Items are 4 bytes wide rather than 8.
        size4: bool,
    },
    /// "BIP": an item of a block. Valid only between BBP and BEP; elsewhere its opcode is a TNT.
    Bip {
        /// Item (register) number within the block type (5 bits).
        id: u8,
        /// The value, zero-extended.
        payload: u64,
        /// Width in bytes, 4 or 8, as in the block's BBP.
        size: u8,
    },
    /// "BEP": the block ends.
    Bep {
        /// A FUP follows.
        ip: bool,
    },
    /// "CFE", control flow event (event trace).
    Cfe {
        /// Event type (5 bits): 1 INTR, 2 IRET, 3 SMI, 4 RSM, 5 SIPI, 6 INIT, 7 VMENTRY, 8 VMEXIT, ...
        typ: u8,
        /// Interrupt or exception vector, if the event type has one.
        vector: u8,
        /// A FUP follows.
        ip: bool,
    },
    /// "EVD", event data for the next CFE.
    Evd {
        /// Data type (6 bits): 0 page-fault address, 1 VMX exit qualification, 2 VMX exit reason.
        typ: u8,
        /// The value.
        payload: u64,
    },
    /// "TRIG", trigger trace: a trigger matched.
    Trig {
        /// Bits of the triggers that matched.
        triggers: u8,
        /// Instructions retired since the last packet that carried a count, when sent.
        instructions: Option<u16>,
        /// True if the packet combines several trigger events.
        multiple: bool,
        /// A FUP follows.
        ip: bool,
    },
}
