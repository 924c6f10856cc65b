// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cases in which this decoder differs from libipt, with the reasons.

/// The aspect of a case that is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    Packets,
    Times,
    Flow,
    Errors,
    Events,
    Paging,
}

const NO_TSC: &str = "time starts with the first TSC";
const BY_CBR: &str = "cycles count by CBR where it is known, and are not measured";
const BY_MTC: &str = "cycles are measured by MTC, not by TSC";
const MEASURED: &str = "an overflow does not end what was measured of cycles";

const LAZY: &str =
    "code is followed when a packet needs it: not behind the last packet, not to a FUP that is no event";
const CHECKS: &str = "libipt checks which EVD may come before which CFE, and drops the event";
const STATUS: &str =
    "libipt refuses a PSB+ that states another mode; here it is taken as the mode from then on";

const DROPS: &str =
    "the FUP of MWAIT and EXSTOP is missing: here they are told without an address, libipt drops them";

/// Case, check, reason.
pub const EXCEPTIONS: &[(&str, Check, &str)] = &[
    ("cbr-cyc", Check::Times, NO_TSC),
    ("cbr-mtc-cyc-mtc", Check::Times, NO_TSC),
    ("mtc", Check::Times, NO_TSC),
    ("mtc-cyc_calibrate", Check::Times, NO_TSC),
    ("mtc-ovf_reset-cyc", Check::Times, MEASURED),
    ("tsc-cyc_calibrate", Check::Times, BY_MTC),
    ("tsc-tma-cbr-mtc-cyc_calibrate", Check::Times, BY_CBR),
    ("pip-pip_mov_cr3-fail", Check::Flow, LAZY),
    ("pip-pip_mov_cr3-fail", Check::Errors, LAZY),
    ("ptxed-resync-nomap-mode_exec-fup", Check::Flow, LAZY),
    ("ptxed-resync-nomap-mode_tsx-eos", Check::Flow, LAZY),
    ("ptxed-resync-nomap-mode_tsx-eos", Check::Errors, LAZY),
    ("ptxed-resync-nomap-mode_tsx-tip_pgd", Check::Errors, LAZY),
    ("ptet-evd_cr2-cfe_iret", Check::Errors, CHECKS),
    ("ptet-evd_cr2-evd_vmxq", Check::Errors, CHECKS),
    ("ptet-evd_vmxq-cfe_intr", Check::Errors, CHECKS),
    ("ptet-evd_vmxr-cfe_rsm", Check::Errors, CHECKS),
    ("ptet-evd_vmxr-evd-cr2", Check::Errors, CHECKS),
    ("ptet-evd_cr2-cfe_iret", Check::Events, CHECKS),
    ("ptet-evd_cr2-evd_vmxq", Check::Events, CHECKS),
    ("ptet-evd_vmxq-cfe_intr", Check::Events, CHECKS),
    ("ptet-evd_vmxr-cfe_rsm", Check::Events, CHECKS),
    ("ptet-evd_vmxr-evd-cr2", Check::Events, CHECKS),
    ("mwait-pwre-exstop_ip-ovf", Check::Events, DROPS),
    ("ptxed-resync-psb-bad_status-psb", Check::Flow, STATUS),
    ("ptxed-resync-psb-bad_status-psb", Check::Errors, STATUS),
];
