// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds blocks from code bytes, and drops them when code or symbols change.

use kprism_image::Image;
use kprism_image::code::{Code, GRANULE, TaskSwitch};
use kprism_image::insn::{Far, Insn, InsnError, Kind, Mode, classify, loads_stack, plain_run};
use kprism_image::is_kernel;
use kprism_image::resolve::{FuncRef, Resolve};
use kprism_image::x86::address::is_non_root;

use crate::decode::block::{Block, Blocks, Cold, End, Key, NONE, PIVOTS, WATCHED, target_bit};
use crate::decode::entries::role;
use crate::decode::error::FaultKind;
use crate::decode::event::{Event, EventKind, flag};
use crate::decode::marks::{Around, Markers, Progress};
use crate::decode::memo::Memo;
use crate::decode::readers::Readers;

/// A block is cut after this many instructions, jumps or events, so that an endless loop cannot make it endless.
const MAX_INSNS: u32 = 512;
const MAX_JUMPS: u32 = 24;
const MAX_OPS: usize = 24;

/// Position in the trace at which code and symbols are looked up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Position {
    /// Absolute stream offset. It selects the version of the code.
    pub offset: u64,
    /// Time, ns. It selects the version of the symbols.
    pub ns: u64,
}

/// Size of [`Cache::recent`], a power of two.
const RECENT: usize = 1024;

/// An entry of [`Cache::funcs`] that matches no address.
const NO_FUNC_REF: (u64, FuncRef) = (0, FuncRef { id: 0, entry: 0, known: false, start: 1, end: 0 });

const UNKNOWN_ROLE: u8 = 0xff;

/// Functions with a higher number are not cached in [`Cache::roles`].
const MAX_ROLES: u32 = 1 << 24;

#[derive(Clone, Copy)]
struct Recent<'a> {
    asid: u64,
    base: u64,
    granule: Option<Code<'a>>,
}

impl Recent<'_> {
    /// No granule starts at an odd address.
    const EMPTY: Self = Self { asid: 0, base: 1, granule: None };
}

/// Error: no instruction is known at the address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoCode;

/// Code, symbols, and the blocks made of them.
pub(crate) struct Cache<'a, R> {
    pub blocks: Blocks,
    pub memo: Memo,
    image: &'a Image,
    resolver: &'a R,
    /// Entering this address (the kernel's task switch) makes an event.
    watch: Option<u64>,
    keep_ips: bool,
    markers: &'a Markers,
    /// Patterns that the block being built has matched in part.
    progress: Progress,
    /// Granules looked up lately, direct-mapped by address: neighbouring code tends to run close in time.
    recent: Vec<Recent<'a>>,
    /// Functions looked up lately, direct-mapped by address.
    funcs: Vec<(u64, FuncRef)>,
    last_func: (u64, FuncRef),
    /// Functions looked up lately, direct-mapped by the low bits of their number.
    by_id: Vec<(u64, FuncRef)>,
    /// Cached results of [`role`] by function; [`UNKNOWN_ROLE`] until computed.
    roles: Vec<u8>,
    /// Blocks by the granules they were built from. `None` if neither code nor symbols ever change.
    by_granule: Option<Readers>,
    /// Scratch: granules read by the block being built.
    granules: Vec<u64>,
    next_conflict: usize,
    next_change: usize,
    /// Number of times that the cache was cleared. A block index is valid only within its epoch.
    pub epoch: u32,
}

impl<'a, R: Resolve> Cache<'a, R> {
    pub fn new(
        image: &'a Image,
        resolver: &'a R,
        watch: Option<u64>,
        keep_ips: bool,
        markers: &'a Markers,
    ) -> Self {
        let changing = !image.conflicts().is_empty() || !resolver.changes().is_empty();
        Self {
            blocks: Blocks::new(),
            memo: Memo::default(),
            image,
            resolver,
            watch,
            keep_ips,
            markers,
            progress: Progress::default(),
            recent: vec![Recent::EMPTY; RECENT],
            funcs: vec![NO_FUNC_REF; RECENT],
            last_func: NO_FUNC_REF,
            by_id: vec![NO_FUNC_REF; RECENT],
            roles: Vec::new(),
            by_granule: changing.then(Readers::default),
            granules: Vec::new(),
            next_conflict: 0,
            next_change: 0,
            epoch: 0,
        }
    }

    /// Returns the address space of `va` under this CR3.
    #[inline]
    pub fn space(&self, cr3: u64, va: u64) -> u64 {
        self.image.space(cr3, va)
    }

    /// Stream offset at which [`Cache::apply_conflicts`] must be called next.
    #[inline]
    pub fn code_change_at(&self) -> u64 {
        self.image.conflicts().get(self.next_conflict).map_or(u64::MAX, |c| c.offset)
    }

    /// Task switches that the image places in the stream.
    pub fn task_switches(&self) -> &'a [TaskSwitch] {
        self.image.task_switches()
    }

    /// Time, ns, at which [`Cache::apply_changes`] must be called next.
    #[inline]
    pub fn symbol_change_at(&self) -> u64 {
        self.resolver.changes().get(self.next_change).map_or(u64::MAX, |c| c.at_ns)
    }

    /// Invalidates the blocks whose code changed at or before `offset`.
    pub fn apply_conflicts(&mut self, offset: u64) {
        self.recent.fill(Recent::EMPTY);
        while let Some(c) = self.image.conflicts().get(self.next_conflict).filter(|c| c.offset <= offset) {
            self.void(c.asid, c.va);
            self.next_conflict += 1;
        }
    }

    /// Invalidates the blocks whose functions changed at or before `ns`.
    pub fn apply_changes(&mut self, ns: u64) {
        while let Some(c) = self.resolver.changes().get(self.next_change).filter(|c| c.at_ns <= ns) {
            self.void_range(self.image.space(c.asid, c.start), c.start, c.end);
            self.next_change += 1;
        }
        self.funcs.fill(NO_FUNC_REF);
        self.by_id.fill(NO_FUNC_REF);
        self.last_func = NO_FUNC_REF;
    }

    fn void(&mut self, asid: u64, granule: u64) {
        let Some(readers) = &mut self.by_granule else { return };
        readers.take(asid, granule, |block| self.blocks.kill(block));
    }

    fn void_range(&mut self, asid: u64, start: u64, end: u64) {
        let Some(readers) = &self.by_granule else { return };
        for va in readers.within(asid, start, end) {
            self.void(asid, va);
        }
    }

    /// Returns the function at `ip`, and the [`flag`] bits of an arrival there.
    pub fn func_at(&mut self, asid: u64, ip: u64, at: Position) -> (FuncRef, u8) {
        let slot = (ip / 64) as usize % RECENT;
        let holds = |(space, func): &(u64, FuncRef)| *space == asid && func.start <= ip && ip < func.end;
        // Code runs function by function, so the last function looked up mostly matches.
        if !holds(&self.last_func) {
            if !holds(&self.funcs[slot]) {
                self.funcs[slot] = (asid, self.resolver.function_at(asid, ip, at.ns));
            }
            self.last_func = self.funcs[slot];
            self.by_id[self.last_func.1.id as usize % RECENT] = self.last_func;
        }
        let func = self.last_func.1;
        let role = if func.known { self.role(func.id) } else { 0 };
        let place = match func {
            FuncRef { known: false, .. } => 0,
            FuncRef { entry, .. } if entry == ip => flag::ENTRY,
            _ => flag::INNER,
        };
        (func, role | place)
    }

    /// Hint: the next address looked up probably lies in this function.
    #[inline]
    pub fn expect(&mut self, func: u32) {
        let known = &self.by_id[func as usize % RECENT];
        if known.1.id == func {
            self.last_func = *known;
        }
    }

    fn role(&mut self, id: u32) -> u8 {
        match self.roles.get(id as usize) {
            Some(&role) if role != UNKNOWN_ROLE => role,
            Some(_) => {
                let role = self.ask_role(id);
                self.roles[id as usize] = role;
                role
            }
            None if id < MAX_ROLES => {
                self.roles.resize(id as usize + 1, UNKNOWN_ROLE);
                self.role(id)
            }
            None => self.ask_role(id),
        }
    }

    fn ask_role(&self, id: u32) -> u8 {
        let func = self.resolver.describe(id);
        let role = if func.kernel { role(&func.name) } else { 0 };
        role | if self.markers.wants_func(&func.name) { flag::MARKED } else { 0 }
    }

    /// Known code bytes from `ip` to the end of its granule.
    #[inline]
    pub fn code(&mut self, asid: u64, ip: u64, at: Position) -> &'a [u8] {
        let base = ip - ip % GRANULE;
        let slot = &mut self.recent[(base / GRANULE) as usize % RECENT];
        if slot.base != base || slot.asid != asid {
            *slot = Recent { asid, base, granule: self.image.granule(asid, base, at.offset) };
        }
        slot.granule.map_or(&[], |granule| granule.bytes(ip))
    }

    /// Decodes the instruction at `ip`.
    pub fn insn(&mut self, asid: u64, ip: u64, mode: Mode, at: Position) -> Result<Insn, NoCode> {
        let bytes = self.code(asid, ip, at);
        if bytes.len() >= 15 {
            return classify(bytes, ip, mode).map_err(|_| NoCode);
        }
        let mut buf = [0; 15];
        let len = self.image.fetch(asid, ip, at.offset, &mut buf);
        classify(&buf[..len], ip, mode).map_err(|_| NoCode)
    }

    /// The reason why no instruction can be decoded at `ip`.
    pub fn fault(&self, asid: u64, ip: u64, mode: Mode, at: Position) -> FaultKind {
        let mut buf = [0; 15];
        match self.image.fetch(asid, ip, at.offset, &mut buf) {
            0 => FaultKind::NoCode(ip),
            len => match classify(&buf[..len], ip, mode) {
                Err(InsnError::Truncated(len)) => FaultKind::CutCode(ip, len as u8),
                _ => FaultKind::BadCode(ip),
            },
        }
    }

    /// Returns true if the instruction at `ip` is `int 0x80`.
    pub fn is_int80(&self, asid: u64, ip: u64, at: Position) -> bool {
        let mut buf = [0; 2];
        self.image.fetch(asid, ip, at.offset, &mut buf) == 2 && buf == [0xcd, 0x80]
    }

    /// Returns true if the instruction at `ip` is a VM entry: VMLAUNCH or VMRESUME.
    pub fn is_vm_entry(&self, asid: u64, ip: u64, at: Position) -> bool {
        let mut buf = [0; 3];
        self.image.fetch(asid, ip, at.offset, &mut buf) == 3 && matches!(buf, [0x0f, 0x01, 0xc2 | 0xc3])
    }

    /// Returns true if the instruction at `ip`, of `len` bytes, is PTWRITE (F3 0F AE /4).
    pub fn is_ptwrite(&self, asid: u64, ip: u64, len: u8, at: Position) -> bool {
        let mut buf = [0; 15];
        let whole = self.image.fetch(asid, ip, at.offset, &mut buf[..usize::from(len.min(15))]);
        // Prefixes of segments and sizes, F3, and in 64-bit code REX. In other modes `0F AE` behind INC or DEC would be an
        // instruction of its own, which `len` excludes.
        let prefix =
            |byte: &u8| matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64 | 0x65 | 0x67 | 0xf3);
        let prefixes = buf[..whole].iter().take_while(|byte| prefix(byte)).count();
        buf[..prefixes].contains(&0xf3)
            && matches!(buf[prefixes..whole], [0x0f, 0xae, modrm, ..] if modrm >> 3 & 7 == 4)
    }

    /// Returns the block at `key`, and builds it if needed.
    pub fn get(&mut self, key: Key, at: Position) -> u32 {
        if let Some(index) = self.blocks.find(&key) {
            return index;
        }
        if self.blocks.is_full() {
            self.blocks.clear();
            self.epoch += 1;
            if let Some(index) = &mut self.by_granule {
                index.clear();
            }
        }
        if key.crossed { self.build_crossed(key, at) } else { self.build(key, at) }
    }

    /// Builds the block of `key` that begins with the event of entering its function. Otherwise it is the block without
    /// `crossed`.
    fn build_crossed(&mut self, key: Key, at: Position) -> u32 {
        let plain = self.get(Key { crossed: false, ..key }, at) as usize;
        let (mut hot, mut cold) = (self.blocks.hot[plain], self.blocks.cold[plain]);
        let from = hot.ops as usize..hot.ops as usize + usize::from(hot.nops);
        hot.ops = self.blocks.ops.len() as u32;
        let mut tail = Event::new(EventKind::Tail, hot.start_func, key.ip);
        tail.flags = hot.flags & !WATCHED | flag::DIRECT;
        self.blocks.ops.push(tail);
        hot.nops += 1;
        if hot.flags & WATCHED != 0 {
            self.blocks.ops.push(Event::new(EventKind::Switch, hot.start_func, key.ip));
            hot.nops += 1;
        }
        self.blocks.ops.extend_from_within(from);
        // The template of an indirect call follows the events.
        self.blocks.ops.push(Event::new(EventKind::Call, 0, cold.next_ip));
        cold.key = key;
        cold.twin = NONE;
        hot.next = [NONE, NONE];
        let index = self.blocks.insert(hot, cold);
        self.blocks.cold[plain].twin = index;
        index
    }

    fn build(&mut self, key: Key, at: Position) -> u32 {
        let Key { mut ip, asid, mode, .. } = key;
        let (mut func, flags) = self.func_at(asid, ip, at);
        let watched = if self.watch == Some(ip) && !is_non_root(asid) { WATCHED } else { 0 };
        let (first_op, first_ip) = (self.blocks.ops.len(), self.blocks.ips.len());
        let start_func = func.id;
        let mut granules = std::mem::take(&mut self.granules);
        granules.clear();
        self.progress.reset();
        let skips = self.skips();
        let (mut insns, mut all, mut jumps) = (0u32, 0u32, 0u32);
        let (mut target, mut next_ip, mut targets) = (0, ip, 0);
        let (mut code, mut base): (&[u8], u64) = (&[], ip);
        let mut run = ip;
        let end = loop {
            let granule = ip / GRANULE * GRANULE;
            if self.by_granule.is_some() && !granules.contains(&granule) {
                granules.push(granule);
            }
            let nops = self.blocks.ops.len() - first_op;
            if all >= MAX_INSNS || jumps >= MAX_JUMPS || nops >= MAX_OPS {
                target = ip;
                break End::Chain;
            }
            // The same granule is used until the code leaves it.
            let mut rest = code.get(ip.wrapping_sub(base) as usize..).unwrap_or_default();
            if rest.is_empty() {
                (code, base) = (self.code(asid, ip, at), ip);
                rest = code;
            }
            if skips && mode == Mode::Bits64 {
                let (count, len) = plain_run(rest, MAX_INSNS - all);
                if count > 0 {
                    insns += count;
                    all += count;
                    ip = ip.wrapping_add(len as u64);
                    next_ip = ip;
                    continue;
                }
            }
            let insn = match classify(rest, ip, mode) {
                Err(_) if rest.len() < 15 => self.insn(asid, ip, mode, at),
                insn => insn.map_err(|_| NoCode),
            };
            let Ok(insn) = insn else {
                // The missing bytes may belong to the next granule. When that changes, this block is invalid too.
                let last = ip.wrapping_add(14) / GRANULE * GRANULE;
                if self.by_granule.is_some() && !granules.contains(&last) {
                    granules.push(last);
                }
                break End::Unknown;
            };
            next_ip = advance(ip, insn.len, mode);
            let last = next_ip.wrapping_sub(1) / GRANULE * GRANULE;
            if self.by_granule.is_some() && last != granule && !granules.contains(&last) {
                granules.push(last);
            }
            insns += 1;
            all += 1;
            if self.keep_ips {
                self.blocks.ips.push(ip);
            }
            if self.markers.may_be(&insn, rest, ip) {
                let mut ops = std::mem::take(&mut self.blocks.ops);
                self.marks(&insn, asid, ip, mode, at, &mut insns, &mut ops);
                self.blocks.ops = ops;
            }
            match insn.kind {
                Kind::CondJump { target: t } => {
                    target = t;
                    break End::Cond;
                }
                Kind::Ret => break End::Ret,
                Kind::IndirectJump => break End::IndirectJump,
                Kind::IndirectCall => break End::IndirectCall,
                Kind::Far(Far::Int) if self.is_int80(asid, ip, at) => break End::Int80,
                Kind::Far(far) => break End::Far(far),
                Kind::Jump { target } | Kind::Call { target } => {
                    let op = self.direct_op(insn.kind, &mut func, asid, target, next_ip, at);
                    if let Some(mut op) = op {
                        op.insns = insns;
                        insns = 0;
                        let sees = op.kind != EventKind::Push;
                        self.blocks.ops.push(op);
                        if self.watch == Some(target) && sees {
                            self.blocks.ops.push(Event::new(EventKind::Switch, func.id, target));
                        }
                    }
                    jumps += 1;
                    targets |= target_bit(target);
                    ip = target;
                    run = target;
                }
                _ => ip = next_ip,
            }
        };
        let switches = matches!(end, End::Ret | End::IndirectJump) && mode == Mode::Bits64 && !is_kernel(ip);
        let pivots = if switches && self.loads_stack(asid, run, ip, at) { PIVOTS } else { 0 };
        let nops = (self.blocks.ops.len() - first_op) as u16;
        // Template of the event of an indirect call. The TIP supplies the rest.
        self.blocks.ops.push(Event::new(EventKind::Call, 0, next_ip));
        let ips = (first_ip as u32, (self.blocks.ips.len() - first_ip) as u32);
        let hot = Block {
            next: [NONE, NONE],
            insns,
            ops: first_op as u32,
            func: func.id,
            start_func,
            context: self.blocks.context(asid, mode),
            nops,
            end,
            flags: flags | watched | pivots,
        };
        let cold = Cold { key, end_ip: ip, next_ip, target, ips, twin: NONE, targets };
        let index = self.blocks.insert(hot, cold);
        self.register(index, asid, &granules);
        self.granules = granules;
        index
    }

    /// Returns true if the straight run of code from `from` up to `to` loads the stack pointer.
    fn loads_stack(&self, asid: u64, from: u64, to: u64, at: Position) -> bool {
        let (mut ip, mut buf) = (from, [0; 15]);
        while ip < to {
            let len = self.image.fetch(asid, ip, at.offset, &mut buf);
            let Ok(insn) = classify(&buf[..len], ip, Mode::Bits64) else { return false };
            if loads_stack(&buf[..len]) {
                return true;
            }
            ip = ip.wrapping_add(insn.len.into());
        }
        false
    }

    /// Returns the event of a direct jump or call, if the instruction makes one. Moves `func` to the target's function.
    pub fn direct_op(
        &mut self,
        kind: Kind,
        func: &mut FuncRef,
        asid: u64,
        target: u64,
        next_ip: u64,
        at: Position,
    ) -> Option<Event> {
        let (to, flags) = self.func_at(asid, target, at);
        let from = std::mem::replace(func, to);
        let mut event = match kind {
            Kind::Call { .. } if target == next_ip => return None,
            Kind::Call { .. } if is_inner_call(from.id, to, target) => {
                Event::new(EventKind::Push, to.id, next_ip)
            }
            Kind::Call { .. } => Event::new(EventKind::Call, to.id, next_ip),
            _ if from.id != to.id => Event::new(EventKind::Tail, to.id, target),
            _ => return None,
        };
        event.flags = flags | flag::DIRECT;
        Some(event)
    }

    /// Adds the events of all marks at an instruction to `ops`.
    #[allow(clippy::too_many_arguments)]
    pub fn marks(
        &mut self,
        insn: &Insn,
        asid: u64,
        ip: u64,
        mode: Mode,
        at: Position,
        insns: &mut u32,
        ops: &mut Vec<Event>,
    ) {
        let mut bytes = [0; 15];
        let len = self.image.fetch(asid, ip, at.offset, &mut bytes).min(insn.len.into());
        let func = self.func_at(asid, ip, at).0;
        let code = |ip, to: &mut [u8]| self.image.fetch(asid, ip, at.offset, to);
        let around = Around { func: func.start..func.end, code };
        self.markers.at(insn, &bytes[..len], ip, mode, &mut self.progress, around, |what| {
            let insns = std::mem::take(insns);
            ops.push(Event { insns, ..Event::new(EventKind::Mark, what, ip) });
        });
    }

    fn register(&mut self, index: u32, asid: u64, granules: &[u64]) {
        if let Some(readers) = &mut self.by_granule {
            for &granule in granules {
                readers.add(asid, granule, index);
            }
        }
    }

    /// Counts the changes of code and symbols applied so far.
    pub fn version(&self) -> u32 {
        (self.next_conflict + self.next_change) as u32
    }

    /// Returns true if blocks keep the addresses of their instructions.
    pub fn keep_ips(&self) -> bool {
        self.keep_ips
    }

    /// Returns true if only instructions with a [`Kind`] must be decoded. Straight runs of others are then counted at
    /// once.
    pub fn skips(&self) -> bool {
        !self.keep_ips && !self.markers.looks_at_all()
    }

    /// The marks that blocks report.
    pub fn markers(&self) -> &'a Markers {
        self.markers
    }

    /// Resets the pattern state for a new walk along code.
    pub fn begin_walk(&mut self) {
        self.progress.reset();
    }

    /// The address whose entry is an event, if any.
    pub fn watch(&self) -> Option<u64> {
        self.watch
    }
}

/// Returns true for a call into the middle of the caller's own function. Code does that to get its own address or to
/// fill the return predictor (retpolines); it is not a call in the source.
pub(crate) fn is_inner_call(from: u32, to: FuncRef, target: u64) -> bool {
    to.known && from == to.id && target != to.entry
}

/// The linear address `ip` after an instruction of `len` bytes.
pub(crate) fn advance(ip: u64, len: u8, mode: Mode) -> u64 {
    let next = ip.wrapping_add(len.into());
    match mode {
        Mode::Bits64 => next,
        // Segments add their base to instruction pointers that wrap earlier; it is not known.
        Mode::Bits32 | Mode::Bits16 => next & 0xffff_ffff,
    }
}
