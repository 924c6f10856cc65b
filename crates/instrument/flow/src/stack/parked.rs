// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacks that a program left and may come back to: goroutines, coroutines, contexts.
//!
//! In: the flow loads the stack pointer and jumps ([`flag::STACK`](crate::decode::event::flag::STACK)). Out: the stack on which
//! it goes on.
//!
//! Nothing in a trace says which stack it is. A stack is left in a call, and goes on where that call returns. So the
//! stack is one that expects a return to the address; of several, the one that was left first, because schedulers keep
//! queues. If that was wrong, a later return goes to an address that this stack does not expect and another one does. Then
//! the other one goes on, and the first is left as it was.
//!
//! Stacks with the same open calls are interchangeable: a process that ends a million goroutines leaves one stack a million
//! times. The times of [`SAME`] of them are kept.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

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

    /// The stack of process `tgid` that goes on at `ip`: its frames after that return. Also returns whether another one might
    /// go on there.
    pub fn take(&mut self, tgid: u32, ip: u64) -> Option<(Stack, bool)> {
        let process = self.processes.get_mut(&tgid)?;
        let taken = process.take(ip, &mut self.borrowed);
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
        self.by_shape.insert(shape.clone(), number);
        self.alike.insert(number, Alike { shape, stacks: [stack].into(), count: 1 });
    }

    fn take(&mut self, ip: u64, borrowed: &mut u64) -> Option<(Stack, bool)> {
        let numbers = self.by_ip.get(&ip)?;
        let (&number, others) = (numbers.first()?, numbers.len() > 1);
        let alike = self.alike.get_mut(&number)?;
        let mut stack = match alike.stacks.len() {
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
            for ip in places(&shape) {
                if let Some(numbers) = self.by_ip.get_mut(&ip) {
                    numbers.remove(&number);
                    if numbers.is_empty() {
                        self.by_ip.remove(&ip);
                    }
                }
            }
            self.by_shape.remove(&shape);
        }
        if stack.at != Some(ip) {
            let index = stack.frames.iter().rposition(|f| f.ret_ip == ip)?;
            stack.frames.truncate(index);
        }
        Some((stack, others))
    }
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

    fn functions(stack: &Stack) -> Vec<u32> {
        stack.frames.iter().map(|f| f.func).collect()
    }

    #[test]
    fn the_first_that_was_left_goes_on() {
        let mut parked = Parked::default();
        parked.leave(7, stack(0, &[(1, 0), (2, 10), (3, 20)]));
        parked.leave(7, stack(1, &[(4, 0), (3, 20), (5, 30)]));
        assert!(parked.take(8, 20).is_none(), "another process's");
        let (first, others) = parked.take(7, 20).unwrap();
        assert_eq!((functions(&first), others), (vec![1, 2], true));
        let (second, others) = parked.take(7, 20).unwrap();
        assert_eq!((functions(&second), second.task, others), (vec![4], 1, false));
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
        let tasks: Vec<usize> = (0..many).map(|_| parked.take(7, 10).unwrap().0.task).collect();
        assert_eq!(tasks[..SAME], (0..SAME).collect::<Vec<_>>());
        assert!(parked.take(7, 10).is_none() && parked.is_empty());
        assert_eq!(parked.borrowed, 2 * SAME as u64);
    }
}
