// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the static tracepoints of a kernel from its vmlinux: events and their fields (`include/linux/trace_events.h`),
//! and their places in the code (`__jump_table`: `include/linux/jump_label.h`).
//!
//! The kernel need not run: the tables are in the file.

use std::collections::HashMap;

use crate::ast::Tag;
use crate::ctype::{Def, Record, Types, resolve};
use crate::event::Field;
use crate::x86::patched::{is_traced, jump_label_len};

use super::{Debug, Error, Image};

/// Limit of an event's fields. The input may be damaged.
const MOST_FIELDS: u64 = 256;

/// A trace event of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Subsystem, as in `SYSTEM:NAME`.
    pub system: String,
    /// Name within the subsystem.
    pub name: String,
    /// True if the event is defined by a tracepoint of this name.
    pub tracepoint: bool,
    /// Fields, without the common ones.
    pub fields: Vec<Field>,
    /// Format in which ftrace prints the event.
    pub print: Option<String>,
}

/// A place of a tracepoint in the code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Site {
    /// Address of the instruction that is a no-op while the tracepoint is disabled.
    pub nop: u64,
    /// Address of the next instruction.
    pub next: u64,
    /// Target of the jump that replaces the no-op while the tracepoint is enabled.
    pub target: u64,
}

/// Offsets of a structure's members in bytes, including those of anonymous members, and the structure's size.
pub(crate) struct Members(HashMap<String, u64>, u64);

impl Members {
    pub fn of(debug: &Debug<'_>, name: &str) -> Result<Self, Error> {
        let missing = |why: String| Error::Nothing(format!("{}: struct {name}: {why}", debug.image.name()));
        let find = |tag, name: &str| debug.find_from(None, tag, name).map_err(missing);
        let ty = find(Tag::Struct, name)?.ok_or_else(|| missing("not described".into()))?;
        let mut all = HashMap::new();
        let Ok(Def::Record(record)) = resolve(debug, &ty) else {
            return Err(missing("no structure".into()));
        };
        fn add(view: &dyn Types, record: &Record, at: u64, depth: u32, all: &mut HashMap<String, u64>) {
            for member in &record.members {
                match (&member.name, resolve(view, &member.ty)) {
                    (Some(name), _) => drop(all.insert(name.clone(), (at + member.offset) / 8)),
                    (None, Ok(Def::Record(inner))) if depth < 4 => {
                        add(view, &inner, at + member.offset, depth + 1, all);
                    }
                    _ => {}
                }
            }
        }
        add(debug, &record, 0, 0, &mut all);
        Ok(Self(all, record.size))
    }

    pub fn at(&self, name: &str) -> Result<u64, Error> {
        let missing = || Error::Nothing(format!("no member `{name}` where tracepoints are described"));
        self.0.get(name).copied().ok_or_else(missing)
    }

    pub fn size(&self) -> u64 {
        self.1
    }
}

/// A jump label: an instruction that is a no-op while a key is off, else a jump.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JumpLabel {
    /// Address of the instruction.
    pub nop: u64,
    /// Target of the jump.
    pub target: u64,
    /// Address of the key.
    pub key: u64,
}

/// Returns the jump labels of a kernel's file; none if it has no table of them.
pub fn jump_labels(image: &Image) -> impl Iterator<Item = JumpLabel> {
    let (start, stop) = image.between("__start___jump_table", "__stop___jump_table").unwrap_or((0, 0));
    // `s32 code, s32 target; long key`, each relative to itself; the key's low bits are flags.
    (start..stop).step_by(16).map_while(|at| {
        let key = (at + 8).wrapping_add(image.word_at(at + 8)? & !3);
        Some(JumpLabel { nop: image.near_at(at)?, target: image.near_at(at + 4)?, key })
    })
}

/// Returns the instructions that the kernel patches at run time (jump labels and static calls), with their length,
/// sorted by address.
fn patched(image: &Image) -> Vec<(u64, u64)> {
    let labels = jump_labels(image).map(|label| (label.nop, jump_label_len(image, label.nop).unwrap_or(5)));
    let (start, stop) =
        image.between("__start_static_call_sites", "__stop_static_call_sites").unwrap_or((0, 0));
    let calls = (start..stop).step_by(8).filter_map(|at| Some((image.near_at(at)?, 5)));
    let mut all: Vec<_> = labels.chain(calls).collect();
    all.sort_unstable();
    all
}

impl Debug<'_> {
    /// Returns all events, sorted by system and name.
    pub fn events(&self) -> Result<Vec<Event>, Error> {
        let image = self.image;
        let none = || {
            Error::Nothing(format!("{}: no events (__start_ftrace_events): is it a vmlinux?", image.name()))
        };
        let (start, stop) =
            image.between("__start_ftrace_events", "__stop_ftrace_events").ok_or_else(none)?;
        let reader = Reader::new(self)?;
        let mut all: Vec<Event> =
            (start..stop).step_by(8).filter_map(|at| reader.event(image.word_at(at)?)).collect();
        all.sort_by(|a, b| (&a.system, &a.name).cmp(&(&b.system, &b.name)));
        Ok(all)
    }

    /// Returns the event of this system and name.
    pub fn event(&self, system: &str, name: &str) -> Result<Option<Event>, Error> {
        let Some(symbol) = self.image.symbol(&format!("event_{name}")) else {
            return Ok(self.events()?.into_iter().find(|e| e.system == system && e.name == name));
        };
        let event = Reader::new(self)?.event(symbol);
        Ok(event.filter(|e| e.system == system && e.name == name))
    }

    /// Returns the places of a tracepoint, sorted by address, without those in code that only runs at boot.
    pub fn sites(&self, tracepoint: &str) -> Result<Vec<Site>, Error> {
        let image = self.image;
        let fail = |what: &str| Error::Nothing(format!("{}: {what}", image.name()));
        let own = image.symbol(&format!("__tracepoint_{tracepoint}"));
        let own = own.ok_or_else(|| fail(&format!("no tracepoint `{tracepoint}`")))?;
        let key = own + Members::of(self, "tracepoint")?.at("key")?;
        if image.between("__start___jump_table", "__stop___jump_table").is_none() {
            return Err(fail("no table of jump labels (__start___jump_table)"));
        }
        let boot = image.between("_sinittext", "_einittext").unwrap_or((0, 0));
        let mut found = Vec::new();
        for JumpLabel { nop, target, .. } in jump_labels(image).filter(|label| label.key == key) {
            let none = || fail(&format!("no jump label at {nop:#x}, where {tracepoint} should be"));
            let len = jump_label_len(image, nop).ok_or_else(none)?;
            if !(boot.0..boot.1).contains(&nop) {
                found.push(Site { nop, next: nop + len, target });
            }
        }
        found.sort_by_key(|s| s.nop);
        Ok(found)
    }

    /// Formats an address as symbol and offset.
    pub fn function_at(&self, address: u64) -> Option<String> {
        let symbol = self.image.around(address)?;
        Some(format!("{}+{:#x}", symbol.name, address - symbol.address))
    }

    /// Returns the reason why the kernel rejects a kprobe at this address; None if it accepts one
    /// (kernel/trace/trace_kprobe.c, arch/x86/kernel/kprobes/core.c).
    pub fn kprobe_refusal(&self, address: u64) -> Option<String> {
        let image = self.image;
        for (start, stop, what) in [
            ("__noinstr_text_start", "__noinstr_text_end", "code that must not be instrumented"),
            ("__entry_text_start", "__entry_text_end", "the kernel's entry code"),
            ("__kprobes_text_start", "__kprobes_text_end", "code that kprobes themselves use"),
        ] {
            if image.between(start, stop).is_some_and(|(a, b)| (a..b).contains(&address)) {
                return Some(what.to_owned());
            }
        }
        let symbol = image.around(address)?;
        if let Some((start, stop)) = image.between("__start_kprobe_blacklist", "__stop_kprobe_blacklist")
            && (start..stop).step_by(8).any(|at| image.word_at(at) == Some(symbol.address))
        {
            return Some(format!("{} is excluded (NOKPROBE_SYMBOL)", symbol.name));
        }
        if !is_traced(image, symbol.address) {
            return Some(format!("{} is not traced (notrace)", symbol.name));
        }
        let patched = self.patched.get_or_init(|| patched(image));
        let before = patched[..patched.partition_point(|p| p.0 <= address)].last();
        let lies = before.is_some_and(|(code, len)| address < code + len);
        lies.then(|| {
            "the instruction is one that the kernel changes (a jump label, a static call)".to_owned()
        })
    }
}

struct Reader<'d> {
    image: &'d Image,
    call: Members,
    class: Members,
    field: Members,
    syscall: Option<Members>,
    behind_tracepoint: u32,
}

impl<'d> Reader<'d> {
    fn new(debug: &Debug<'d>) -> Result<Self, Error> {
        // The flag has always been 8 (TRACE_EVENT_FL_TRACEPOINT_BIT).
        let flag = debug.variant(None, "TRACE_EVENT_FL_TRACEPOINT")?.map_or(8, |(_, n)| n as u32);
        Ok(Self {
            image: debug.image,
            call: Members::of(debug, "trace_event_call")?,
            class: Members::of(debug, "trace_event_class")?,
            field: Members::of(debug, "trace_event_fields")?,
            syscall: Members::of(debug, "syscall_metadata").ok(),
            behind_tracepoint: flag,
        })
    }

    fn event(&self, at: u64) -> Option<Event> {
        let (image, call) = (self.image, &self.call);
        let class = image.word_at(at + call.at("class").ok()?)?;
        let system = image.text_at(image.word_at(class + self.class.at("system").ok()?)?)?;
        let tracepoint = image.half_at(at + call.at("flags").ok()?)? & self.behind_tracepoint != 0;
        let mut name = image.word_at(at + call.at("name").ok()?)?;
        if tracepoint {
            // The first member of `struct tracepoint` is its name.
            name = image.word_at(name)?;
        }
        let name = image.text_at(name)?;
        let print = image.word_at(at + call.at("print_fmt").ok()?).and_then(|text| image.text_at(text));
        let array = image.word_at(class + self.class.at("fields_array").ok()?)?;
        let mut fields = self.fields(array).unwrap_or_default();
        if system == "syscalls"
            && let Some(own) = self.syscall_fields(image.word_at(at + call.at("data").ok()?)?, &name)
        {
            fields = own;
        }
        Some(Event { system, name, tracepoint, fields, print })
    }

    /// Lays the fields out as `trace_event_define_fields` does, after `struct trace_entry`.
    fn fields(&self, array: u64) -> Option<Vec<Field>> {
        let mut found = Vec::new();
        let mut offset = 8_u32;
        for n in 0..MOST_FIELDS {
            let at = array + n * self.field.size();
            let kind = self.image.word_at(at)?;
            if kind == 0 {
                break;
            }
            if kind == u64::MAX {
                continue;
            }
            let kind = self.image.text_at(kind)?;
            let name = self.image.text_at(self.image.word_at(at + self.field.at("name").ok()?)?)?;
            let size = self.image.half_at(at + self.field.at("size").ok()?)?;
            let align = self.image.half_at(at + self.field.at("align").ok()?)?.clamp(1, 64);
            offset = offset.checked_next_multiple_of(align)?;
            // `__data_loc char[]` keeps its brackets. The length of `char[16]` follows from the size.
            let is_elsewhere = ["__data_loc", "__rel_loc"].iter().any(|mark| kind.starts_with(mark));
            let element =
                kind.split_once('[').filter(|_| !is_elsewhere).map(|(kind, _)| kind.trim().to_owned());
            let is_array = element.is_some();
            let kind = element.unwrap_or(kind);
            let signed = self.field.at("is_signed").ok().and_then(|to| self.image.half_at(at + to));
            let signed = signed.map(|flag| flag != 0);
            found.push(Field { name, kind, offset, size, signed, is_array });
            offset = offset.checked_add(size)?;
        }
        Some(found)
    }

    /// Returns the fields of `struct syscall_trace_enter` or `syscall_trace_exit` (kernel/trace/trace.h).
    fn syscall_fields(&self, data: u64, name: &str) -> Option<Vec<Field>> {
        let (image, meta) = (self.image, self.syscall.as_ref()?);
        let field = |name: &str, kind: &str, offset, size| Field {
            name: name.to_owned(),
            kind: kind.to_owned(),
            offset,
            size,
            signed: None,
            is_array: false,
        };
        let mut fields = vec![field("__syscall_nr", "int", 8, 4)];
        if name.starts_with("sys_exit_") {
            fields.push(field("ret", "long", 16, 8));
            return Some(fields);
        }
        let count = image.half_at(data + meta.at("nb_args").ok()?)?.min(6);
        let types = image.word_at(data + meta.at("types").ok()?)?;
        let names = image.word_at(data + meta.at("args").ok()?)?;
        for n in 0..count {
            let kind = image.text_at(image.word_at(types + 8 * u64::from(n))?)?;
            let name = image.text_at(image.word_at(names + 8 * u64::from(n))?)?;
            fields.push(field(&name, &kind, 16 + 8 * n, 8));
        }
        Some(fields)
    }
}
