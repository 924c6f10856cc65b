// SPDX-License-Identifier: MIT OR Apache-2.0
//! Compares the events that packets state beside the flow with those of `ptxed`: PTWRITE, power, event trace; each with its
//! payload, and the number of instructions before it.

use kprism_flow::event::{Event, Sink};
use kprism_flow::packet_event::PacketEvent;
use kprism_flow::{Decoder, Setup};
use kprism_image::resolve::Regions;
use kprism_pt::Packet;

use crate::Verdict;
use crate::dump::config;
use crate::suite::Case;
use crate::xed::flat;

/// An event in ptxed's words, and the instructions before it.
type Told = (String, usize);

#[derive(Debug, Default)]
struct Events {
    insns: usize,
    told: Vec<Told>,
    /// Data of the next CFE, by type.
    data: [Option<u64>; 3],
    /// `ptxed` was told to print addresses.
    ips: bool,
}

impl Sink for Events {
    const IPS: bool = true;
    const PACKET_EVENTS: bool = true;

    fn event(&mut self, _: Event) {}

    fn time(&mut self, _: u32, _: u64) {}

    fn ips(&mut self, ips: &[u64]) {
        self.insns += ips.len();
    }

    fn packet_event(&mut self, _: u32, event: PacketEvent) {
        let Some(words) = self.words(&event.packet) else { return };
        let ip = event.ip.filter(|_| self.ips).map_or(String::new(), |ip| format!(", ip: {ip:016x}"));
        self.told.push((words + &ip, self.insns));
    }
}

impl Events {
    fn words(&mut self, packet: &Packet) -> Option<String> {
        let with =
            |name: &str, data: Option<u64>| data.map_or(String::new(), |of| format!(", {name}: {of:016x}"));
        let state = |state: u8| (state + 1) & 15;
        Some(match *packet {
            Packet::Ptw { payload, .. } => format!("ptwrite: {payload:x}"),
            Packet::Mwait { hints, ext } => format!("mwait {hints:x} {ext:x}"),
            Packet::Exstop { .. } => "exstop".to_owned(),
            Packet::Pwre { state: of, sub_state, hw } => {
                format!("pwre c{}.{}{}", state(of), state(sub_state), if hw { " hw" } else { "" })
            }
            Packet::Pwrx { last, deepest, reason } => {
                let why: String = [(1, " int"), (4, " st"), (8, " hw")]
                    .iter()
                    .filter(|bit| reason & bit.0 != 0)
                    .map(|bit| bit.1)
                    .collect();
                format!("pwrx{why}: c{} (c{})", state(last), state(deepest))
            }
            Packet::Evd { typ, payload } => {
                *self.data.get_mut(usize::from(typ))? = Some(payload);
                return None;
            }
            Packet::Cfe { typ, vector, .. } => {
                let [cr2, qualification, reason] = std::mem::take(&mut self.data);
                let exit = with("vmxr", reason) + &with("vmxq", qualification);
                match typ {
                    1 => format!("interrupt {vector}") + &with("cr2", cr2),
                    2 => "iret".to_owned(),
                    3 => "smi".to_owned(),
                    4 => "rsm".to_owned(),
                    5 => format!("sipi: {vector:x}"),
                    6 => "init".to_owned(),
                    7 => "vmentry".to_owned(),
                    8 => "vmexit".to_owned() + &exit,
                    9 => format!("vmexit, intr: {vector}") + &exit,
                    10 => "shutdown".to_owned(),
                    12 => format!("uintr {vector}"),
                    13 => "uiret".to_owned(),
                    // libipt does not know others.
                    _ => return None,
                }
            }
            _ => return None,
        })
    }
}

/// The events in ptxed's output. `[interrupt]` alone is the branch to a handler, which the flow has.
fn expected(xed: &str) -> Vec<Told> {
    const NAMES: [&str; 15] = [
        "ptwrite",
        "mwait",
        "exstop",
        "pwre",
        "pwrx",
        "interrupt",
        "iret",
        "smi",
        "rsm",
        "sipi",
        "init",
        "vmentry",
        "vmexit",
        "shutdown",
        "uintr",
    ];
    let mut insns = 0;
    let mut told = Vec::new();
    for line in xed.lines().map(str::trim) {
        let Some(event) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) else {
            insns += usize::from(line.trim_start_matches(['?', ' ']).len() == 16);
            continue;
        };
        let event = event.split_once("  ").map_or(event, |(_, event)| event);
        let name = event.split([' ', ':', ',']).next().unwrap_or_default();
        if (NAMES.contains(&name) || name == "uiret")
            && event != "interrupt"
            && !event.starts_with("interrupt, from")
        {
            told.push((event.to_owned(), insns));
        }
    }
    told
}

/// Checks for the same events at the same places.
pub fn events(case: &Case) -> Verdict {
    let mut expected = expected(case.xed.as_ref()?);
    let image = flat(case);
    let resolver = Regions::default();
    let clock = config(&case.xed_options);
    let setup = Setup { image: &image, resolver: &resolver, clock, watch: None, errata: case.errata() };
    let ips = case.xed_options.iter().any(|option| option == "--event:ip");
    let mut found = Events { ips, ..Events::default() };
    Decoder::new(&case.pt, setup, true).run(0, case.pt.len(), &mut found);
    if expected.is_empty() && found.told.is_empty() {
        return None;
    }
    // `ptxed` prints PWRE before the MWAIT, whose FUP comes later; here they are in the order of the packets.
    for at in 1..expected.len() {
        if expected[at].0.starts_with("mwait") && expected[at - 1].0.starts_with("pwre") {
            expected.swap(at - 1, at);
        }
    }
    Some(if expected == found.told { Ok(()) } else { Err(format!("{:?}, not {expected:?}", found.told)) })
}
