// SPDX-License-Identifier: MIT OR Apache-2.0
//! Jumps in a process, in place of the traps of its probes: which probes take one, and all steps from the place to the jump.
//!
//! Input: the session's plans, with their uprobes attached, and a process. Output: an [`Outcome`] for each probe of a program. The
//! uprobe at the place stays registered, for other processes of the same program; where the jump is, nobody meets it.
//!
//! The process is stopped twice, as shortly as can be: to make the trampolines' memory, and to write the jumps. Programs are loaded
//! between the two. A command that has not begun is this process's own child; a program that runs is stopped by the guard, which
//! outlives this process.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use kprism_bpf::link::Link;
use kprism_bpf::map::Map;
use kprism_bpf::prog::Program;
use kprism_ebpf::insn::Helper;
use kprism_ebpf::opcode;
use kprism_expr::dwarf::Image;
use kprism_jump::area::{Area, Memory};
use kprism_jump::displace::{Around, Displaced, JUMP, SHORT, displaced};
use kprism_jump::guard::{Guard, Place, Planned};
use kprism_jump::maps::{self, Mapping};
use kprism_jump::native::{Native, Where};
use kprism_jump::patch::{self, Patch, To};
use kprism_jump::process::{self, Stopped};
use kprism_jump::trampoline::{self, Trampoline};

use super::{Session, link};
use crate::plan::{Fill, Plan, Site};
use crate::program::Layout;

/// A process that takes jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Process {
    /// One that runs.
    Running(u32),
    /// A child that asked this thread to trace it and has just executed its program. It goes on when the jumps are written.
    Begun(u32),
    /// The same; it is killed unless all probes get jumps, and has executed nothing then.
    BegunOrNot(u32),
}

impl Process {
    fn pid(self) -> u32 {
        match self {
            Process::Running(pid) | Process::Begun(pid) | Process::BegunOrNot(pid) => pid,
        }
    }
}

/// A jump or a trap: a probe's place in a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Number of the probe's plan.
    pub number: usize,
    /// The process.
    pub pid: u32,
    /// A jump, or the reason why the trap stays.
    pub jump: Result<(), String>,
}

/// The jumps of a session.
#[derive(Debug, Default)]
pub struct Jumps {
    all: RefCell<Vec<Jump>>,
    guard: RefCell<Option<Guard>>,
    /// Numbers of probes that have no jump in some process.
    trapped: RefCell<BTreeSet<usize>>,
    /// Places that could not be put back, and why.
    left: RefCell<Vec<String>>,
}

#[derive(Debug)]
struct Jump {
    number: usize,
    area: Area,
    patch: Patch,
    _program: Program,
    link: Option<Link>,
}

impl Jumps {
    /// Hits so far whose condition was false, of a probe.
    pub(super) fn false_hits(&self, number: usize) -> u64 {
        let all = self.all.borrow();
        all.iter().filter(|jump| jump.number == number).map(|jump| jump.area.false_hits()).sum()
    }

    /// The method by which a probe is met where it has jumps; `None` where it has none.
    pub(super) fn hook(&self, number: usize) -> Option<&'static str> {
        let jumped = self.all.borrow().iter().any(|jump| jump.number == number);
        let trapped = self.trapped.borrow().contains(&number);
        jumped.then_some(if trapped { "jump or uprobe" } else { "jump" })
    }

    /// Takes the jumps out. Their counts can still be read. The uprobes at the places are attached.
    pub(super) fn end(&self) {
        let mut all = self.all.borrow_mut();
        all.iter().for_each(|jump| jump.area.switch(false));
        let out: Vec<Patch> =
            all.iter().filter(|jump| jump.link.is_some()).map(|jump| jump.patch.clone()).collect();
        if out.is_empty() {
            return;
        }
        let failed = patch::undo(&out, To::Before);
        // A guard that is not dismissed tries again, until the process has ended.
        match (failed.is_empty(), self.guard.take()) {
            (true, Some(guard)) => guard.dismiss(),
            (_, guard) => drop(guard),
        }
        self.left.borrow_mut().extend(failed);
        Link::detach_all(all.iter_mut().filter_map(|jump| jump.link.take()).collect());
    }
}

/// Why a probe takes no jump in any process; `None` if it may.
pub fn refusal(plan: &Plan, all: &[Plan]) -> Option<String> {
    let Site::User { file, offset, at_return, listeners, .. } = &plan.site else {
        return Some("it is not in a program".to_owned());
    };
    let same = |other: &&Plan| matches!(&other.site, Site::User { file: f, offset: o, .. } if f == file && o == offset);
    let is_stack = |fill: &Fill| matches!(fill, Fill::Stack { .. } | Fill::Registers);
    let slots = || plan.slots.iter().chain(&plan.actions.keys);
    let segments = || {
        slots().flat_map(|slot| slot.fill.segments()).chain(plan.actions.segments()).chain(&plan.condition)
    };
    let asks = |helper: Helper| {
        segments().any(|s| {
            s.program.insns.iter().any(|i| i.code == opcode::CALL && i.src == 0 && i.imm == helper as i32)
        })
    };
    let why = if *at_return {
        "a function's return is found by the kernel"
    } else if *listeners != 0 {
        "a static tracepoint counts its listeners in the kernel"
    } else if plan.condition.is_none() {
        "without a condition each hit is recorded, by a trap"
    } else if plan.condition_ir.is_none() {
        "it was compiled elsewhere, to eBPF only"
    } else if all.iter().any(|other| !other.probe.effect.is_record()) {
        "a probe starts, pauses or ends the recording, in the kernel"
    } else if plan.actions.pass.is_some() {
        "--pass takes the probe out of the code while it records"
    } else if slots().any(|slot| is_stack(&slot.fill)) || asks(Helper::GetStack) || !plan.hidden.is_empty() {
        "it collects the stack or all registers, which are those of the trampoline behind a jump"
    } else if all.iter().filter(same).count() > 1 {
        "several probes are at the place"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Facts on a place, found before the process is stopped.
struct Located {
    number: usize,
    place: u64,
    slide: u64,
    readable: Vec<Range<u64>>,
    displaced: Displaced,
    file: Vec<u8>,
}

/// A trampoline's memory in the process, and the bytes at the place.
struct Made {
    area: Area,
    before: [u8; JUMP],
}

/// A trampoline that is ready for its jump.
struct Ready {
    number: usize,
    displaced: Displaced,
    patch: Patch,
    area: Area,
    program: Program,
    link: Link,
}

impl Ready {
    fn middle(&self) -> Option<Range<u64>> {
        self.displaced.middle(self.patch.at)
    }
}

/// Jumps that were written or not, by number of the probe.
type Done = Vec<(usize, Result<(), String>)>;

impl Session {
    /// Gives the probes of programs jumps in a process. Others keep their traps, and each has its reason.
    pub fn jump(&self, process: Process) -> Vec<Outcome> {
        let pid = process.pid();
        // A command has its code mapped when it stops behind exec. Its parent goes on somewhat earlier.
        let begun = match process {
            Process::Begun(pid) | Process::BegunOrNot(pid) => Stopped::child(pid).map(Some),
            Process::Running(_) => Ok(None),
        };
        let refused = begun.as_ref().err().cloned().or_else(|| process::refusal(pid));
        let (mut located, mut done) = (Vec::new(), Done::new());
        for (number, plan) in self.plans.iter().enumerate() {
            if !matches!(plan.site, Site::User { .. }) {
                continue;
            }
            let why = refusal(plan, &self.plans);
            let threads = || "the probes have variables of threads, which are in the kernel".to_owned();
            let why = why.or_else(|| (self.layout.thread_vars > 0).then(threads));
            match why.or_else(|| refused.clone()).map_or_else(|| locate(plan, number, pid), Err) {
                Ok(place) => located.push(place),
                Err(why) => done.push((number, Err(why))),
            }
        }
        let numbers: Vec<usize> = located.iter().map(|located| located.number).collect();
        let jumped = match (begun, process) {
            (Ok(Some(stopped)), Process::BegunOrNot(_)) => {
                Ok(self.jump_begun(stopped, located, Some(done.is_empty())))
            }
            (Ok(Some(stopped)), _) => Ok(self.jump_begun(stopped, located, None)),
            _ if located.is_empty() => Ok(Done::new()),
            _ => self.jump_running(pid, located),
        };
        match jumped {
            Ok(jumped) => done.extend(jumped),
            Err(why) => done.extend(numbers.into_iter().map(|number| (number, Err(why.clone())))),
        }
        done.sort_by_key(|(number, _)| *number);
        let trapped = done.iter().filter(|(_, jump)| jump.is_err()).map(|(number, _)| *number);
        self.jumps.trapped.borrow_mut().extend(trapped);
        done.into_iter().map(|(number, jump)| Outcome { number, pid, jump }).collect()
    }

    /// Jumps that could not be taken out at the end, and why.
    pub fn jumps_left(&self) -> Vec<String> {
        self.jumps.left.borrow().clone()
    }

    /// `so_far`: all others have jumps, and the process is killed unless these get theirs.
    fn jump_begun(&self, mut stopped: Stopped, located: Vec<Located>, so_far: Option<bool>) -> Done {
        let mut done = Done::new();
        for located in located {
            let number = located.number;
            let made = make(&stopped, &located).and_then(|made| self.load(located, made));
            done.push((
                number,
                made.and_then(|ready| {
                    self.guard()?.tell(&ready.patch)?;
                    match patch::write(&mut stopped, &ready.patch, ready.middle().as_ref())? {
                        true => {
                            self.keep(ready);
                            Ok(())
                        }
                        false => {
                            Err("a thread is in the instructions that the jump would replace".to_owned())
                        }
                    }
                }),
            ));
        }
        if so_far.is_some_and(|all| !all || done.iter().any(|(_, jump)| jump.is_err())) {
            stopped.kill();
        }
        done
    }

    fn jump_running(&self, pid: u32, located: Vec<Located>) -> Result<Done, String> {
        /// Times that the process is stopped until no thread is in the way.
        const TRIES: u32 = 50;
        let places = located.iter().map(|located| Place { at: located.place, file: located.file.clone() });
        let made = self.guard()?.make(pid, places.collect())?;
        let (mut done, mut ready) = (Done::new(), Vec::new());
        for (located, made) in located.into_iter().zip(made) {
            let number = located.number;
            let made = made.and_then(|(memory, before)| Ok(Made { area: Area::of(memory)?, before }));
            match made.and_then(|made| self.load(located, made)) {
                Ok(one) => ready.push(one),
                Err(why) => done.push((number, Err(why))),
            }
        }
        for _ in 0..TRIES {
            if ready.is_empty() {
                return Ok(done);
            }
            let planned = |ready: &Ready| Planned { patch: ready.patch.clone(), middle: ready.middle() };
            let written = self.guard()?.write(pid, ready.iter().map(planned).collect())?;
            let mut again = Vec::new();
            for (ready, written) in ready.into_iter().zip(written) {
                match written {
                    Ok(true) => {
                        done.push((ready.number, Ok(())));
                        self.keep(ready);
                    }
                    Ok(false) => again.push(ready),
                    Err(why) => done.push((ready.number, Err(why))),
                }
            }
            ready = again;
            std::thread::sleep(Duration::from_millis(1));
        }
        let never =
            "a thread is in the instructions that the jump would replace, each time that it is stopped";
        done.extend(ready.iter().map(|ready| (ready.number, Err(never.to_owned()))));
        Ok(done)
    }

    /// Compiles the trampoline, and puts the uprobe on its no-op.
    fn load(&self, located: Located, made: Made) -> Result<Ready, String> {
        let Located { number, place, ref displaced, ref file, .. } = located;
        let Made { area, before } = made;
        let plan = &self.plans[number];
        let native = native(plan, &located)?;
        let at = area.addresses(place);
        let Trampoline { code, nop } = trampoline::trampoline(&native, displaced, at)?;
        area.write(&code)?;
        area.switch(true);
        let layout = Layout { place: Some(place), ..self.layout };
        let mut maps: Vec<&Map> = vec![self.tasks.map(), &self.rings_map, &self.state_map];
        maps.extend(&self.keyed[number]);
        let attached = link::behind_jump(plan, number as u32, &layout, &maps, &area.path(), nop as u64);
        let (program, link) = attached.map_err(|why| format!("the uprobe behind the jump: {why}"))?;
        let jump = trampoline::jump(place, at.code).ok_or("the trampoline is too far")?;
        let file = file.first_chunk().copied().ok_or("the file ends at the place")?;
        let patch = Patch { inode: area.inode(), at: place, file, before, jump };
        Ok(Ready { number, displaced: displaced.clone(), patch, area, program, link })
    }

    /// The process that writes jumps into running programs, and takes them out if this one is killed. It is started when it is needed.
    fn guard(&self) -> Result<RefMut<'_, Guard>, String> {
        let mut guard = self.jumps.guard.borrow_mut();
        if guard.is_none() {
            *guard = Some(Guard::start().map_err(|error| format!("the process that writes jumps: {error}"))?);
        }
        RefMut::filter_map(guard, Option::as_mut)
            .map_err(|_| "the process that writes jumps is gone".to_owned())
    }

    fn keep(&self, ready: Ready) {
        let Ready { number, patch, area, program, link, .. } = ready;
        self.jumps.all.borrow_mut().push(Jump { number, area, patch, _program: program, link: Some(link) });
    }
}

/// Finds a probe's place in a process, and what a jump there would replace.
fn locate(plan: &Plan, number: usize, pid: u32) -> Result<Located, String> {
    let Site::User { file: path, offset, .. } = &plan.site else {
        return Err("it is not in a program".to_owned());
    };
    let link = plan.probe.address.ok_or("its address is not known")?;
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let (mappings, whole) = (maps::of(pid).map_err(failed)?, std::fs::read(path).map_err(failed)?);
    let of_file = of_file(path, &mappings).map_err(failed)?;
    let inside = |map: &&&Mapping| {
        map.executable && (map.offset..map.offset + (map.range.end - map.range.start)).contains(offset)
    };
    let code = of_file
        .iter()
        .find(inside)
        .ok_or("its file is not mapped in the process: it is no program of it, or not yet")?;
    if code.writable {
        return Err("its code can be written by the process itself".to_owned());
    }
    let place = code.range.start + (offset - code.offset);
    let slide = place.wrapping_sub(link);
    let end = (code.offset + (code.range.end - code.range.start)).min(whole.len() as u64);
    let segment = whole.get(code.offset as usize..end as usize).ok_or("its file has become shorter")?;
    let image = Image::map(path).map_err(|error| error.to_string())?;
    let function = image.around(link).map(|symbol| (symbol.address, symbol.address + symbol.size));
    let function = function.map(|(from, to)| from.wrapping_add(slide)..to.wrapping_add(slide));
    let hidden = [".gcc_except_table", ".go.buildinfo", ".gopclntab"];
    let hidden_entries = hidden.iter().any(|section| image.has_section(section));
    let near = (link.saturating_sub(SHORT)..link + SHORT).filter_map(|at| image.around(at));
    let mut others: Vec<Range<u64>> = near
        .map(|symbol| symbol.address.wrapping_add(slide)..(symbol.address + symbol.size).wrapping_add(slide))
        .collect();
    others.dedup();
    let around = Around { segment, at: code.range.start, function, others, hidden_entries };
    let displaced = displaced(&around, place)?;
    let file = segment[(offset - code.offset) as usize..][..displaced.len].to_vec();
    let located = Located { number, place, slide, readable: readable(&of_file, &mappings), displaced, file };
    native(plan, &located)?;
    Ok(located)
}

fn native<'a>(plan: &'a Plan, located: &'a Located) -> Result<Native<'a>, String> {
    let Located { place, slide, readable, .. } = located;
    let condition = plan.condition_ir.as_ref().ok_or("there is no condition")?;
    Native::new(condition, Where { place: *place, slide: *slide, readable })
}

/// The mappings of a file.
fn of_file<'m>(path: &Path, all: &'m [Mapping]) -> std::io::Result<Vec<&'m Mapping>> {
    let (file, full) = (File::open(path)?.metadata()?, std::fs::canonicalize(path)?);
    let device = format!("{:02x}:{:02x}", libc::major(file.dev()), libc::minor(file.dev()));
    // File systems in layers have another device there than stat(2) says.
    let is_same =
        |map: &&Mapping| map.inode == file.ino() && (map.device == device || Path::new(&map.path) == full);
    Ok(all.iter().filter(is_same).collect())
}

/// The object's memory that can be read: its mappings, with what lies directly behind one and has no file (`.bss`).
fn readable(of_file: &[&Mapping], all: &[Mapping]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for map in all.iter().filter(|map| map.readable) {
        let is_bss = map.inode == 0
            && map.path.is_empty()
            && ranges.last().is_some_and(|last| last.end == map.range.start);
        if !is_bss && !of_file.iter().any(|of| **of == *map) {
            continue;
        }
        match ranges.last_mut().filter(|last| last.end == map.range.start) {
            Some(last) => last.end = map.range.end,
            None => ranges.push(map.range.clone()),
        }
    }
    ranges
}

fn make(stopped: &Stopped, located: &Located) -> Result<Made, String> {
    let before = patch::found(stopped, located.place, &located.file)?;
    Ok(Made { area: Area::of(Memory::make(stopped, located.place)?)?, before })
}
