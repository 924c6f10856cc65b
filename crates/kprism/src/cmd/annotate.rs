// SPDX-License-Identifier: MIT OR Apache-2.0
//! `kprism annotate`: a function as it ran.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use kprism_debuginfo::source::Source;
use kprism_flow::annotate::{Counter, Counts};
use kprism_flow::replay::Task;
use kprism_image::glob::glob;
use kprism_image::symbols::{FunctionId, Symbols, under_root};
use kprism_profile::units::{grouped, printable};
use kprism_report::Style;
use kprism_script::Select;
use kprism_script::annotate::Annotation;
use kprism_signals::Second;
use kprism_store::Run;
use serde_json::json;

use super::report::wants_color;
use super::script::SyntaxName;
use crate::exit::{self, Outcome};
use crate::given::Given;
use kprism_session::Progress;
use kprism_session::flow::{self, Loaded, follow};
use kprism_session::flow_cover::installed_vmlinux;

/// Names that are suggested for one that is not there.
const SUGGESTIONS: usize = 5;

/// Options of `kprism annotate`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Function: NAME, NAME@MODULE, or its address (0x…); `*` and `?` allowed in names. Or, for coverage, a
    /// source file: FILE.c, FILE.c:LINE, FILE.c:FROM-TO; of a run with gcov's counters a function, too
    #[arg(value_name = "FUNC")]
    pub func: String,
    /// Run folder
    #[arg(short, long, value_name = "RUN", default_value = kprism_session::DEFAULT_RUN)]
    pub input: PathBuf,
    /// Count only on this CPU (can be repeated)
    #[arg(long = "cpu", value_name = "N")]
    pub cpus: Vec<u16>,
    #[command(flatten)]
    pub tasks: super::report::Select,
    /// How instructions are written
    #[arg(long, value_enum, default_value_t = SyntaxName::Att)]
    pub syntax: SyntaxName,
    /// Of `record tlb`: misses of the TLBs instead of how often instructions ran
    #[arg(long)]
    pub misses: bool,
    /// Print as JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub strict: super::strict::StrictArgs,
    #[command(flatten)]
    pub cover: super::cover_args::CoverageArgs,
    /// A line for each branch and call
    #[arg(long, help_heading = "Coverage")]
    pub branches: bool,
}

/// Whether the command line names a source file, maybe with lines of it, and no function.
fn names_source(what: &str) -> bool {
    let name = what.rsplit_once(':').map_or(what, |(name, _)| name);
    let suffix = Path::new(name).extension().and_then(|suffix| suffix.to_str());
    suffix.is_some_and(|suffix| SOURCES.contains(&suffix))
}

/// Suffixes of source files. Functions have dots in their names, too.
const SOURCES: [&str; 10] = ["c", "h", "S", "s", "cc", "cpp", "cxx", "hpp", "C", "rs"];

/// Options of annotated source files.
const SOURCE: [&str; 15] = [
    "func",
    "input",
    "pids",
    "comms",
    "json",
    "branches",
    "source_dir",
    "source_prefix",
    "build_dir",
    "since_boot",
    "by_flow",
    "merge",
    "vmlinux",
    "module_file",
    "debug_dir",
];

/// Prints it.
pub fn run(
    args: &Args,
    given: &Given,
    color: clap::ColorChoice,
    progress: &Progress,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if kprism_session::cover::is_cover(&args.input)
        || kprism_session::cover::is_alone(&args.input)
        || names_source(&args.func)
    {
        given.only("annotated source", &SOURCE)?;
        args.cover.check(given, &[&args.input], false)?;
        let view = super::cover_annotate::Annotate {
            what: &args.func,
            branches: args.branches,
            json: args.json,
            style: Style { color: wants_color(color) },
            strict: args.strict,
        };
        let who = kprism_session::cover::Part { filter: args.tasks.filter(), call: None };
        return super::cover_annotate::annotate(
            &args.input,
            (&args.cover.options(), &who),
            &view,
            progress,
            out,
        );
    }
    let run = Run::open(&args.input)?;
    if args.misses || kprism_session::tlb::is_alone(&run) {
        given.only("a function's misses", &["func", "input", "syntax", "misses", "json", "debug_dir"])?;
        let style = Style { color: wants_color(color) };
        return super::tlb::annotate(args, &run, style, progress, out);
    }
    given.only(
        "a function's instructions",
        &["func", "input", "cpus", "pids", "comms", "syntax", "json", "vmlinux", "module_file", "debug_dir"],
    )?;
    let loaded = flow::load(&run, progress)?;
    let symbols = &loaded.symbols;
    let chosen = choose(&args.func, symbols)?;
    progress.step("counting");
    kprism_signals::catch(Second::EndsProcess)?;
    let counts = count(args, &loaded, &chosen);
    progress.clear();
    if kprism_signals::end_requested() {
        return Ok(Outcome::Code(exit::INTERRUPTED));
    }
    let mut ran: BTreeMap<u32, u64> = BTreeMap::new();
    for site in &counts.sites {
        *ran.entry(site.func).or_default() += site.count;
    }
    let func = match ran.len() {
        0 => {
            progress.say(&format!("{} did not run in the tasks chosen", args.func));
            return Ok(Outcome::NothingMatched);
        }
        1 => *ran.keys().next().ok_or_else(|| anyhow!("no function"))?,
        _ => return several(args, symbols, &ran, "instructions", out),
    };
    let mut source = match find_source(args, &run, &loaded, func) {
        Ok(source) => source,
        Err(reason) if args.cover.debug.vmlinux.is_some() => bail!("{reason}"),
        Err(reason) => {
            progress.say(&format!("kprism: note: no source lines: {reason}"));
            None
        }
    };
    let annotation = Annotation::new(func, &counts, symbols, source.as_ref(), args.syntax.into());
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &annotation.to_json(symbols))?;
        writeln!(out)?;
    } else {
        let style = Style { color: wants_color(color) };
        write!(out, "{}", annotation.to_text(symbols, source.as_mut(), style))?;
    }
    Ok(Outcome::Done)
}

fn count(args: &Args, loaded: &Loaded, chosen: &[bool]) -> Counts {
    let select = Select {
        cpus: args.cpus.clone(),
        pids: args.tasks.pids.clone(),
        comms: args.tasks.comms.clone(),
        ..Select::default()
    };
    let takes = |cpu: u16, task: &Task| select.takes(cpu, task);
    let lanes = loaded.streams().len();
    let stop = &kprism_signals::end_requested;
    let mut counter = Counter::new(lanes, &loaded.symbols, chosen, &takes, stop);
    follow(loaded, &mut counter);
    counter.finish()
}

/// Marks the functions that the command line names.
pub(super) fn choose(spec: &str, symbols: &Symbols) -> Result<Vec<bool>> {
    let mut chosen = vec![false; symbols.len()];
    let all = || (0..symbols.len() as u32).map(FunctionId);
    if let Some(address) = spec.strip_prefix("0x") {
        let address = u64::from_str_radix(address, 16).map_err(|e| anyhow!("{spec}: {e}"))?;
        if let Some(at) = symbols.locate(0, address, u64::MAX).filter(|_| address >> 63 == 1) {
            chosen[at.func.0 as usize] = true;
        }
        // Programs' functions by their address in the file.
        for id in all().filter(|&id| address >> 63 == 0 && symbols.function(id).start == address) {
            chosen[id.0 as usize] = true;
        }
    } else {
        let (name, module) = spec.rsplit_once('@').map_or((spec, None), |(n, m)| (n, Some(m)));
        // The `@` of a PLT entry belongs to its name.
        let (name, module) = if module == Some("plt") { (spec, None) } else { (name, module) };
        let in_module = |id: FunctionId| {
            let own = symbols.function(id).module.as_str();
            let bare = own.trim_matches(['[', ']']);
            let file = bare.rsplit('/').next();
            module.is_none_or(|wanted| [Some(own), Some(bare), file].contains(&Some(wanted)))
        };
        for id in all() {
            chosen[id.0 as usize] = glob(name, &symbols.function(id).name) && in_module(id);
        }
        // A function has one name here and may have several in the symbol table: `write` is `__write`.
        if !chosen.contains(&true) {
            for (_, id) in symbols.aliases().filter(|(alias, id)| glob(name, alias) && in_module(*id)) {
                chosen[id.0 as usize] = true;
            }
        }
    }
    if chosen.contains(&true) {
        return Ok(chosen);
    }
    let bare = spec.trim_start_matches('_');
    let mut near: Vec<&str> = all()
        .map(|id| symbols.function(id).name.as_str())
        .filter(|n| n.contains(bare) && !n.starts_with("__pfx_"))
        .collect();
    near.sort_unstable_by_key(|n| (n.len(), *n));
    near.dedup();
    near.truncate(SUGGESTIONS);
    let hint = if near.is_empty() {
        "kprism report functions lists those that ran".to_owned()
    } else {
        format!("there are {}", near.join(", "))
    };
    bail!("{spec}: no such function; {hint}")
}

/// Lists the functions that the name could mean, with how many `what` each has.
pub(super) fn several(
    args: &Args,
    symbols: &Symbols,
    ran: &BTreeMap<u32, u64>,
    what: &str,
    out: &mut dyn Write,
) -> Result<Outcome> {
    if args.json {
        let rows: Vec<_> = ran
            .iter()
            .map(|(&id, insns)| {
                let f = symbols.function(FunctionId(id));
                json!({"function": f.name, "module": f.module, "start": format!("{:#x}", f.start), what: insns})
            })
            .collect();
        serde_json::to_writer_pretty(&mut *out, &json!({ "several": rows }))?;
        writeln!(out)?;
        return Ok(Outcome::NothingMatched);
    }
    writeln!(out, "{} is several functions; choose one by its address or as NAME@MODULE:", args.func)?;
    let mut rows: Vec<_> = ran.iter().collect();
    rows.sort_by_key(|&(id, insns)| (std::cmp::Reverse(*insns), *id));
    for (&id, &insns) in rows {
        let f = symbols.function(FunctionId(id));
        let (name, module) = (printable(&f.name), printable(&f.module));
        writeln!(
            out,
            "{:>15} {}  {:#018x}  {name} {module}",
            grouped(insns),
            what.replace("instructions", "insns"),
            f.start
        )?;
    }
    Ok(Outcome::NothingMatched)
}

/// Debug information for the function, if there is some.
fn find_source(args: &Args, run: &Run, loaded: &Loaded, func: u32) -> Result<Option<Source>, String> {
    let symbols = &loaded.symbols;
    let function = symbols.function(FunctionId(func));
    let debug = args.cover.debug.files().folders();
    if !function.kernel {
        let Some(file) = under_root(&run.root(), &function.module) else { return Ok(None) };
        return Source::of_file(&file, &debug);
    }
    if function.module != "[kernel]" {
        return Ok(None);
    }
    let Some(vmlinux) = args.cover.debug.vmlinux.clone().or_else(|| installed_vmlinux(loaded, &debug)) else {
        return Ok(None);
    };
    // The kernel's own text begins with its lowest function.
    let start = (0..symbols.len() as u32)
        .map(|id| symbols.function(FunctionId(id)))
        .filter(|f| f.module == "[kernel]" && f.start >= 0xffff_ffff_8000_0000)
        .map(|f| f.start)
        .min()
        .unwrap_or(0);
    Source::of_kernel(&vmlinux, start, &function.name, function.start).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of several names at one address one is shown, and all are found.
    #[test]
    fn functions_are_found_by_their_other_names() {
        let kallsyms =
            b"ffffffff81000000 T _text\nffffffff81000010 T ksys_write\nffffffff81000010 t alias_of_it\n\
            ffffffff81000100 T next_one\nffffffff81000200 T _etext\n";
        let symbols = Symbols::load(kallsyms, &[], None).unwrap();
        let found = |name: &str| {
            let chosen = choose(name, &symbols).unwrap();
            let all = (0..symbols.len() as u32).filter(|&id| chosen[id as usize]);
            all.map(|id| symbols.function(FunctionId(id)).start).collect::<Vec<_>>()
        };
        assert_eq!(found("alias_of_it"), [0xffff_ffff_8100_0010]);
        assert_eq!(found("ksys_write"), found("alias_of_it"));
        assert_eq!(found("next_one"), [0xffff_ffff_8100_0100]);
        assert!(choose("nobody", &symbols).is_err());
    }
}
