// SPDX-License-Identifier: MIT OR Apache-2.0
//! Call frames and calling-context nodes, as both the per-chunk stacks and the stitched ones use them.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use kprism_image::code::KeyHasher;

use kprism_profile::{FrameKind, NO_PARENT, Node};

/// No function seen yet.
pub(crate) const NO_FUNC: u32 = u32::MAX;

/// A frame without a return address of its own: resumed code, or a jump out of a kernel entry.
pub(crate) const NO_RETURN: u64 = 0;

/// A call under way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    /// Where it returns; for kernel entries where the interrupted code resumes.
    pub ret_ip: u64,
    /// Time of entry, ns.
    pub start_ns: u64,
    /// Instructions and on-CPU ns of its task (or chunk) at entry.
    pub start_insns: u64,
    pub start_cpu: u64,
    /// Kernel entries: the address space. Signal handlers: where the interrupted code resumes.
    pub aux: u64,
    pub node: u32,
    pub func: u32,
    /// The node in which it began, before any jump to another function.
    pub home: u32,
    /// System calls: the body's function, once seen.
    pub body: u32,
    pub kind: FrameKind,
    /// Runs kernel code.
    pub kernel: bool,
    /// Functions whose end is a mark and comes with this frame's: its own, and one that left the rest of its work
    /// to this one by a tail call.
    pub ends: [u32; 2],
}

impl Frame {
    /// Pushed by the processor on its way into the kernel: left by `iret` or `sysret`, not by a return.
    pub fn is_entry(&self) -> bool {
        matches!(self.kind, FrameKind::Syscall | FrameKind::Interrupt | FrameKind::Exception)
    }

    /// The end of `func`, which begins here, is this frame's too. Returns one that ends now, as room is for two.
    pub fn add_end(&mut self, func: u32) -> Option<u32> {
        let free = self.ends.iter().position(|&f| f == NO_FUNC);
        let over = std::mem::replace(&mut self.ends[free.unwrap_or(1)], func);
        (over != NO_FUNC).then_some(over)
    }
}

/// Whether an address is the kernel's.
pub(crate) fn is_kernel(ip: u64) -> bool {
    ip >> 63 == 1
}

/// What a search down the stack found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// A frame, by index.
    At(usize),
    /// Nothing above the innermost kernel entry, which returns and jumps do not cross.
    BehindEntry,
    /// Nothing on the whole stack.
    Nothing,
}

/// Searches from the top for the frame that a return or jump refers to.
pub(crate) fn search(stack: &[Frame], matches: impl Fn(&Frame) -> bool) -> Found {
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

/// Children remembered per node.
const WAYS: usize = 4;

/// Children of one node beyond which they are looked up in a map, not one by one.
const MANY: u32 = 16;

/// Calling-context nodes with their children.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub nodes: Vec<Node>,
    /// Per node its first child, its next sibling and how many children it has.
    links: Vec<(u32, u32, u32)>,
    /// Empty where contexts are entered too seldom for it to pay. Per node some children entered lately, by the
    /// low bits of their function: (function and kind, node).
    recent: Vec<[(u32, u32); WAYS]>,
    remember: bool,
    /// Children of the nodes with many.
    many: HashMap<(u64, u32), u32, BuildHasherDefault<KeyHasher>>,
}

impl Tree {
    /// Empties the tree, which remembers the children entered lately from now on.
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

    /// The child of `parent` for `func`, made if need be.
    #[inline]
    pub fn child(&mut self, parent: u32, func: u32, kind: FrameKind) -> u32 {
        let key = func ^ (kind as u32) << 28;
        match self.recent.get(parent as usize) {
            Some(recent) if recent[key as usize % WAYS].0 == key => recent[key as usize % WAYS].1,
            _ => self.child_slow(parent, func, kind).0,
        }
    }

    /// The child of `parent` for `func`, and whether it had to be made.
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

    /// A new child of a node that has none for `func`.
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
