// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacks that a program left and may come back to: goroutines, coroutines, contexts.
//!
//! In: the flow loads the stack pointer and jumps ([`flag::STACK`](crate::decode::event::flag::STACK)). Out: the stack on which
//! it goes on.
//!
//! Nothing in a trace says which stack it is. A stack is left in a call, and goes on where that call returns. So the
//! stack is one that expects a return to the address; of several, the one that was left first, because schedulers keep
//! queues. If that was wrong, a later return goes to an address that this stack does not expect and another one does. Then
//! the other one goes on, and the first is left as it was. Each choice is counted ([`Parked::unsure`]).
//!
//! `longjmp` goes on in the middle of the function that called `setjmp`, where no call returns. There it is a stack on which
//! that function is open ([`Parked::take_inside`]).
//!
//! Stacks with the same open calls are interchangeable: a process that ends a million goroutines leaves one stack a million
//! times. The times of [`SAME`] of them are kept.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::Hash;

use crate::stack::frames::Frame;

/// Number of stacks with the same open calls whose own times are kept. Further ones take those of the last of them.
const SAME: usize = 64;

/// A stack that was left.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    /// The task that left it, and its counters then.
    pub task: usize,
    pub insns: u64,
    pub cpu: u64,
    pub frames: Vec<Frame>,
    /// The address at which it goes on, if no call tells it.
    pub at: Option<u64>,
}

/// A stack with which the flow goes on.
#[derive(Debug)]
pub(crate) struct Taken {
    pub stack: Stack,
    /// Number of its outermost calls that go on. The others end there.
    pub keep: usize,
    /// Stacks with other open calls might go on there too.
    pub others: bool,
    /// Stacks with the same open calls might: only their times differ.
    pub alike: bool,
}

/// Identity of interchangeable stacks of a process: where they go on, and the open calls.
type Shape = (Option<u64>, Vec<(u32, u64)>);

#[derive(Debug)]
struct Alike {
    shape: Shape,
    stacks: VecDeque<Stack>,
    /// Number of stacks that were left, at least that of `stacks`.
    count: u64,
}

/// The stacks of one process.
#[derive(Debug, Default)]
struct Process {
    /// By the time at which the first of them was left.
    alike: BTreeMap<u64, Alike>,
    by_shape: HashMap<Shape, u64>,
    /// Numbers of the stacks that go on at an address.
    by_ip: HashMap<u64, BTreeSet<u64>>,
    /// Numbers of the stacks on which a function is open.
    by_func: HashMap<u32, BTreeSet<u64>>,
    next: u64,
}

/// The stacks of all processes.
#[derive(Debug, Default)]
pub(crate) struct Parked {
    processes: HashMap<u32, Process>,
    /// A choice between several stacks, by task: the stack as it was.
    guesses: HashMap<usize, Stack>,
    /// Stacks that went on with the times of another one: of more than [`SAME`].
    pub borrowed: u64,
    /// Choices between several stacks that go on at the same address.
    pub unsure: u64,
}

impl Parked {
    /// Returns true if no process left a stack.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }

    /// Keeps a stack of process `tgid`.
    pub fn leave(&mut self, tgid: u32, stack: Stack) {
        if !stack.frames.is_empty() {
            self.processes.entry(tgid).or_default().leave(stack);
        }
    }

    /// The stack of process `tgid` that goes on at `ip`.
    pub fn take(&mut self, tgid: u32, ip: u64) -> Option<Taken> {
        let keep = |stack: &Stack| match stack.at {
            Some(at) if at == ip => Some(stack.frames.len()),
            _ => stack.frames.iter().rposition(|f| f.ret_ip == ip),
        };
        self.take_by(tgid, |process| process.by_ip.get(&ip), keep)
    }

    /// The stack of process `tgid` that goes on in the middle of `func`, which is then its innermost call.
    pub fn take_inside(&mut self, tgid: u32, func: u32) -> Option<Taken> {
        let keep = |stack: &Stack| Some(stack.frames.iter().rposition(|f| f.func == func)? + 1);
        self.take_by(tgid, |process| process.by_func.get(&func), keep)
    }

    /// Returns true if a stack of process `tgid` may go on in the middle of `func`.
    pub fn may_go_on_inside(&self, tgid: u32, func: u32) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.by_func.contains_key(&func))
    }

    /// The first stack of those that `numbers` finds, of which `keep` calls go on.
    fn take_by(
        &mut self,
        tgid: u32,
        numbers: impl Fn(&Process) -> Option<&BTreeSet<u64>>,
        keep: impl Fn(&Stack) -> Option<usize>,
    ) -> Option<Taken> {
        let process = self.processes.get_mut(&tgid)?;
        let numbers = numbers(process)?;
        let (&number, others) = (numbers.first()?, numbers.len() > 1);
        let taken = process.take(number, &mut self.borrowed).and_then(|(stack, alike)| {
            let keep = keep(&stack)?;
            Some(Taken { stack, keep, others, alike })
        });
        if process.alike.is_empty() {
            self.processes.remove(&tgid);
        }
        taken
    }

    /// The process executes a new program, or is a new one.
    pub fn forget(&mut self, tgid: u32) {
        self.processes.remove(&tgid);
    }

    /// Remembers the stack that a task goes on with, in case it is the wrong one.
    pub fn guess(&mut self, task: usize, stack: Stack) {
        self.guesses.insert(task, stack);
    }

    /// The stack that the task went on with, as it was then, if there was a choice.
    pub fn guessed(&mut self, task: usize) -> Option<Stack> {
        if self.guesses.is_empty() { None } else { self.guesses.remove(&task) }
    }
}

impl Process {
    fn leave(&mut self, stack: Stack) {
        let calls = stack.frames.iter().map(|f| (f.func, f.ret_ip)).collect();
        let shape = (stack.at, calls);
        if let Some(alike) = self.by_shape.get(&shape).and_then(|number| self.alike.get_mut(number)) {
            alike.count += 1;
            if alike.stacks.len() < SAME {
                alike.stacks.push_back(stack);
            }
            return;
        }
        let number = self.next;
        self.next += 1;
        for ip in places(&shape) {
            self.by_ip.entry(ip).or_default().insert(number);
        }
        for func in functions(&shape) {
            self.by_func.entry(func).or_default().insert(number);
        }
        self.by_shape.insert(shape.clone(), number);
        self.alike.insert(number, Alike { shape, stacks: [stack].into(), count: 1 });
    }

    /// Takes a stack with this number. Also returns whether there are more of them.
    fn take(&mut self, number: u64, borrowed: &mut u64) -> Option<(Stack, bool)> {
        let alike = self.alike.get_mut(&number)?;
        let more = alike.count > 1;
        let stack = match alike.stacks.len() {
            // There were more than are kept.
            1 if alike.count > 1 => {
                *borrowed += 1;
                alike.stacks.front().cloned()?
            }
            _ => alike.stacks.pop_front()?,
        };
        alike.count -= 1;
        if alike.count == 0
            && let Some(Alike { shape, .. }) = self.alike.remove(&number)
        {
            places(&shape).into_iter().for_each(|ip| strike(&mut self.by_ip, ip, number));
            functions(&shape).into_iter().for_each(|func| strike(&mut self.by_func, func, number));
            self.by_shape.remove(&shape);
        }
        Some((stack, more))
    }
}

/// Removes a number from those of `key`.
fn strike<K: Hash + Eq>(index: &mut HashMap<K, BTreeSet<u64>>, key: K, number: u64) {
    if let Entry::Occupied(mut numbers) = index.entry(key) {
        numbers.get_mut().remove(&number);
        if numbers.get().is_empty() {
            numbers.remove();
        }
    }
}

/// The functions that are open on a stack, each once.
fn functions((_, calls): &Shape) -> BTreeSet<u32> {
    calls.iter().map(|call| call.0).collect()
}

/// The addresses at which a stack may go on: where its calls return. An address is listed once.
fn places((at, calls): &Shape) -> Vec<u64> {
    let mut places: Vec<u64> = calls.iter().map(|call| call.1).filter(|&ip| ip != 0).chain(*at).collect();
    places.sort_unstable();
    places.dedup();
    places
}

#[cfg(test)]
mod tests {
    use kprism_profile::FrameKind;

    use super::*;
    use crate::stack::frames::Now;

    fn stack(task: usize, calls: &[(u32, u64)]) -> Stack {
        let now = Now { ns: 0, insns: 0, cpu: 0 };
        let frame = |&(func, ret_ip): &(u32, u64)| Frame::begin(0, func, FrameKind::Call, ret_ip, false, now);
        Stack { task, insns: 0, cpu: 0, frames: calls.iter().map(frame).collect(), at: None }
    }

    fn open(taken: &Taken) -> Vec<u32> {
        taken.stack.frames[..taken.keep].iter().map(|f| f.func).collect()
    }

    #[test]
    fn the_first_that_was_left_goes_on() {
        let mut parked = Parked::default();
        parked.leave(7, stack(0, &[(1, 0), (2, 10), (3, 20)]));
        parked.leave(7, stack(1, &[(4, 0), (3, 20), (5, 30)]));
        assert!(parked.take(8, 20).is_none(), "another process's");
        let first = parked.take(7, 20).unwrap();
        assert_eq!((open(&first), first.others, first.alike), (vec![1, 2], true, false));
        let second = parked.take(7, 20).unwrap();
        assert_eq!((open(&second), second.stack.task, second.others), (vec![4], 1, false));
        assert!(parked.is_empty());
    }

    /// A jump into the middle of a function leaves what it had called.
    #[test]
    fn a_stack_goes_on_inside_a_function_that_is_open_on_it() {
        let mut parked = Parked::default();
        parked.leave(7, stack(0, &[(1, 0), (2, 10), (3, 20)]));
        parked.leave(7, stack(1, &[(4, 0), (3, 30)]));
        assert!(!parked.may_go_on_inside(7, 5) && parked.take_inside(7, 5).is_none());
        assert!(parked.may_go_on_inside(7, 2));
        let taken = parked.take_inside(7, 2).unwrap();
        assert_eq!((open(&taken), taken.others), (vec![1, 2], false));
        assert!(!parked.may_go_on_inside(7, 1), "the whole stack was taken");
        assert_eq!(open(&parked.take_inside(7, 3).unwrap()), [4, 3]);
        assert!(parked.is_empty());
    }

    /// More equal stacks than are kept: as many go on as were left, the memory does not grow, and what is guessed is counted.
    #[test]
    fn as_many_go_on_as_were_left() {
        let mut parked = Parked::default();
        let many = 3 * SAME;
        (0..many).for_each(|task| parked.leave(7, stack(task, &[(1, 0), (2, 10)])));
        let alike = &parked.processes[&7].alike;
        assert_eq!((alike.len(), alike[&0].stacks.len()), (1, SAME));
        let tasks: Vec<usize> = (0..many).map(|_| parked.take(7, 10).unwrap().stack.task).collect();
        assert_eq!(tasks[..SAME], (0..SAME).collect::<Vec<_>>());
        assert!(parked.take(7, 10).is_none() && parked.is_empty());
        assert_eq!(parked.borrowed, 2 * SAME as u64);
    }
}
