// SPDX-License-Identifier: MIT OR Apache-2.0
//! The instructions that ran in a lane, each formatted once.
//!
//! An instruction is identified by its address space and address. If its bytes or its function change, it is a
//! different instruction from then on. Blocks are lists of instructions.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::io::Write as _;

use kprism_flow::replay::Code;
use kprism_image::Image;
use kprism_image::code::KeyHasher;
use kprism_image::insn::{Far, Kind, Mode, classify};
use kprism_image::is_kernel;
use kprism_image::resolve::{FuncRef, Resolve};

use crate::disasm::{Disassembler, Refers, Syntax};
use crate::json;
use crate::names::Names;
use crate::output::append;
use crate::prefix::Form;
use crate::select::{Field, Fields};

/// Nearly all lines are shorter, without their prefix.
const LINE: usize = 128;

/// Width of the place, before the instruction.
const PLACE: usize = 56;

/// Kinds of transfer to the next instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// To the next one in the code.
    Falls,
    /// To the next one in the code or elsewhere.
    Cond,
    /// By a jump, direct or not.
    Jump,
    /// By a call, direct or not.
    Call,
    /// By a return.
    Ret,
    /// By a far transfer.
    Far(Far),
}

impl Ends {
    /// The transfer after an instruction of this kind.
    pub fn of(kind: Kind) -> Self {
        match kind {
            Kind::CondJump { .. } => Ends::Cond,
            Kind::Jump { .. } | Kind::IndirectJump => Ends::Jump,
            Kind::Call { .. } | Kind::IndirectCall => Ends::Call,
            Kind::Ret => Ends::Ret,
            Kind::Far(far) => Ends::Far(far),
            _ => Ends::Falls,
        }
    }
}

/// A part of the texts: start and length.
type Piece = (u32, u32);

/// An instruction.
#[derive(Debug, Clone, Copy)]
pub struct Insn {
    /// Its address.
    pub ip: u64,
    /// The address after it.
    pub next: u64,
    /// Transfer to the next instruction.
    pub ends: Ends,
    /// Its function, by the resolver's number.
    pub func: u32,
    len: u8,
    bytes: [u8; 15],
    entry: u64,
    asid: u64,
    mode: Mode,
    known: bool,
}

/// All instructions of one lane.
pub(crate) struct Codes {
    insns: Vec<Insn>,
    /// `ip sym+off (module)` of each, once requested.
    places: Vec<Piece>,
    /// The whole line of each without its prefix, once requested.
    lines: Vec<Piece>,
    /// The newest instruction at (address space, address).
    newest: HashMap<(u64, u64), u32, BuildHasherDefault<KeyHasher>>,
    /// Instructions of all blocks, one block after the other.
    list: Vec<u32>,
    /// Index of each block's first entry in `list`.
    blocks: Vec<u32>,
    /// Indices in `list` of instructions that do not just fall through, without each block's last.
    turns: Vec<u32>,
    /// Index of each block's first entry in `turns`.
    block_turns: Vec<u32>,
    texts: Vec<u8>,
    last_func: (u64, FuncRef),
}

/// Formats texts.
pub(crate) struct Maker<'a, R> {
    pub form: Form,
    pub fields: Fields,
    pub names: Names<'a, R>,
    disassembler: Disassembler,
}

impl<'a, R: Resolve> Maker<'a, R> {
    pub fn new(form: Form, fields: Fields, syntax: Syntax, resolver: &'a R) -> Self {
        Self { form, fields, names: Names::new(resolver), disassembler: Disassembler::new(syntax) }
    }
}

impl Codes {
    pub fn new() -> Self {
        let nothing = FuncRef { id: 0, entry: 0, known: false, start: 1, end: 0 };
        Self {
            insns: Vec::new(),
            places: Vec::new(),
            lines: Vec::new(),
            newest: HashMap::default(),
            list: Vec::new(),
            blocks: vec![0],
            turns: Vec::new(),
            block_turns: vec![0],
            texts: Vec::new(),
            last_func: (0, nothing),
        }
    }

    /// Adds the next block of this lane.
    pub fn define(&mut self, code: &Code, image: &Image, resolver: &impl Resolve, ns: u64) {
        for &ip in &code.ips {
            let mut bytes = [0; 15];
            let got = image.fetch(code.asid, ip, code.offset, &mut bytes);
            let func = self.func_at(code.asid, ip, resolver, ns);
            let id = match self.newest.get(&(code.asid, ip)) {
                Some(&id) if self.insns[id as usize].is_still(&bytes, &func, code.mode) => id,
                _ => {
                    let insn = Insn::new(code, ip, &bytes[..got], &func);
                    self.insns.push(insn);
                    self.places.push((0, 0));
                    self.lines.push((0, 0));
                    let id = (self.insns.len() - 1) as u32;
                    self.newest.insert((code.asid, ip), id);
                    id
                }
            };
            if self.insns[id as usize].ends != Ends::Falls {
                self.turns.push(self.list.len() as u32);
            }
            self.list.push(id);
        }
        if self.turns.last().is_some_and(|&t| t as usize + 1 == self.list.len()) {
            self.turns.pop();
        }
        self.blocks.push(self.list.len() as u32);
        self.block_turns.push(self.turns.len() as u32);
    }

    fn func_at(&mut self, asid: u64, ip: u64, resolver: &impl Resolve, ns: u64) -> FuncRef {
        let (space, func) = self.last_func;
        // Ranges of a space's mappings may change with time, but not within one block's definition.
        if space != asid || ip < func.start || func.end <= ip || !is_kernel(ip) {
            self.last_func = (asid, resolver.function_at(asid, ip, ns));
        }
        self.last_func.1
    }

    /// Indices in the list for the instructions `from..to` of a block.
    #[inline(always)]
    pub fn block(&self, block: u32, from: u32, to: u32) -> std::ops::Range<usize> {
        let start = self.blocks[block as usize];
        (start + from) as usize..(start + to) as usize
    }

    /// The instruction at an index of the list.
    #[inline(always)]
    pub fn at(&self, place: usize) -> u32 {
        self.list[place]
    }

    /// Indices among `places` of a block, without the last, of instructions that do not just fall through.
    #[inline(always)]
    pub fn turns(&self, block: u32, places: &std::ops::Range<usize>) -> &[u32] {
        let all = self.block_turns[block as usize] as usize..self.block_turns[block as usize + 1] as usize;
        let mut turns = &self.turns[all];
        while let [first, rest @ ..] = turns
            && (*first as usize) < places.start
        {
            turns = rest;
        }
        while let [rest @ .., last] = turns
            && *last as usize + 1 >= places.end
        {
            turns = rest;
        }
        turns
    }

    #[inline(always)]
    pub fn insn(&self, id: u32) -> &Insn {
        &self.insns[id as usize]
    }

    /// Appends the line of an instruction without its prefix.
    #[inline(always)]
    pub fn append_line<R: Resolve>(&mut self, out: &mut Vec<u8>, id: u32, maker: &mut Maker<'_, R>) {
        let mut piece = self.lines[id as usize];
        if piece.1 == 0 {
            piece = self.make_line(id, maker);
        }
        append::<LINE>(out, &self.texts[piece.0 as usize..], piece.1 as usize);
    }

    /// The place of an instruction: address, function, module.
    #[inline(always)]
    pub fn place<R: Resolve>(&mut self, id: u32, maker: &mut Maker<'_, R>) -> &[u8] {
        let mut piece = self.places[id as usize];
        if piece.1 == 0 {
            let from = self.texts.len();
            let insn = self.insns[id as usize];
            write_place(&mut self.texts, &insn.spot(), maker);
            piece = (from as u32, (self.texts.len() - from) as u32);
            self.places[id as usize] = piece;
        }
        &self.texts[piece.0 as usize..(piece.0 + piece.1) as usize]
    }

    #[inline(never)]
    fn make_line<R: Resolve>(&mut self, id: u32, maker: &mut Maker<'_, R>) -> Piece {
        let insn = self.insns[id as usize];
        let from = self.texts.len();
        let out = &mut self.texts;
        write_place(out, &insn.spot(), maker);
        let (has_bytes, has_insn) = (maker.fields.has(Field::Bytes), maker.fields.has(Field::Insn));
        let bytes = &insn.bytes[..usize::from(insn.len)];
        match maker.form {
            Form::Text => {
                if has_bytes || has_insn {
                    let long = maker.fields.has(Field::Sym) || maker.fields.has(Field::Module);
                    let pad = if long { PLACE.saturating_sub(out.len() - from) } else { 0 };
                    out.extend(std::iter::repeat_n(b' ', pad.max(2)));
                }
                if has_bytes {
                    bytes.iter().for_each(|b| drop(write!(out, "{b:02x} ")));
                    let pad = if has_insn { 3 * (10usize.saturating_sub(bytes.len())) } else { 0 };
                    out.extend(std::iter::repeat_n(b' ', pad));
                }
                if has_insn {
                    write_insn(out, &insn, maker);
                }
            }
            Form::Json => {
                if has_bytes {
                    out.extend_from_slice(b"\"bytes\":\"");
                    bytes.iter().for_each(|b| drop(write!(out, "{b:02x}")));
                    out.extend_from_slice(b"\",");
                }
                if has_insn {
                    let mut text = Vec::new();
                    write_insn(&mut text, &insn, maker);
                    out.extend_from_slice(b"\"insn\":");
                    json::string(out, &String::from_utf8_lossy(&text));
                    out.push(b',');
                }
                if out.len() > from {
                    out.pop();
                }
                out.push(b'}');
            }
        }
        while maker.form == Form::Text && out.last() == Some(&b' ') {
            out.pop();
        }
        out.push(b'\n');
        let piece = (from as u32, (out.len() - from) as u32);
        self.lines[id as usize] = piece;
        piece
    }
}

impl Insn {
    fn new(code: &Code, ip: u64, bytes: &[u8], func: &FuncRef) -> Self {
        let mut kept = [0; 15];
        kept[..bytes.len()].copy_from_slice(bytes);
        let insn = classify(bytes, ip, code.mode).ok();
        let len = insn.map_or(bytes.len() as u8, |i| i.len);
        Self {
            ip,
            next: ip.wrapping_add(len.into()),
            ends: insn.map_or(Ends::Falls, |i| Ends::of(i.kind)),
            func: func.id,
            len,
            bytes: kept,
            entry: func.entry,
            asid: code.asid,
            mode: code.mode,
            known: func.known,
        }
    }

    fn is_still(&self, bytes: &[u8; 15], func: &FuncRef, mode: Mode) -> bool {
        let len = usize::from(self.len);
        self.bytes[..len] == bytes[..len] && (self.func, self.entry, self.mode) == (func.id, func.entry, mode)
    }

    fn spot(&self) -> CodePlace {
        CodePlace { ip: self.ip, func: self.func, entry: self.entry, known: self.known }
    }

    /// Returns true for kernel code.
    pub fn is_kernel(&self) -> bool {
        is_kernel(self.ip)
    }
}

/// A place in the code.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CodePlace {
    pub ip: u64,
    pub func: u32,
    pub entry: u64,
    pub known: bool,
}

impl CodePlace {
    pub fn find(ip: u64, asid: u64, resolver: &impl Resolve, ns: u64) -> Self {
        let func = resolver.function_at(if is_kernel(ip) { 0 } else { asid }, ip, ns);
        Self { ip, func: func.id, entry: func.entry, known: func.known }
    }
}

/// Writes an unknown place.
pub(crate) fn write_nowhere(out: &mut Vec<u8>, form: Form, fields: &Fields) {
    if form == Form::Text {
        let ip = if fields.has(Field::Ip) { "               0 " } else { "" };
        let _ = write!(out, "{ip}[unknown]");
    }
}

/// Writes a place. In JSON each member is followed by a comma.
pub(crate) fn write_place<R: Resolve>(out: &mut Vec<u8>, spot: &CodePlace, maker: &mut Maker<'_, R>) {
    let Maker { form, fields, names, .. } = maker;
    let name = names.get(spot.func);
    let offset = spot.ip.wrapping_sub(spot.entry);
    match form {
        Form::Text => {
            let mut space = "";
            if fields.has(Field::Ip) {
                let _ = write!(out, "{:16x}", spot.ip);
                space = " ";
            }
            if fields.has(Field::Sym) {
                let _ = match spot.known {
                    true => write!(out, "{space}{}+{offset:#x}", name.symbol),
                    false => write!(out, "{space}[unknown]"),
                };
                space = " ";
            }
            if fields.has(Field::Module) {
                let module = if name.module.is_empty() { "[unknown]" } else { &name.module };
                let _ = write!(out, "{space}({module})");
            }
        }
        Form::Json => {
            if fields.has(Field::Ip) {
                out.extend_from_slice(b"\"ip\":");
                json::address(out, spot.ip);
                out.push(b',');
            }
            if fields.has(Field::Sym) && spot.known {
                out.extend_from_slice(b"\"symbol\":");
                json::string(out, &name.symbol);
                let _ = write!(out, ",\"offset\":{offset},");
            }
            if fields.has(Field::Module) && !name.module.is_empty() {
                out.extend_from_slice(b"\"module\":");
                json::string(out, &name.module);
                out.push(b',');
            }
        }
    }
}

fn write_insn<R: Resolve>(out: &mut Vec<u8>, insn: &Insn, maker: &mut Maker<'_, R>) {
    let bytes = &insn.bytes[..usize::from(insn.len)];
    let (text, refers) = maker.disassembler.format(bytes, insn.ip, insn.mode);
    out.extend_from_slice(text.as_bytes());
    match refers {
        Some(Refers::Branch(target)) => {
            let spot = CodePlace::find(target, insn.asid, maker.names.resolver, u64::MAX);
            if spot.known {
                let _ = write!(out, " <{}", maker.names.get(spot.func).symbol);
                let offset = target.wrapping_sub(spot.entry);
                let _ = if offset == 0 { write!(out, ">") } else { write!(out, "+{offset:#x}>") };
            }
        }
        Some(Refers::Memory(address)) => {
            let _ = write!(out, "  # {address:x}");
        }
        None => {}
    }
}
