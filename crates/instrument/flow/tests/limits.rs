// SPDX-License-Identifier: MIT OR Apache-2.0
//! The decoder's limits, crossed: what is beyond them is told or counted.

mod hand;

use hand::{CLOCK, Code, Pt};
use kprism_flow::error::FaultKind;
use kprism_flow::event::{Event, Sink};
use kprism_flow::packet_event::PacketEvent;
use kprism_flow::{Decoder, Setup};
use kprism_pt::Packet;

const U: u64 = 0x40_0000;

/// `jumps` jumps to the next instruction, then: jne to itself; nop.
fn long_way(jumps: usize) -> (Code, u64) {
    let mut code = Code::default();
    let bytes = [[0xeb, 0x00].repeat(jumps), vec![0x75, 0xfe, 0x90]].concat();
    let end = code.func("f", U, &bytes) - 3;
    (code, end)
}

/// Blocks (of 24 jumps each) on the way to a branch: 4,096 and no more.
#[test]
fn a_way_to_a_branch_that_is_too_long_is_an_error() {
    for (jumps, endless) in [(24 * 4000, false), (24 * 4200, true)] {
        let (code, _) = long_way(jumps);
        let mut pt = Pt::new();
        pt.psb(U).tnt("n");
        let (ips, stats) = code.decode(&pt.bytes);
        let found: Vec<FaultKind> = stats.faults.iter().map(|fault| fault.kind).collect();
        assert_eq!(found, if endless { vec![FaultKind::Endless] } else { vec![] }, "{jumps} jumps");
        assert_eq!(stats.errors, u64::from(endless));
        assert_eq!(ips.len() == jumps + 1, !endless);
    }
}

/// Instructions on the way to an event: 2^18 and no more.
#[test]
fn a_way_to_an_event_that_is_too_long_is_an_error() {
    for (jumps, endless) in [((1 << 18) - 1, false), (1 << 18, true)] {
        let (code, end) = long_way(jumps);
        let mut pt = Pt::new();
        pt.psb(U).fup(end).tip(U);
        let (ips, stats) = code.decode(&pt.bytes);
        assert_eq!(stats.errors, u64::from(endless), "{jumps} jumps: {:?}", stats.faults);
        assert_eq!(ips.len() == jumps, !endless);
    }
}

/// Each page of missing code is one error. Of pages beyond 2^16, each time is; and of all errors, 4,096 have their place.
#[test]
fn errors_beyond_the_limits_are_counted() {
    const PAGES: u64 = (1 << 16) + 100;
    let mut pt = Pt::new();
    pt.psb(U);
    for page in (0..PAGES).chain(0..PAGES) {
        pt.tip(U + page * 0x1000);
    }
    // The code at the last address is needed, too.
    pt.tip(U);
    let (_, mut stats) = Code::default().decode(&pt.bytes);
    assert_eq!(stats.errors, 2 * PAGES + 1, "as it is counted before pages are entered");
    stats.enter_missing(&mut Default::default());
    assert_eq!(stats.errors, (1 << 16) + 2 * 100);
    assert_eq!((stats.missing.len(), stats.faults.len()), (1 << 16, 4096));
}

#[derive(Default)]
struct Events(Vec<Option<u64>>);

impl Sink for Events {
    const PACKET_EVENTS: bool = true;
    fn event(&mut self, _: Event) {}
    fn time(&mut self, _: u32, _: u64) {}
    fn packet_event(&mut self, _: u32, event: PacketEvent) {
        self.0.push(event.ip);
    }
}

/// Events that wait for the address of their instruction: beyond 1,024 the earlier ones are told without it.
#[test]
fn events_that_have_no_room_to_wait_are_told_without_an_address() {
    let mut code = Code::default();
    code.func("f", U, &[0x90, 0x90, 0xeb, 0xfe]);
    let mut pt = Pt::new();
    pt.psb(U);
    for hints in 0..1100 {
        pt.put(Packet::Mwait { hints, ext: 0 });
    }
    pt.put(Packet::Exstop { ip: true }).fup(U + 1);
    let setup =
        Setup { image: &code.image, resolver: &code, clock: CLOCK, watch: None, errata: Default::default() };
    let mut told = Events::default();
    let stats = Decoder::new(&pt.bytes, setup, false).run(0, pt.bytes.len(), &mut told);
    assert_eq!(stats.errors, 0, "{:?}", stats.faults);
    assert_eq!(stats.packet_events.iter().map(|(_, n)| n).sum::<u64>(), 1101);
    let expected = [vec![None; 1024], vec![Some(U + 1); 77]].concat();
    assert!(told.0 == expected, "{} events", told.0.len());
}

/// A virtual machine's page table at the same number, and its kernel at the same addresses: the host's code is not followed for them,
/// and what ran there is an error.
#[test]
fn a_virtual_machine_runs_none_of_the_hosts_code() {
    for at in [U, 0xffff_ffff_8100_0000] {
        let mut code = Code::default();
        code.func("host", at, &[0x90, 0xff, 0xe0]); // nop; jmp *%rax
        let stream = |non_root: bool| {
            let mut pt = Pt::new();
            pt.psb(at).tip(at).tip(at).put(Packet::Pip { cr3: 0x1000, non_root }).tip(at).tip(at);
            pt.pip(0x1000).tip(at).tip(at);
            pt.bytes
        };
        let (host, stats) = code.decode(&stream(false));
        assert_eq!(stats.errors, 0, "{:?}", stats.faults);
        let (ips, stats) = code.decode(&stream(true));
        assert!(stats.errors > 0 && ips.len() < host.len(), "{at:#x}: {ips:x?}");
        assert!(stats.faults.iter().all(|fault| fault.kind == FaultKind::NoCode(at)), "{:?}", stats.faults);
    }
}
