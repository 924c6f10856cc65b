// SPDX-License-Identifier: MIT OR Apache-2.0
//! The calls of a function, one by one.
//!
//! In: a decoded run, the function, the tasks. Out: when each call began and ended, from a replay of the flow. Its instructions
//! are not kept, as `kprism_flow::replay::spans` keeps them: a function may have millions of calls.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use kprism_flow::Guessed;
use kprism_flow::event::Event;
use kprism_flow::replay::calls::{Begin, Calls, End, Stacks};
use kprism_flow::replay::{Code, Listener, Task, TracePosition};
use kprism_image::Image;
use kprism_profile::{Ending, Unended};

use crate::flow::{Loaded, follow};
use crate::progress::Progress;

/// A call that is inside no other call of the same function by the same task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCall {
    /// The function, as the run's symbols number it.
    pub func: u32,
    /// Thread id of its task.
    pub pid: u32,
    /// Process id of its task.
    pub tgid: u32,
    /// Name of its task when it began.
    pub comm: Arc<str>,
    /// The CPU on which it began.
    pub cpu: u16,
    /// Time at which it began, ns.
    pub start_ns: u64,
    /// Time at which it went off its stack, ns; `u64::MAX` of [`Ending::Open`].
    pub end_ns: u64,
    /// The reason why it went off its stack.
    pub ending: Ending,
    /// True if the program left its stack meanwhile: its task ran something else then.
    pub was_left: bool,
}

impl FunctionCall {
    /// Its duration, ns; `None` if its end was not seen.
    pub fn wall_ns(&self) -> Option<u64> {
        (self.ending == Ending::Seen).then(|| self.end_ns.saturating_sub(self.start_ns))
    }
}

/// The calls that were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FunctionCalls {
    /// Those whose beginning was seen, in the order in which they began.
    pub calls: Vec<FunctionCall>,
    /// Number of calls whose beginning was not seen: they were under way where the flow was first known.
    pub without_beginning: u64,
}

/// Finds the calls of the functions that are marked in `chosen`, by the tasks that `takes` accepts when a call begins.
pub fn find(
    loaded: &Loaded,
    chosen: &[bool],
    takes: &dyn Fn(&Task) -> bool,
    progress: &Progress,
) -> FunctionCalls {
    progress.step("looking for the call");
    let watch = Watch {
        chosen,
        takes,
        found: FunctionCalls::default(),
        open: HashMap::new(),
        left: HashMap::new(),
        comms: HashSet::new(),
    };
    let mut finder = Finder { stacks: Stacks::default(), watch };
    // What could not be decoded is told when the call itself is read.
    follow(loaded, &mut finder, &Progress::silent());
    finder.watch.found
}

/// The listener of the replay.
struct Finder<'a> {
    stacks: Stacks,
    watch: Watch<'a>,
}

/// The outermost call of a chosen function on a task's stack.
struct Outermost {
    /// The function.
    func: u32,
    /// Number of calls around it.
    depth: usize,
    /// Its index in [`FunctionCalls::calls`]; `None` if its beginning was not seen, or if its task came back to it.
    index: Option<usize>,
}

struct Watch<'a> {
    chosen: &'a [bool],
    takes: &'a dyn Fn(&Task) -> bool,
    found: FunctionCalls,
    /// By task, those further in last.
    open: HashMap<usize, Vec<Outermost>>,
    /// Calls whose stack was left, by task, function and time of their beginning: their task may come back to them.
    left: HashMap<(usize, u32, u64), usize>,
    /// Names of tasks; calls share them.
    comms: HashSet<Arc<str>>,
}

impl Watch<'_> {
    fn comm(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.comms.get(name) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(name);
        self.comms.insert(Arc::clone(&new));
        new
    }
}

impl Calls for Watch<'_> {
    fn begin(&mut self, at: &TracePosition<'_>, call: Begin) {
        if self.chosen.get(call.func as usize) != Some(&true) {
            return;
        }
        let stack = self.open.entry(at.task).or_default();
        // A call that is no longer on the stack, but never ended here, has a depth that another call takes.
        while stack.pop_if(|last| last.depth >= call.depth).is_some() {}
        if stack.iter().any(|outermost| outermost.func == call.func) {
            return;
        }
        let Some(task) = at.tasks.get(at.task).filter(|task| (self.takes)(task)) else { return };
        let index = call.counts.then_some(self.found.calls.len());
        if index.is_some() {
            let comm = self.comm(&task.comm);
            self.found.calls.push(FunctionCall {
                func: call.func,
                pid: task.pid,
                tgid: task.tgid,
                comm,
                cpu: at.cpu,
                start_ns: at.ns(),
                end_ns: u64::MAX,
                ending: Ending::Open,
                was_left: false,
            });
        } else if !call.again {
            self.found.without_beginning += 1;
        }
        let outermost = Outermost { func: call.func, depth: call.depth, index };
        self.open.entry(at.task).or_default().push(outermost);
    }

    fn end(&mut self, at: &TracePosition<'_>, call: End) {
        let Some(stack) = self.open.get_mut(&at.task) else { return };
        let Some(outermost) = stack.pop_if(|last| last.depth == call.depth) else { return };
        let key = (at.task, call.func, call.start_ns);
        let Some(index) = outermost.index.or_else(|| self.left.remove(&key)) else { return };
        if call.ending == Ending::Left {
            self.left.insert(key, index);
        }
        if let Some(found) = self.found.calls.get_mut(index) {
            (found.end_ns, found.ending) = (at.ns(), call.ending);
            found.was_left |= call.ending == Ending::Left;
        }
    }
}

impl Listener for Finder<'_> {
    fn define(&mut self, _at: &TracePosition<'_>, _block: u32, _code: Code, _image: &Image) {}

    fn run(&mut self, at: &TracePosition<'_>, _block: u32, from: u32, to: u32) {
        self.stacks.run(at, to - from);
    }

    fn rest(&mut self, at: &TracePosition<'_>, ns: u64) {
        self.stacks.rest(at, ns);
    }

    fn event(&mut self, at: &TracePosition<'_>, event: &Event) {
        self.stacks.event(at, event, &mut self.watch);
    }

    fn guessed(&self) -> Guessed {
        self.stacks.guessed()
    }

    fn unended(&self) -> Unended {
        self.stacks.unended()
    }
}
