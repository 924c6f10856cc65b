// SPDX-License-Identifier: MIT OR Apache-2.0
//! Call frames and calling-context nodes, used by the per-chunk stacks and by the stitched ones.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use kprism_image::code::KeyHasher;
pub(crate) use kprism_image::is_kernel;

use crate::decode::event::NO_FUNC;
use kprism_profile::{FrameKind, NO_PARENT, Node};

/// Return address of a frame that has none of its own: resumed code, or a jump out of a kernel entry.
pub(crate) const NO_RETURN: u64 = 0;

/// A call in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Return address. For kernel entries, the address at which the interrupted code resumes.
    pub ret_ip: u64,
    /// Time of entry, ns.
    pub start_ns: u64,
    /// Instructions and on-CPU ns of its task (or chunk) at the time of entry.
    pub start_insns: u64,
    pub start_cpu: u64,
    /// Kernel entries: the address space. Signal handlers: the address at which the interrupted code resumes.
    pub aux: u64,
    pub node: u32,
    pub func: u32,
    /// The node and the function in which it began, before any jump to another function.
    pub home: u32,
    pub home_func: u32,
    /// System calls: the body's function, once seen.
    pub body: u32,
    pub kind: FrameKind,
    /// True if it runs kernel code.
    pub kernel: bool,
    /// True if the program left its stack and came back: it is another part of the same call.
    pub again: bool,
    /// Functions whose end is a mark and coincides with the end of this frame: its own, and one that tail-called it.
    pub ends: [u32; 2],
}

/// A point of a stack's own clocks: time in ns, and what its task (or chunk) has executed so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    pub ns: u64,
    /// Instructions.
    pub insns: u64,
    /// Time on a CPU, ns.
    pub cpu: u64,
}

/// A call that ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Done {
    pub frame: Frame,
    /// Number of frames below it: of its span in a chunk, of its task after stitching.
    pub depth: usize,
    pub end_ns: u64,
    /// Instructions and time on a CPU (ns) from its entry to its end.
    pub insns: u64,
    pub cpu: u64,
}

impl Frame {
    /// Begins a call.
    #[inline(always)]
    pub fn begin(node: u32, func: u32, kind: FrameKind, ret_ip: u64, kernel: bool, now: Now) -> Self {
        Self {
            ret_ip,
            start_ns: now.ns,
            start_insns: now.insns,
            start_cpu: now.cpu,
            aux: 0,
            node,
            func,
            home: node,
            home_func: func,
            body: NO_FUNC,
            kind,
            kernel,
            again: false,
            ends: [NO_FUNC; 2],
        }
    }

    /// Ends the call. `depth` frames were below it.
    #[inline(always)]
    pub fn end(self, depth: usize, now: Now) -> Done {
        Done {
            frame: self,
            depth,
            end_ns: now.ns,
            // A stack that another task left may have run more than this task ever did.
            insns: now.insns.wrapping_sub(self.start_insns),
            cpu: now.cpu.wrapping_sub(self.start_cpu),
        }
    }

    /// Returns true for a kernel entry. `iret` or `sysret` leaves it, not a return.
    pub fn is_entry(&self) -> bool {
        matches!(self.kind, FrameKind::Syscall | FrameKind::Interrupt | FrameKind::Exception)
    }

    /// Gives the system call its name, by the first of its bodies.
    pub fn name_body(&mut self, func: u32) {
        if self.kind == FrameKind::Syscall && self.body == NO_FUNC {
            self.body = func;
        }
    }

    /// Returns true if `ip` is where the code interrupted by this kernel entry continues.
    pub fn resumes_at(&self, ip: u64) -> bool {
        self.ret_ip == ip || self.kind == FrameKind::Syscall && restarts_at(self.ret_ip, ip)
    }

    /// The function jumps back to the one in which the frame began.
    pub fn go_home(&mut self) {
        (self.func, self.node) = (self.home_func, self.home);
    }

    /// Takes over what belongs to the frame as a whole from `old`, whose function jumped to this one.
    pub fn inherit(&mut self, old: &Frame) {
        (self.home, self.home_func) = (old.home, old.home_func);
        (self.aux, self.ends) = (old.aux, old.ends);
    }

    /// Removes the marks that end with this frame, and returns them.
    pub fn take_ends(&mut self) -> [u32; 2] {
        std::mem::replace(&mut self.ends, [NO_FUNC; 2])
    }

    /// Ends `func`, which begins here, together with this frame. There is room for two: returns the one displaced,
    /// which ends now.
    pub fn add_end(&mut self, func: u32) -> Option<u32> {
        let free = self.ends.iter().position(|&f| f == NO_FUNC);
        let over = std::mem::replace(&mut self.ends[free.unwrap_or(1)], func);
        (over != NO_FUNC).then_some(over)
    }
}

/// Returns true if `ip` is the address to which a system call returns, or that of the call itself, to be restarted (Linux
/// sets the address back by the two bytes of `syscall` or `int 0x80`).
pub(crate) fn restarts_at(ret_ip: u64, ip: u64) -> bool {
    ret_ip == ip || ret_ip.wrapping_sub(2) == ip
}

/// Result of a search down the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A frame, by index.
    At(usize),
    /// No match above the innermost kernel entry. Returns and jumps do not cross it.
    BehindEntry,
    /// No match on the whole stack.
    Nothing,
}

/// Searches from the top for the frame that a return to `ip` ends.
pub(crate) fn returned_to(stack: &[Frame], ip: u64) -> Found {
    search(stack, |f| f.ret_ip == ip && !f.is_entry())
}

/// Searches from the top for the frame of `func`, into whose middle a jump leads (`longjmp`, unwinding). If there is none, for the
/// frame that began in `func` and jumped elsewhere: a jump to a bad address is such a jump, from which a signal's handler leads back.
pub(crate) fn jumped_into(stack: &[Frame], func: u32) -> Found {
    match search(stack, |f| f.func == func && !f.is_entry()) {
        Found::At(index) => Found::At(index),
        _ => search(stack, |f| f.home_func == func && !f.is_entry()),
    }
}

/// The kernel entry that a return to user code, or to the kernel, leaves: the innermost one. If that one came from the
/// kernel and the return goes to user code, an entry further down.
pub(crate) fn left_entry(stack: &[Frame], user: bool) -> Option<usize> {
    stack.iter().rposition(|f| f.is_entry() && !(user && is_kernel(f.ret_ip)))
}

fn search(stack: &[Frame], matches: impl Fn(&Frame) -> bool) -> Found {
    for (index, frame) in stack.iter().enumerate().rev() {
        if matches(frame) {
            return Found::At(index);
        }
        if frame.is_entry() {
            return Found::BehindEntry;
        }
    }
    Found::Nothing
}

/// Children cached per node.
const WAYS: usize = 4;

/// Above this number of children, a node's children are looked up in a map.
const MANY: u32 = 16;

/// Calling-context nodes with their children.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub nodes: Vec<Node>,
    /// Per node: its first child, its next sibling and its number of children.
    links: Vec<(u32, u32, u32)>,
    /// Per node, some children entered lately, by the low bits of their function: (function and kind, node). Empty
    /// where contexts are entered too seldom for the cache to pay.
    recent: Vec<[(u32, u32); WAYS]>,
    remember: bool,
    /// Children of the nodes with more than [`MANY`].
    many: HashMap<(u64, u32), u32, BuildHasherDefault<KeyHasher>>,
}

impl Tree {
    /// Empties the tree and turns on the cache of recent children.
    pub fn clear_to_remember(&mut self) {
        self.nodes.clear();
        self.links.clear();
        self.recent.clear();
        self.many.clear();
        self.remember = true;
    }

    pub fn add_root(&mut self) -> u32 {
        self.push(Node { parent: NO_PARENT, func: 0, calls: 0, insns: 0, ns: 0, kind: FrameKind::Root })
    }

    fn push(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        self.links.push((NO_PARENT, NO_PARENT, 0));
        if self.remember {
            self.recent.push([(NO_PARENT, 0); WAYS]);
        }
        (self.nodes.len() - 1) as u32
    }

    /// Returns the child of `parent` for `func`, and creates it if needed.
    #[inline]
    pub fn child(&mut self, parent: u32, func: u32, kind: FrameKind) -> u32 {
        let key = func ^ (kind as u32) << 28;
        match self.recent.get(parent as usize) {
            Some(recent) if recent[key as usize % WAYS].0 == key => recent[key as usize % WAYS].1,
            _ => self.child_slow(parent, func, kind).0,
        }
    }

    /// Like [`Tree::child`], without the cache. Also returns whether the child is new.
    #[inline(never)]
    pub fn child_slow(&mut self, parent: u32, func: u32, kind: FrameKind) -> (u32, bool) {
        let (index, made) = match self.find(parent, func, kind) {
            Some(index) => (index, false),
            None => (self.add_child(parent, func, kind), true),
        };
        if let Some(recent) = self.recent.get_mut(parent as usize) {
            let key = func ^ (kind as u32) << 28;
            recent[key as usize % WAYS] = (key, index);
        }
        (index, made)
    }

    fn find(&self, parent: u32, func: u32, kind: FrameKind) -> Option<u32> {
        let (mut child, _, count) = self.links[parent as usize];
        if count > MANY {
            return self.many.get(&many_key(parent, func, kind)).copied();
        }
        while let Some(node) = self.nodes.get(child as usize) {
            if node.func == func && node.kind == kind {
                return Some(child);
            }
            child = self.links[child as usize].1;
        }
        None
    }

    /// Adds a child for `func` to a node that has none for it.
    pub fn add_child(&mut self, parent: u32, func: u32, kind: FrameKind) -> u32 {
        let index = self.push(Node { parent, func, calls: 0, insns: 0, ns: 0, kind });
        let (first, _, count) = &mut self.links[parent as usize];
        let next = std::mem::replace(first, index);
        *count += 1;
        let count = *count;
        self.links[index as usize].1 = next;
        if count == MANY + 1 {
            let mut child = index;
            while let Some(node) = self.nodes.get(child as usize) {
                self.many.insert(many_key(parent, node.func, node.kind), child);
                child = self.links[child as usize].1;
            }
        } else if count > MANY {
            self.many.insert(many_key(parent, func, kind), index);
        }
        index
    }
}

fn many_key(parent: u32, func: u32, kind: FrameKind) -> (u64, u32) {
    (u64::from(parent) << 8 | kind as u64, func)
}
