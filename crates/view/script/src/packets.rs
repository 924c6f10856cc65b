// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lists the packets of Intel PT themselves, a line each: CPU, time, offset, the packet, and the function at its address.
//!
//! In: a run's streams. Out: lines, CPU by CPU in the order of the stream, which is that of a recorder's buffer. Bytes that
//! are no packets have a line too, which says how far the next PSB is. The time is that of the packets read so far, so that
//! of a branch is the time at which the processor last told it; before the first TSC packet it is that packet's.

use kprism_flow::clock::Clock;
use kprism_image::is_kernel;
use kprism_image::resolve::Resolve;
use kprism_image::x86::address::{stated_cr3, task_space};
use kprism_pt::{LastIp, Packet, PacketReader};
use kprism_session::flow::{Loaded, errata};
use serde_json::{Value, json};

use crate::flow::Options;
use crate::output::Output;

/// Bytes of the listed streams that are no packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skipped {
    /// Number of places.
    pub places: u64,
    /// Number of bytes.
    pub bytes: u64,
}

/// Writes the packets that are selected by CPU, time and offset.
pub fn list<'w>(loaded: &Loaded, options: &Options, mut to: Output<'w>) -> (Output<'w>, Skipped) {
    let mut skipped = Skipped::default();
    for stream in loaded.streams() {
        if !options.select.cpus.is_empty() && !options.select.cpus.contains(&stream.cpu) {
            continue;
        }
        let clock = Clock::new(loaded.clock());
        let ns = first_time(stream.bytes, clock.clone());
        let state = State { clock, ip: LastIp::default(), space: 0, ns };
        let reader = PacketReader::new(stream.bytes).with_errata(errata(&loaded.manifest).bytes);
        let found = of_stream(stream.cpu, stream.bytes, reader, &loaded.symbols, state, options, &mut to);
        skipped.places += found.places;
        skipped.bytes += found.bytes;
    }
    (to, skipped)
}

/// The time of the first TSC packet; 0 without one.
fn first_time(bytes: &[u8], mut clock: Clock) -> u64 {
    let mut reader = PacketReader::new(bytes);
    while reader.resync().is_some() {
        for (_, packet) in reader.by_ref().map_while(Result::ok) {
            if let Packet::Tsc { tsc } = packet {
                clock.on_tsc(tsc);
                return clock.ns();
            }
        }
    }
    0
}

/// Time, last address and address space after the packets so far.
struct State {
    clock: Clock,
    ip: LastIp,
    /// The address space of the last PIP packet.
    space: u64,
    ns: u64,
}

fn of_stream<R: Resolve>(
    cpu: u16,
    bytes: &[u8],
    mut reader: PacketReader<'_>,
    symbols: &R,
    mut state: State,
    options: &Options,
    to: &mut Output<'_>,
) -> Skipped {
    let mut skipped = Skipped::default();
    // A buffer that wrapped around begins in the middle of a packet: packets are known from the first PSB on.
    let before = reader.resync().unwrap_or(bytes.len());
    if before > 0 {
        skipped = Skipped { places: 1, bytes: before as u64 };
        if options.select.takes_packet(0, state.ns) {
            let line = Line { cpu, ns: state.ns, offset: 0, address: None, symbol: None };
            line.write_error("the stream does not begin with a PSB", before, TO_PSB, options, to);
        }
    }
    while !to.is_done() {
        let from = reader.offset();
        match reader.next() {
            None => break,
            Some(Ok((offset, packet))) => {
                let address = state.take(&packet);
                if options.select.takes_packet(offset, state.ns) {
                    let symbol = address.and_then(|ip| symbol(symbols, &state, ip));
                    let line = Line { cpu, ns: state.ns, offset, address, symbol };
                    line.write(&packet, &bytes[offset..reader.offset()], options, to);
                }
            }
            Some(Err(_)) if reader.skip_broken_tma().is_some() => {
                let length = reader.offset() - from;
                if options.select.takes_packet(from, state.ns) {
                    let line = Line { cpu, ns: state.ns, offset: from, address: None, symbol: None };
                    line.write_error("a TMA broken by erratum SKZ84", length, "of it", options, to);
                }
            }
            Some(Err(error)) => {
                let next = reader.resync().unwrap_or(bytes.len());
                // The reader may find a PSB that began before the error.
                let length = next.saturating_sub(from);
                skipped.places += 1;
                skipped.bytes += length as u64;
                if options.select.takes_packet(from, state.ns) {
                    let line = Line { cpu, ns: state.ns, offset: from, address: None, symbol: None };
                    line.write_error(&error.to_string(), length, TO_PSB, options, to);
                }
                state.ip.reset();
            }
        }
    }
    skipped
}

impl State {
    /// Takes over what a packet says of time, address and address space. Returns the address that it carries.
    fn take(&mut self, packet: &Packet) -> Option<u64> {
        match *packet {
            Packet::Psb => self.ip.reset(),
            Packet::Pip { cr3, non_root } => self.space = task_space(stated_cr3(cr3, non_root)),
            // The others tell nothing of these; an address is read below.
            _ => {}
        }
        if self.clock.on_packet(packet) {
            self.ns = self.ns.max(self.clock.ns());
        }
        self.ip.apply(packet.ip()?)
    }
}

/// The function at an address, with the offset in it.
fn symbol<R: Resolve>(symbols: &R, state: &State, ip: u64) -> Option<String> {
    let space = if is_kernel(ip) { 0 } else { state.space };
    let function = symbols.function_at(space, ip, state.ns);
    if !function.known {
        return None;
    }
    let name = symbols.describe(function.id).name;
    let name = kprism_profile::units::printable(&name);
    Some(match ip.checked_sub(function.entry) {
        Some(offset) => format!("{name}+{offset:#x}"),
        None => name,
    })
}

/// The bytes that a line leaves out, if they end at a PSB.
const TO_PSB: &str = "up to the next PSB";

/// A line without its packet.
struct Line {
    cpu: u16,
    ns: u64,
    offset: usize,
    address: Option<u64>,
    symbol: Option<String>,
}

impl Line {
    fn write(&self, packet: &Packet, bytes: &[u8], options: &Options, to: &mut Output<'_>) {
        let payload = match (packet.ip(), self.address) {
            (Some(_), Some(address)) => format!("{address:#x}"),
            (Some(_), None) => "no address".to_owned(),
            (None, _) => packet.payload(),
        };
        if options.json {
            let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            let mut value = self.json();
            value["packet"] = packet.name().into();
            value["payload"] = payload.into();
            value["bytes"] = hex.into();
            value["symbol"] = self.symbol.clone().into();
            return to.line(&format!("{value}\n"));
        }
        let mut text = format!("{}{:<9}", self.head(), packet.name());
        if !payload.is_empty() {
            text += &format!("  {payload}");
        }
        if let Some(symbol) = &self.symbol {
            text += &format!("  {symbol}");
        }
        to.line(&format!("{}\n", text.trim_end()));
    }

    fn write_error(&self, error: &str, skipped: usize, which: &str, options: &Options, to: &mut Output<'_>) {
        if options.json {
            let mut value = self.json();
            value["error"] = error.into();
            value["skipped_bytes"] = skipped.into();
            return to.line(&format!("{value}\n"));
        }
        to.line(&format!("{}no packet: {error}; {skipped} bytes {which}\n", self.head()));
    }

    fn head(&self) -> String {
        let (seconds, ns) = (self.ns / 1_000_000_000, self.ns % 1_000_000_000);
        format!("[{:03}] {seconds:>5}.{ns:09}: {:#010x}  ", self.cpu, self.offset)
    }

    fn json(&self) -> Value {
        json!({"cpu": self.cpu, "time_ns": self.ns, "offset": self.offset})
    }
}
