// SPDX-License-Identifier: MIT OR Apache-2.0
//! Instruction patterns as a user writes them. The input is a pattern's text; the output is a test on code bytes,
//! because patterns are searched for in code that a trace has shown to run.
//!
//! A pattern is one or more instructions in a straight run of code:
//!
//! | text | matches |
//! |---|---|
//! | `cli` | the mnemonic; a size suffix may be left out (`pushf` is also `pushfq`) |
//! | `mov cr3, *` | operands in Intel's order and syntax, `*` and `?` allowed |
//! | `lock cmpxchg`, `rep movsb` | with that prefix |
//! | `class:fpu` | a class: `fpu` (x87, MMX, SSE, AVX), `lock`, `io`, `privileged` |
//! | `pushf; pop *; cli` | these three, next to each other |
//! | `pushf .. cli` | the second later than the first, with anything between |
//!
//! A straight run has no branch whose outcome the trace must tell, so it always runs as a whole.

use iced_x86::{
    CpuidFeature, Decoder, DecoderOptions, Formatter, FormatterOutput, FormatterTextKind, Instruction,
    IntelFormatter, Mnemonic,
};

use super::Mode;

/// Maximum number of instructions in a pattern.
const MAX_STEPS: usize = 32;

/// An error in a pattern's text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// There is no instruction between two separators.
    #[error("an instruction is missing in {0:?}")]
    Empty(String),
    /// There is no mnemonic of this name.
    #[error("no x86 instruction is called {0:?}")]
    Mnemonic(String),
    /// There is no class of this name.
    #[error("no class {0:?}: expected fpu, lock, io or privileged")]
    Class(String),
    /// The pattern has too many instructions.
    #[error("more than {MAX_STEPS} instructions")]
    TooLong,
}

/// A sequence of instructions to search for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    steps: Vec<Step>,
    /// Bit n is set if other instructions may lie between step n and the next.
    gaps: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Class(Class),
    Insn { prefix: Option<Prefix>, mnemonics: Vec<Mnemonic>, operands: Option<Vec<String>> },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Fpu,
    Lock,
    Io,
    Privileged,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Lock,
    Rep,
    Repne,
}

/// Progress of a pattern: bit n is set if its first n + 1 instructions were seen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Seen(u32);

impl Pattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// [`PatternError`] names the word that was not understood.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let (mut steps, mut gaps) = (Vec::new(), 0);
        for run in text.split("..") {
            for word in run.split(';') {
                if steps.len() == MAX_STEPS {
                    return Err(PatternError::TooLong);
                }
                steps.push(step(word.trim()).ok_or_else(|| PatternError::Empty(text.to_owned()))??);
            }
            gaps |= 1u32.checked_shl(steps.len() as u32 - 1).unwrap_or(0);
        }
        // Nothing follows the last step.
        gaps &= !(1u32 << (steps.len() - 1));
        Ok(Self { steps, gaps })
    }

    /// Processes the next instruction of a straight run. Returns true if it completes the pattern.
    pub fn advance(&self, seen: &mut Seen, insn: &Decoded) -> bool {
        let candidates = seen.0 << 1 | 1;
        let mut matched = 0;
        for (n, step) in self.steps.iter().enumerate() {
            if candidates >> n & 1 == 1 && step.matches(insn) {
                matched |= 1 << n;
            }
        }
        let last = 1 << (self.steps.len() - 1);
        *seen = Seen((matched | seen.0 & self.gaps) & !last);
        matched & last != 0
    }
}

fn step(text: &str) -> Option<Result<Step, PatternError>> {
    if text.is_empty() {
        return None;
    }
    if let Some(class) = text.strip_prefix("class:") {
        return Some(match class {
            "fpu" => Ok(Step::Class(Class::Fpu)),
            "lock" => Ok(Step::Class(Class::Lock)),
            "io" => Ok(Step::Class(Class::Io)),
            "privileged" => Ok(Step::Class(Class::Privileged)),
            _ => Err(PatternError::Class(class.to_owned())),
        });
    }
    let (mut word, mut rest) = split_word(text);
    let prefix = match word.to_ascii_lowercase().as_str() {
        "lock" => Some(Prefix::Lock),
        "rep" | "repe" | "repz" => Some(Prefix::Rep),
        "repne" | "repnz" => Some(Prefix::Repne),
        _ => None,
    };
    if prefix.is_some() {
        (word, rest) = split_word(rest);
    }
    let mnemonics = mnemonics(word);
    if mnemonics.is_empty() {
        return Some(Err(PatternError::Mnemonic(word.to_owned())));
    }
    let operands = (!rest.is_empty())
        .then(|| rest.split(',').map(|o| o.split_whitespace().collect::<String>().to_lowercase()).collect());
    Some(Ok(Step::Insn { prefix, mnemonics, operands }))
}

fn split_word(text: &str) -> (&str, &str) {
    let text = text.trim();
    text.split_once(char::is_whitespace).map_or((text, ""), |(word, rest)| (word, rest.trim()))
}

/// All mnemonics that a word stands for: the mnemonic itself and its forms with a size suffix.
fn mnemonics(word: &str) -> Vec<Mnemonic> {
    let word = word.to_ascii_lowercase();
    let sized = ["pushf", "popf", "iret", "sysret", "sysexit", "pusha", "popa"].contains(&word.as_str());
    Mnemonic::values()
        .filter(|m| {
            let name = format!("{m:?}").to_ascii_lowercase();
            name == word || sized && name.strip_prefix(word.as_str()).is_some_and(|s| s == "d" || s == "q")
        })
        .filter(|&m| m != Mnemonic::INVALID)
        .collect()
}

impl Step {
    fn matches(&self, insn: &Decoded) -> bool {
        let i = &insn.insn;
        match self {
            Step::Class(Class::Fpu) => i.cpuid_features().iter().any(|&f| is_fpu(f)),
            Step::Class(Class::Lock) => {
                i.has_lock_prefix() || i.mnemonic() == Mnemonic::Xchg && i.op_count() == 2 && reads_memory(i)
            }
            Step::Class(Class::Io) => {
                use Mnemonic as M;
                matches!(
                    i.mnemonic(),
                    M::In | M::Out | M::Insb | M::Insw | M::Insd | M::Outsb | M::Outsw | M::Outsd
                )
            }
            Step::Class(Class::Privileged) => i.is_privileged(),
            Step::Insn { prefix, mnemonics, operands } => {
                mnemonics.contains(&i.mnemonic())
                    && match prefix {
                        None => true,
                        Some(Prefix::Lock) => i.has_lock_prefix(),
                        Some(Prefix::Rep) => i.has_rep_prefix(),
                        Some(Prefix::Repne) => i.has_repne_prefix(),
                    }
                    && operands.as_ref().is_none_or(|wanted| insn.has_operands(wanted))
            }
        }
    }
}

fn reads_memory(i: &Instruction) -> bool {
    (0..i.op_count()).any(|op| i.op_kind(op) == iced_x86::OpKind::Memory)
}

fn is_fpu(feature: CpuidFeature) -> bool {
    let name = format!("{feature:?}");
    ["FPU", "MMX", "SSE", "SSSE", "AVX", "FMA", "F16C", "3DNOW"]
        .iter()
        .any(|p| name.trim_start_matches("D3").starts_with(p))
}

/// An instruction decoded for matching against patterns.
pub struct Decoded {
    insn: Instruction,
}

impl Decoded {
    /// Decodes the instruction at the start of `bytes`, which lie at address `ip`.
    pub fn new(bytes: &[u8], ip: u64, mode: Mode) -> Self {
        let bytes = &bytes[..bytes.len().min(15)];
        Self { insn: Decoder::with_ip(mode.bits(), bytes, ip, DecoderOptions::NONE).decode() }
    }

    fn has_operands(&self, wanted: &[String]) -> bool {
        let mut formatter = IntelFormatter::new();
        formatter.options_mut().set_space_after_operand_separator(false);
        formatter.options_mut().set_rip_relative_addresses(true);
        let count = formatter.operand_count(&self.insn) as usize;
        count >= wanted.len()
            && wanted.iter().enumerate().all(|(n, pattern)| {
                let mut text = Text(String::new());
                // A missing operand has no text, so only `*` matches it.
                let _ = formatter.format_operand(&self.insn, &mut text, n as u32);
                crate::glob::glob(pattern, &text.0.to_lowercase())
            })
    }
}

struct Text(String);

impl FormatterOutput for Text {
    fn write(&mut self, text: &str, _kind: FormatterTextKind) {
        self.0.extend(text.chars().filter(|c| !c.is_whitespace()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of the instructions at which the pattern is complete.
    fn hits(pattern: &str, code: &[&[u8]]) -> Vec<usize> {
        let pattern = Pattern::parse(pattern).unwrap();
        let mut seen = Seen::default();
        let at = |bytes: &&[u8]| Decoded::new(bytes, 0xffff_ffff_8100_0000, Mode::Bits64);
        let advance = |(n, bytes)| pattern.advance(&mut seen, &at(bytes)).then_some(n);
        code.iter().enumerate().filter_map(advance).collect()
    }

    const NOP: &[u8] = &[0x90];
    const CLI: &[u8] = &[0xfa];
    const PUSHF: &[u8] = &[0x9c];
    const POP_RAX: &[u8] = &[0x58];
    const MOV_CR3_RAX: &[u8] = &[0x0f, 0x22, 0xd8];
    const LOCK_XADD: &[u8] = &[0xf0, 0x0f, 0xc1, 0x07]; // lock xadd [rdi], eax
    const ADDSD: &[u8] = &[0xf2, 0x0f, 0x58, 0xc1];
    const PAUSE: &[u8] = &[0xf3, 0x90];
    const REP_MOVSB: &[u8] = &[0xf3, 0xa4];

    #[test]
    fn single_instructions() {
        let code = [NOP, CLI, PUSHF, MOV_CR3_RAX, LOCK_XADD, ADDSD, PAUSE, REP_MOVSB];
        assert_eq!(hits("cli", &code), [1]);
        assert_eq!(hits("PUSHF", &code), [2]);
        assert_eq!(hits("mov cr3, *", &code), [3]);
        assert_eq!(hits("mov cr3, rbx", &code), [0usize; 0]);
        assert_eq!(hits("mov cr?, r*", &code), [3]);
        assert_eq!(hits("lock xadd", &code), [4]);
        assert_eq!(hits("xadd *[rdi], eax", &code), [4]);
        assert_eq!(hits("class:lock", &code), [4]);
        assert_eq!(hits("class:fpu", &code), [5]);
        assert_eq!(hits("class:privileged", &code), [1, 3]);
        assert_eq!(hits("pause", &code), [6]);
        assert_eq!(hits("rep movsb", &code), [7]);
        assert_eq!(hits("repne movsb", &code), [0usize; 0]);
    }

    #[test]
    fn sequences() {
        let code = [PUSHF, PUSHF, POP_RAX, CLI, NOP, PUSHF, NOP, NOP, CLI, CLI];
        assert_eq!(hits("pushf; pop rax; cli", &code), [3]);
        assert_eq!(hits("pushf; cli", &code), [0usize; 0]);
        assert_eq!(hits("pushf .. cli", &code), [3, 8, 9]);
        assert_eq!(hits("nop; nop; cli", &code), [8]);
        assert_eq!(hits("pushf; pop * .. nop; cli", &code), [8]);
    }

    #[test]
    fn what_is_no_pattern() {
        assert_eq!(Pattern::parse("frobnicate"), Err(PatternError::Mnemonic("frobnicate".into())));
        assert_eq!(Pattern::parse("cli;"), Err(PatternError::Empty("cli;".into())));
        assert_eq!(Pattern::parse(""), Err(PatternError::Empty("".into())));
        assert_eq!(Pattern::parse("class:x"), Err(PatternError::Class("x".into())));
        assert_eq!(Pattern::parse(&"nop;".repeat(40)), Err(PatternError::TooLong));
    }
}
