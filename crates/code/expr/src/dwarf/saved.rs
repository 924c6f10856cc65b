// SPDX-License-Identifier: MIT OR Apache-2.0
//! Recovers the registers of the function around a static tracepoint, for places where no kprobe is possible. The
//! source is the stack of a program that the tracepoint calls.
//!
//! A raw tracepoint's program receives an array of arguments in the frame of `bpf_trace_runN`
//! (kernel/trace/bpf_trace.c). The callee-saved registers of the function with the tracepoint were pushed on the way
//! there: by `bpf_trace_runN` and, if the tracepoint has other listeners too, by `__traceiter_NAME`. Without other
//! listeners the function calls `__bpf_trace_CLASS` directly, which jumps to `bpf_trace_runN`
//! (include/linux/tracepoint.h). Return addresses show which of the two it was, and that the call came from this place.
//! All distances come from `.debug_frame`.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::ir::{BinOp, Cond, Space};
use crate::regs::Reg;
use crate::scope::{Location, ProbePoint, Scope as _, Storage, Sym};
use crate::x86::patched::{is_call, jump_target};

use super::tracepoint::{Members, Site};
use super::{Debug, Error, Place};

/// Registers of the function around a tracepoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    /// Address of the call at which the registers have these values.
    pub pc: u64,
    /// Expressions for the callee-saved registers and the stack pointer.
    pub registers: BTreeMap<Reg, Rc<Sym>>,
    /// Expression that is not 0 if the stack has the expected return addresses.
    pub guard: Rc<Sym>,
}

fn number(n: i64) -> Rc<Sym> {
    Rc::new(Sym::Const(n.cast_unsigned()))
}

fn sum(a: &Rc<Sym>, b: Rc<Sym>) -> Rc<Sym> {
    Rc::new(Sym::Bin(BinOp::Add, a.clone(), b))
}

fn word(at: Rc<Sym>) -> Rc<Sym> {
    Rc::new(Sym::Deref(at, 8))
}

/// Returns n for `rsp + n`.
fn from_stack(sym: &Sym) -> Option<i64> {
    match sym {
        Sym::Reg(Reg::Rsp) => Some(0),
        Sym::Bin(BinOp::Add, a, b) => match (&**a, &**b) {
            (Sym::Reg(Reg::Rsp), Sym::Const(n)) => Some(n.cast_signed()),
            _ => None,
        },
        _ => None,
    }
}

impl Debug<'_> {
    /// Builds expressions for the registers at a tracepoint's place in the code.
    pub fn saved(&self, tracepoint: &str, site: &Site) -> Result<Saved, Error> {
        let image = self.image;
        let fail = |what: String| Error::Nothing(format!("{tracepoint}: {what}"));
        let symbol = |name: String| image.symbol(&name).ok_or_else(|| fail(format!("no symbol {name}")));
        let own = symbol(format!("__tracepoint_{tracepoint}"))?;

        // The frame of `bpf_trace_runN`, the array of arguments in it, and the function that jumps there.
        let (listener, arguments) =
            self.listener(own)?.ok_or_else(|| fail("it takes no BPF program".into()))?;
        let runner = symbol(format!("bpf_trace_run{arguments}"))?;
        let inner = self.deepest(runner).map_err(fail)?;
        let place = Place::at(self, inner.pc, ProbePoint::Inside, Space::Kernel)?;
        let array = place.outermost("args")?.map(|v| v.location);
        let Some(Location::Whole(Storage::Memory(array))) = array else {
            return Err(fail(format!("nothing says where bpf_trace_run{arguments} has its arguments")));
        };
        let frame = place.frame().map_err(fail)?;
        let (Some(array), Some(frame)) = (from_stack(&array), from_stack(&frame)) else {
            return Err(fail(format!(
                "the frame of bpf_trace_run{arguments} is not found by the stack pointer"
            )));
        };
        if !self.jumps(listener, runner) {
            return Err(fail("its listener does not jump to bpf_trace_runN, as known kernels do".into()));
        }
        // The frame address of `bpf_trace_runN`, relative to the context.
        let inner_frame = Rc::new(Sym::Context).plus((frame - array).cast_unsigned());
        let outer = self.deepest(symbol(format!("__traceiter_{tracepoint}"))?).map_err(fail)?;

        let call = self.call_of(tracepoint, site)?;
        let back = Rc::new(Sym::Address(call + 5));
        let first = word(sum(&inner_frame, number(-8)));
        // 0 if the function called the listener directly, 1 if through the iterator.
        let through = Rc::new(Sym::Cmp(Cond::Ne, first, back.clone()));
        let times = |n: i64| match n {
            0 => number(0),
            n => Rc::new(Sym::Bin(BinOp::Mul, through.clone(), number(n))),
        };
        let frame = sum(&inner_frame, times(outer.size.cast_signed()));
        let guard = Rc::new(Sym::Cmp(Cond::Eq, word(sum(&frame, number(-8))), back));
        let mut registers = BTreeMap::from([(Reg::Rsp, frame)]);
        for (reg, at) in &inner.saved {
            let place = sum(&inner_frame, number(*at));
            let place = match outer.saved.get(reg) {
                Some(own) => sum(&place, times(outer.size.cast_signed() + own - at)),
                None => place,
            };
            registers.insert(*reg, word(place));
        }
        Ok(Saved { pc: call, registers, guard })
    }

    /// Returns the function that passes a tracepoint to BPF programs, and its number of arguments (`struct
    /// bpf_raw_event_map`, aligned to 32 bytes).
    fn listener(&self, tracepoint: u64) -> Result<Option<(u64, u32)>, Error> {
        let image = self.image;
        let map = Members::of(self, "bpf_raw_event_map")?;
        let [own, function, count] = [map.at("tp")?, map.at("bpf_func")?, map.at("num_args")?];
        let Some((start, stop)) = image.between("__start__bpf_raw_tp", "__stop__bpf_raw_tp") else {
            return Ok(None);
        };
        let step = map.size().next_multiple_of(32) as usize;
        let found = (start..stop).step_by(step).find(|at| image.word_at(at + own) == Some(tracepoint));
        Ok(found.and_then(|at| Some((image.word_at(at + function)?, image.half_at(at + count)?))))
    }

    /// Returns true if the first 256 bytes of a function contain a jump to this address.
    fn jumps(&self, function: u64, to: u64) -> bool {
        let Some(symbol) = self.image.around(function) else { return false };
        let is_jump = |at: u64| jump_target(self.image, at) == Some(to);
        (symbol.address..symbol.address + symbol.size.min(256)).any(is_jump)
    }

    /// Returns the static call that a tracepoint makes when it is enabled (`struct static_call_site`: two relative
    /// addresses).
    fn call_of(&self, tracepoint: &str, site: &Site) -> Result<u64, Error> {
        let image = self.image;
        let fail = |what: &str| Error::Nothing(format!("{tracepoint}: {what}"));
        let key = image.symbol(&format!("__SCK__tp_func_{tracepoint}"));
        let key = key.ok_or_else(|| fail("no static call key"))?;
        let table = image.between("__start_static_call_sites", "__stop_static_call_sites");
        let (start, stop) = table.ok_or_else(|| fail("no table of static calls"))?;
        let around = image.around(site.target).ok_or_else(|| fail("no function around it"))?;
        let within = around.address..around.address + around.size;
        let calls = (start..stop).step_by(8).filter_map(|at| {
            let own = image.near_at(at + 4)? & !3;
            let call = image.near_at(at)?;
            (own == key && within.contains(&call) && call >= site.target).then_some(call)
        });
        let call = calls.min().ok_or_else(|| fail("no static call behind its jump label"))?;
        match is_call(image, call) {
            true => Ok(call),
            false => Err(fail("its static call is a jump: the function's frame is gone then")),
        }
    }
}
