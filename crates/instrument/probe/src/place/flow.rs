// SPDX-License-Identifier: MIT OR Apache-2.0
//! Decides whether code of a function is reached in one way only.
//!
//! A probe of a static tracepoint is not at the tracepoint's own instruction, which the kernel changes. It is at the
//! next one, or in the out-of-line code that runs while the tracepoint is enabled. Compilers sometimes let other code run
//! into these, too; then hits of the probe are no hits of the tracepoint. In: the function's parts, and its jump labels.
//! Out: whether an instruction is reached from one jump label only.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap, HashSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Mnemonic};
use kprism_expr::dwarf::{Image, Site, jump_labels};

/// Longest part of a function that is examined, bytes.
pub const LONGEST: u64 = 1 << 20;

/// The ways on from an instruction.
#[derive(Debug, Clone, Copy)]
struct Step {
    next: Option<u64>,
    jump: Option<u64>,
    /// It fills a gap before a jump's target.
    filler: bool,
}

/// The name of a function, of its name or that of a part which the compiler split off.
pub fn whole(name: &str) -> &str {
    name.find(".cold").map_or(name, |at| &name[..at])
}

/// Ways through the functions of a kernel, as its file has them.
pub struct Ways<'i> {
    image: &'i Image,
    tables: OnceCell<Tables>,
}

struct Tables {
    /// Jump labels and their targets.
    labels: HashMap<u64, u64>,
    /// Parts of functions, by the function's name: address, size, and whether the function begins there.
    parts: HashMap<String, Vec<(u64, u64, bool)>>,
}

impl<'i> Ways<'i> {
    /// Nothing is read before it is needed.
    pub fn new(image: &'i Image) -> Self {
        Self { image, tables: OnceCell::new() }
    }

    /// Returns true if an instruction is reached by way of a tracepoint's no-op only: the next one, or the target of the
    /// jump that replaces it.
    pub fn lead_only_from(&self, site: &Site, to: u64) -> bool {
        let image = self.image;
        let tables = self.tables.get_or_init(|| {
            let mut parts: HashMap<String, Vec<_>> = HashMap::new();
            for symbol in image.symbols(|_| true).into_iter().filter(|symbol| symbol.code) {
                let name = whole(&symbol.name);
                let begins = name == symbol.name;
                let part = (symbol.address, symbol.size, begins);
                parts.entry(name.to_owned()).or_default().push(part);
            }
            Tables { labels: jump_labels(image).map(|label| (label.nop, label.target)).collect(), parts }
        });
        let Some(symbol) = image.around(site.nop) else { return false };
        let own = tables.parts.get(whole(&symbol.name)).map_or(&[][..], |own| own);
        let entries: Vec<u64> = own.iter().filter(|(_, _, begins)| *begins).map(|(at, ..)| *at).collect();
        let code = own.iter().filter(|(_, size, _)| *size <= LONGEST).filter_map(|(at, size, _)| {
            Some((*at, image.bytes_at(*at, usize::try_from(*size).ok()?)?.to_vec()))
        });
        let code: Vec<(u64, Vec<u8>)> = code.collect();
        is_only_from(&code, &entries, &tables.labels, site.nop, to)
    }
}

/// Returns true if, while the jump label at `from` is enabled, `target` is reached from it and otherwise not. `parts` are the function's
/// code: address and bytes; `entries` are where it begins; `labels` are its jump labels, with their targets.
pub fn is_only_from(
    parts: &[(u64, Vec<u8>)],
    entries: &[u64],
    labels: &HashMap<u64, u64>,
    from: u64,
    target: u64,
) -> bool {
    let mut steps = BTreeMap::new();
    for (start, code) in parts {
        for insn in &mut Decoder::with_ip(64, code, *start, DecoderOptions::NONE) {
            let after = Some(insn.next_ip());
            let (next, jump) = match insn.flow_control() {
                // The target of an enabled label's jump is the label's.
                _ if labels.contains_key(&insn.ip()) => (after, labels.get(&insn.ip()).copied()),
                FlowControl::ConditionalBranch => (after, Some(insn.near_branch_target())),
                FlowControl::UnconditionalBranch => (None, Some(insn.near_branch_target())),
                FlowControl::Return | FlowControl::IndirectBranch | FlowControl::Interrupt => (None, None),
                // Calls return. After `ud2` the kernel goes on, if it only warns.
                _ => (after, None),
            };
            let filler = matches!(insn.mnemonic(), Mnemonic::Nop | Mnemonic::Int3) || insn.is_invalid();
            let next = if insn.is_invalid() { None } else { next };
            steps.insert(insn.ip(), Step { next, jump, filler });
        }
    }
    let reached = |entries: &mut Vec<u64>, stop: Option<u64>| {
        let mut seen = HashSet::new();
        while let Some(at) = entries.pop() {
            let Some(step) = steps.get(&at).filter(|_| seen.insert(at) && Some(at) != stop) else { continue };
            entries.extend(step.next);
            entries.extend(step.jump);
        }
        seen
    };
    if !steps.contains_key(&target) || !steps.contains_key(&from) {
        return false;
    }
    let seen = reached(&mut entries.to_vec(), None);
    // What no jump reaches is reached in ways that are not seen, as after a fault.
    let unseen = steps.iter().filter(|(at, step)| !seen.contains(at) && !step.filler).map(|(at, _)| *at);
    // A loop may lead back to it.
    let behind = steps.get(&target).into_iter().flat_map(|step| step.next.into_iter().chain(step.jump));
    let mut starts: Vec<u64> = entries.iter().copied().chain(unseen).chain(behind).collect();
    seen.contains(&from) && !reached(&mut starts, Some(from)).contains(&target)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// push rbp; xchg ax,ax (the label, 0x1001); pop rbp; ret; int3; call (0x1006); jmp 0x1003
    const CODE: [u8; 13] = [0x55, 0x66, 0x90, 0x5d, 0xc3, 0xcc, 0xe8, 0, 0, 0, 0, 0xeb, 0xf6];

    fn is_alone(code: &[u8]) -> bool {
        is_only_from(
            &[(0x1000, code.to_vec())],
            &[0x1000],
            &HashMap::from([(0x1001, 0x1006)]),
            0x1001,
            0x1006,
        )
    }

    #[test]
    fn reached_from_the_label_only() {
        assert!(is_alone(&CODE));
        // Enabled: the jump in place of the no-op.
        let mut enabled = CODE;
        enabled[1..3].copy_from_slice(&[0xeb, 3]);
        assert!(is_alone(&enabled));
    }

    #[test]
    fn other_ways() {
        // je to the target; the label; ret; int3; int3; the target: call; ret
        let around = [0x74, 5, 0x66, 0x90, 0xc3, 0xcc, 0xcc, 0xe8, 0, 0, 0, 0, 0xc3];
        let labels = HashMap::from([(0x1002, 0x1007)]);
        assert!(!is_only_from(&[(0x1000, around.to_vec())], &[0x1000], &labels, 0x1002, 0x1007));
        // The label; ret; int3; the target: push; jne to itself; ret
        let again = [0x66, 0x90, 0xc3, 0xcc, 0x50, 0x75, 0xfd, 0xc3];
        let labels = HashMap::from([(0x1000, 0x1004)]);
        assert!(!is_only_from(&[(0x1000, again.to_vec())], &[0x1000], &labels, 0x1000, 0x1004));
        // A jump to it, from code that nothing reaches.
        let mut unseen = CODE.to_vec();
        unseen.extend([0x50, 0xeb, 0xf6]);
        assert!(!is_alone(&unseen));
        // No instruction begins there.
        assert!(!is_only_from(&[(0x1000, CODE.to_vec())], &[0x1000], &HashMap::new(), 0x1001, 0x1007));
        assert!(!is_only_from(&[], &[0x1000], &HashMap::new(), 0x1001, 0x1006));
    }
}
