// SPDX-License-Identifier: MIT OR Apache-2.0
//! Walks code without packets: to the address of an event, or to the branch that left the traced range.

use kprism_image::insn::{Kind, Mode, classify, plain_run};
use kprism_image::resolve::{FuncRef, Resolve};

use crate::decode::block::Key;
use crate::decode::build::{Cache, NoCode, Position, advance};
use crate::decode::errata::Errata;
use crate::decode::error::FaultKind;
use crate::decode::event::{Event, EventKind, flag};

/// Maximum of instructions walked for one packet. It is far longer than any straight run of real code, and bounds the
/// time that a few bytes can cost.
const MAX_STEPS: u32 = 1 << 18;

/// End of a walk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// Before the instruction at this address.
    At(u64),
    /// The same, if the code leads there.
    TryAt(u64),
    /// After the next PTWRITE, if there is one before the next branch that needs a packet.
    Ptwrite,
    /// After the instruction that turned tracing off. It goes to this address, if known. If not, and the processor has erratum
    /// SKL014, it may be a direct jump out of the filtered addresses.
    Off(Option<u64>, Errata),
}

impl Until {
    /// Returns true if the walk may fail: then it has not taken place.
    pub fn is_try(self) -> bool {
        matches!(self, Until::TryAt(_) | Until::Ptwrite)
    }
}

/// Result of a walk. Reused between walks for its buffers.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    /// Events, each with the instructions before it.
    pub ops: Vec<Event>,
    /// Instructions after the last event.
    pub insns: u32,
    /// Addresses of all instructions, if the cache keeps them.
    pub ips: Vec<u64>,
    /// The address after the last instruction.
    pub next: u64,
}

/// Walks from the start of the block at `key` and fills `steps`.
pub(crate) fn walk<R: Resolve>(
    cache: &mut Cache<'_, R>,
    key: Key,
    until: Until,
    at: Position,
    steps: &mut Steps,
) -> Result<(), FaultKind> {
    steps.ops.clear();
    steps.ips.clear();
    steps.insns = 0;
    let Key { mut ip, asid, mode, crossed } = key;
    let mut func: Option<FuncRef> = None;
    cache.begin_walk();
    if crossed {
        let (arrived, flags) = cache.func_at(asid, ip, at);
        func = Some(arrived);
        steps.ops.push(Event { flags: flags | flag::DIRECT, ..Event::new(EventKind::Tail, arrived.id, ip) });
        if cache.watch() == Some(ip) {
            steps.ops.push(Event::new(EventKind::Switch, arrived.id, ip));
        }
    }
    let skips = cache.skips() && mode == Mode::Bits64 && !matches!(until, Until::Ptwrite);
    let (mut code, mut base): (&[u8], u64) = (&[], ip);
    // Without packets the path depends on the address alone, so an address that comes again will always come again. A
    // mark set at each power of two finds that within a few rounds.
    let mut mark = ip;
    for step in 0..MAX_STEPS {
        if matches!(until, Until::At(end) | Until::TryAt(end) if end == ip) {
            steps.next = ip;
            return Ok(());
        }
        if step > 0 && ip == mark {
            return Err(FaultKind::Endless);
        }
        if step.is_power_of_two() {
            mark = ip;
        }
        // The same granule is used until the code leaves it.
        let mut rest = code.get(ip.wrapping_sub(base) as usize..).unwrap_or_default();
        if rest.is_empty() {
            (code, base) = (cache.code(asid, ip, at), ip);
            rest = code;
        }
        if skips {
            let room = match until {
                Until::At(end) | Until::TryAt(end) => end.wrapping_sub(ip).min(rest.len() as u64) as usize,
                Until::Off(..) | Until::Ptwrite => rest.len(),
            };
            let (count, len) = plain_run(&rest[..room], MAX_STEPS);
            if count > 0 {
                steps.insns += count;
                ip = ip.wrapping_add(len as u64);
                continue;
            }
        }
        let insn = match classify(rest, ip, mode) {
            Err(_) if rest.len() < 15 => cache.insn(asid, ip, mode, at),
            insn => insn.map_err(|_| NoCode),
        };
        let Ok(insn) = insn else { return Err(cache.fault(asid, ip, mode, at)) };
        let next_ip = advance(ip, insn.len, mode);
        steps.insns += 1;
        steps.ips.push(ip);
        if cache.markers().may_be(&insn, rest, ip) {
            cache.marks(&insn, asid, ip, mode, at, &mut steps.insns, &mut steps.ops);
        }
        match insn.kind {
            Kind::Jump { target } | Kind::Call { target } => {
                let mut from = match func {
                    Some(func) => func,
                    None => cache.func_at(asid, key.ip, at).0,
                };
                let op = cache.direct_op(insn.kind, &mut from, asid, target, next_ip, at);
                func = Some(from);
                if let Some(mut op) = op {
                    op.insns = std::mem::take(&mut steps.insns);
                    steps.ops.push(op);
                    if cache.watch() == Some(target) && op.kind != EventKind::Push {
                        steps.ops.push(Event::new(EventKind::Switch, op.func, target));
                    }
                }
                if is_last_jump(until, target) {
                    return Ok(());
                }
                ip = target;
            }
            Kind::MovCr3 if matches!(until, Until::Off(None, _)) => return Ok(()),
            kind if kind.falls_through() => {
                if matches!(until, Until::Ptwrite) && cache.is_ptwrite(asid, ip, insn.len, at) {
                    steps.next = next_ip;
                    return Ok(());
                }
                ip = next_ip;
            }
            _ => {
                return match until {
                    Until::Off(..) => Ok(()),
                    Until::At(end) | Until::TryAt(end) => Err(FaultKind::NotReached(end)),
                    Until::Ptwrite => Err(FaultKind::NotReached(ip)),
                };
            }
        }
    }
    Err(FaultKind::Endless)
}

/// Returns true if a direct jump or call to `target` turned tracing off.
fn is_last_jump(until: Until, target: u64) -> bool {
    match until {
        Until::At(_) | Until::TryAt(_) | Until::Ptwrite => false,
        Until::Off(Some(end), _) => end == target,
        Until::Off(None, errata) => errata.leaves_filter(target),
    }
}
