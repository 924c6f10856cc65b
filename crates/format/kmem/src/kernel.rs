// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that a kernel's memory says of the kernel: symbols, types, modules, release.

use std::fmt::Write as _;
use std::sync::Arc;

use kprism_btf::{Btf, Kind};
use memchr::memmem;

use crate::modules::{self, Module};
use crate::paging::{IMAGE, Paged};
use crate::{Physical, Segment, Symbol, kallsyms};

/// Size of the region for the kernel's image (KERNEL_IMAGE_SIZE with KASLR).
const REGION: u64 = 1 << 30;
/// Limit of the image's size. While a kernel boots, half a gigabyte is mapped for a short time.
const LARGEST: u64 = 256 << 20;
/// Limit of the number of pieces of the image: it is mapped in few and large pages.
const PIECES: usize = 1 << 16;
/// Limit of the banner's length in bytes.
const BANNER: usize = 512;
/// Limit of the notes' size in bytes.
const NOTES: u64 = 1 << 16;
/// The beginning of BTF: magic number, version 1, no flags, a header of 24 bytes.
const BTF: [u8; 8] = [0x9f, 0xeb, 1, 0, 24, 0, 0, 0];

/// The reason why no kernel was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Page tables or the image cannot be read.
    #[error("the kernel's image at {IMAGE:#x}: {0}")]
    Image(String),
    /// No symbols.
    #[error(transparent)]
    Symbols(#[from] kallsyms::Missing),
}

/// A kernel as its memory describes it.
#[derive(Debug, Clone, Default)]
pub struct Kernel {
    /// The kernel's own symbols, in the order of their addresses, which are those of this boot.
    pub symbols: Vec<Symbol>,
    /// The kernel's types; none without CONFIG_DEBUG_INFO_BTF.
    pub btf: Option<Arc<Btf>>,
    /// The bytes of `btf`.
    pub btf_bytes: Vec<u8>,
    /// Loaded modules, the newest first.
    pub modules: Vec<Module>,
    /// Why modules, or some of their symbols, are missing.
    pub gaps: Vec<String>,
    /// `Linux version …`.
    pub banner: String,
    /// ELF notes, among them the build ID.
    pub notes: Vec<u8>,
    /// Size of the image in bytes.
    pub size: u64,
}

impl Kernel {
    /// Finds the kernel that uses these page tables.
    ///
    /// # Errors
    /// The image is not mapped yet, or has no symbols. What else is missing is in [`Kernel::gaps`].
    pub fn find<P: Physical>(memory: &mut Paged<P>) -> Result<Self, Error> {
        let segments = memory.contents(IMAGE, IMAGE + REGION, (PIECES, LARGEST)).map_err(Error::Image)?;
        if segments.is_empty() {
            return Err(Error::Image("nothing is mapped there".into()));
        }
        let symbols = kallsyms::find(&segments)?;
        let mut kernel = Self {
            symbols,
            size: segments.iter().map(|segment| segment.bytes.len() as u64).sum(),
            ..Self::default()
        };
        if let Some((bytes, btf)) = segments.iter().find_map(find_btf) {
            (kernel.btf_bytes, kernel.btf) = (bytes.to_vec(), Some(Arc::new(btf)));
        }
        let get = |address, length| segments.iter().find_map(|segment| segment.get(address, length));
        if let Some(banner) = kernel.address("linux_banner") {
            let longest = (1..=BANNER).rev().find_map(|length| get(banner, length)).unwrap_or_default();
            let text = longest.split(|byte| *byte == 0).next().unwrap_or_default();
            kernel.banner = String::from_utf8_lossy(text).trim_end().to_owned();
        }
        if let Some((start, end)) = kernel.address("__start_notes").zip(kernel.address("__stop_notes")) {
            let size = end.saturating_sub(start).min(NOTES);
            kernel.notes = get(start, size as usize).unwrap_or_default().to_vec();
        }
        match modules::read(&kernel, memory) {
            Ok((modules, gaps)) => (kernel.modules, kernel.gaps) = (modules, gaps),
            Err(why) => kernel.gaps.push(format!("its modules are not known: {why}")),
        }
        Ok(kernel)
    }

    /// Address of the first symbol with this name.
    pub fn address(&self, name: &str) -> Option<u64> {
        self.symbols.iter().find(|symbol| symbol.name == name).map(|symbol| symbol.address)
    }

    /// Name of a symbol at exactly this address; if there are several, of the last.
    pub fn name_at(&self, address: u64) -> Option<&str> {
        let after = self.symbols.partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols[..after].last()?;
        (symbol.address == address).then_some(symbol.name.as_str())
    }

    /// `uname -r`, from the banner.
    pub fn release(&self) -> Option<&str> {
        self.banner.strip_prefix("Linux version ")?.split(' ').next()
    }

    /// The symbols in the form of `/proc/kallsyms`.
    pub fn kallsyms(&self) -> String {
        let mut text = String::new();
        for symbol in &self.symbols {
            line(&mut text, symbol, "");
        }
        for module in &self.modules {
            for symbol in &module.symbols {
                line(&mut text, symbol, &module.name);
            }
        }
        text
    }

    /// The modules in the form of `/proc/modules`. References are not counted.
    pub fn modules(&self) -> String {
        let mut text = String::new();
        for module in &self.modules {
            writeln!(text, "{} {} 0 - Live {:#018x}", module.name, module.size, module.base).ok();
        }
        text
    }
}

fn line(text: &mut String, symbol: &Symbol, module: &str) {
    // A name with white space would be read as another field. There is none in any kernel.
    if symbol.name.is_empty() || symbol.name.contains(|c: char| c.is_whitespace()) {
        return;
    }
    let kind = if symbol.kind.is_ascii_alphabetic() { char::from(symbol.kind) } else { '?' };
    write!(text, "{:016x} {kind} {}", symbol.address, symbol.name).ok();
    if !module.is_empty() {
        write!(text, "\t[{module}]").ok();
    }
    text.push('\n');
}

/// The kernel's types, if they are in this segment.
fn find_btf(segment: &Segment) -> Option<(&[u8], Btf)> {
    memmem::find_iter(&segment.bytes, &BTF).find_map(|at| {
        let rest = &segment.bytes[at..];
        let field = |place: usize| Some(u32::from_le_bytes(*rest.get(place..)?.first_chunk::<4>()?) as usize);
        let (types, strings, length) = (field(12)?, field(16)?, field(20)?);
        (field(8)? == 0 && types == strings).then_some(())?;
        let bytes = rest.get(..strings.checked_add(length)?.checked_add(24)?)?;
        let btf = Btf::parse("the kernel's BTF", bytes.to_vec(), None).ok()?;
        btf.find(Kind::Struct, "task_struct")?;
        Some((bytes, btf))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_have_the_forms_of_proc() {
        let symbol = |address, name: &str| Symbol { address, kind: b't', name: name.into() };
        let kernel = Kernel {
            symbols: vec![symbol(0xffff_ffff_8100_0000, "_text"), symbol(0xffff_ffff_8100_0000, "first")],
            modules: vec![Module {
                name: "mod".into(),
                base: 0xffff_ffff_c000_0000,
                size: 4096,
                symbols: vec![symbol(0xffff_ffff_c000_0010, "f"), symbol(0, "")],
            }],
            banner: "Linux version 6.12.1-x (who@where) #1".into(),
            ..Kernel::default()
        };
        assert_eq!(
            kernel.kallsyms(),
            "ffffffff81000000 t _text\nffffffff81000000 t first\nffffffffc0000010 t f\t[mod]\n"
        );
        assert_eq!(kernel.modules(), "mod 4096 0 - Live 0xffffffffc0000000\n");
        assert_eq!(kernel.release(), Some("6.12.1-x"));
        assert_eq!(kernel.name_at(0xffff_ffff_8100_0000), Some("first"));
        assert_eq!(kernel.name_at(0xffff_ffff_8100_0001), None);
    }
}
