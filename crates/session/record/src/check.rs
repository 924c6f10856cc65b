// SPDX-License-Identifier: MIT OR Apache-2.0
//! Abilities of this machine: for each part that a recording needs, whether it is there, and the remedy if not.
//!
//! [`machine`] also puts back what a recording that was killed left in tracefs.

use std::path::Path;
use std::process::Command;

use kprism_profile::units::bytes;
use kprism_tracefs::path;
use serde::Serialize;

use crate::check_plugins;
use crate::durations::undone_text;
use crate::flow::line::find_perf;
use crate::flow::pmu::Pmu;
use crate::flow::rights::Rights;

/// The state of a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is there.
    Ok,
    /// It is not there, but only some recorders need it.
    Optional,
    /// It is not there, and `kprism lab run` cannot do without it.
    Missing,
}

/// A part that recordings need.
#[derive(Debug, Serialize)]
pub struct Item {
    /// Its name.
    pub name: &'static str,
    /// Whether it is there.
    pub state: State,
    /// The file, version or reason that was found.
    pub found: String,
    /// The remedy; empty if none is needed.
    pub remedy: String,
}

impl Item {
    fn new(name: &'static str, ok: bool, otherwise: State, found: impl Into<String>, remedy: &str) -> Self {
        let state = if ok { State::Ok } else { otherwise };
        Item { name, state, found: found.into(), remedy: if ok { String::new() } else { remedy.to_owned() } }
    }
}

/// The parts as text: a line or two each, and whether `kprism lab run` can work.
pub fn to_text(items: &[Item]) -> String {
    let mut text = String::new();
    for item in items {
        let mark = match item.state {
            State::Ok => "ok",
            State::Optional => "--",
            State::Missing => "MISSING",
        };
        text.push_str(&format!("{mark:<8}{:<18}{}\n", item.name, item.found));
        if !item.remedy.is_empty() {
            text.push_str(&format!("{:<26}{}\n", "", item.remedy));
        }
    }
    let of_lab = items.iter().any(|item| item.name == "guest agent");
    text.push_str(match items.iter().any(|item| item.state == State::Missing) {
        _ if !of_lab => "",
        true => "\nkprism lab run will not work yet: see MISSING above\n",
        false => "\nkprism lab run can work here\n",
    });
    text
}

/// Looks at what recorders of this machine's own kernel need, without the lab's parts.
pub fn recorders() -> Vec<Item> {
    [cpus(), intel_pt(), perf(), function_tracer(), bpf()].into_iter().chain(killed_recording()).collect()
}

/// Looks at this machine.
pub fn machine() -> Vec<Item> {
    let items = [
        cpus(),
        qemu(),
        plugin("observer plugin", State::Missing, check_plugins::observer()),
        beside("guest agent", kprism_lab::find_agent()),
        guest_kernel(),
        disk(),
        intel_pt(),
        perf(),
        function_tracer(),
        bpf(),
        plugin("user plugin", State::Optional, check_plugins::user()),
        browser(),
    ];
    items.into_iter().chain(killed_recording()).collect()
}

fn cpus() -> Item {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": ")).map_or("", |x| x.1);
    let ok = cfg!(target_arch = "x86_64");
    Item::new("processor", ok, State::Missing, format!("{cpus} × {model}"), "kprism runs on x86-64 only")
}

fn qemu() -> Item {
    match kprism_lab::Qemu::find() {
        Ok(qemu) => {
            let found = format!("{}, {}", qemu.program.display(), qemu.version);
            Item::new("QEMU", true, State::Missing, found, "")
        }
        Err(kprism_lab::Error::NoQemu { found, remedy, .. }) => {
            let each: Vec<String> = found.iter().map(ToString::to_string).collect();
            let found = if each.is_empty() { "none".into() } else { each.join("; ") };
            Item::new("QEMU", false, State::Missing, found, &remedy)
        }
        Err(error) => Item::new("QEMU", false, State::Missing, "none", &error.to_string()),
    }
}

fn beside(name: &'static str, file: Result<std::path::PathBuf, kprism_lab::Error>) -> Item {
    match file {
        Ok(path) => Item::new(name, true, State::Missing, path.display().to_string(), ""),
        Err(e) => Item::new(name, false, State::Missing, "not found", &e.to_string()),
    }
}

fn plugin(name: &'static str, otherwise: State, tried: check_plugins::Tried) -> Item {
    Item::new(name, tried.ok, otherwise, tried.found, &tried.remedy)
}

/// The kernel comes from a guest image, from the cache or from apt.
fn guest_kernel() -> Item {
    let cached =
        cache_folder().map(|c| c.join("kernel")).is_some_and(|k| k.read_dir().is_ok_and(|d| d.count() > 0));
    let known = Command::new("apt-cache").args(["pkgnames", "linux-image-6.12."]).output();
    let known = known.is_ok_and(|o| o.status.success() && !o.stdout.is_empty());
    let image = kprism_lab::guest_image::named_or_installed();
    let found = match (&image, cached, known) {
        (Some(image), ..) => format!("in the guest image {}", image.display()),
        (None, true, _) => "in the cache".to_owned(),
        (None, false, true) => "apt can fetch it".to_owned(),
        (None, false, false) => "neither in the cache nor known to apt".to_owned(),
    };
    const REMEDY: &str = "on Debian 12 add bookworm-backports to apt's sources (scripts/setup.sh does it); without apt use a guest image \
                          (--guest-image), or --kernel and --root";
    Item::new("guest kernel", image.is_some() || cached || known, State::Missing, found, REMEDY)
}

fn disk() -> Item {
    const NEEDED: u64 = 2 << 30;
    let Some(folder) = cache_folder() else {
        return Item::new("cache folder", false, State::Missing, "none", "set HOME or XDG_CACHE_HOME");
    };
    // The folder itself may not be there yet.
    let place = folder.ancestors().find(|p| p.exists()).unwrap_or(Path::new("/"));
    let free = free_bytes(place);
    let found = format!("{}, {} free", folder.display(), free.map_or_else(|| "unknown".into(), bytes));
    let remedy = "a first run takes 2 GiB: free some, or set XDG_CACHE_HOME to a folder on a larger disk";
    Item::new("cache folder", free.is_none_or(|f| f >= NEEDED), State::Missing, found, remedy)
}

fn cache_folder() -> Option<std::path::PathBuf> {
    kprism_lab::cache::Cache::open().ok().map(|cache| cache.folder().to_owned())
}

fn free_bytes(place: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let name = std::ffi::CString::new(place.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statvfs is a valid one to be filled in, and the name ends in NUL.
    let (result, stat) = unsafe {
        let mut stat: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(name.as_ptr(), &raw mut stat), stat)
    };
    (result == 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn intel_pt() -> Item {
    let pmu = Pmu::of_this_machine();
    let found = pmu.as_ref().map_or_else(|| "no such PMU".to_owned(), Pmu::words);
    let remedy =
        "not needed: the lab makes the same packets in a guest; recordings of other machines can be imported";
    Item::new("Intel PT hardware", pmu.is_some(), State::Optional, found, remedy)
}

/// perf and the right to use it: `kprism record flow` needs them besides the PMU.
fn perf() -> Item {
    const NAME: &str = "perf";
    let Some(perf) = find_perf() else {
        let remedy = "only kprism record flow needs it: install linux-perf (linux-tools, perf)";
        return Item::new(NAME, false, State::Optional, "not installed", remedy);
    };
    let found = perf.display().to_string();
    match Rights::here(&perf).refusal(false, true) {
        None => Item::new(NAME, true, State::Optional, found, ""),
        Some(why) => {
            let why = why.replace('\n', "; ");
            Item::new(NAME, false, State::Optional, found, &format!("kprism record flow: {why}"))
        }
    }
}

/// function_graph, for `kprism record durations`.
fn function_tracer() -> Item {
    const NAME: &str = "function tracer";
    // Whose calls makes no difference to what the kernel must have.
    let settings = kprism_tracefs::Settings { scope: kprism_tracefs::Scope::All, ..Default::default() };
    match kprism_tracefs::ready(&settings, &[]) {
        Ok(tracefs) => {
            let found = format!("function_graph in {}", tracefs.root().display());
            Item::new(NAME, true, State::Optional, found, "")
        }
        Err(why) => {
            let remedy = format!("kprism record durations: {why}");
            Item::new(NAME, false, State::Optional, "cannot be used", &remedy)
        }
    }
}

/// Puts back what a recording that was killed left in tracefs; nothing to tell if there was none.
fn killed_recording() -> Option<Item> {
    const NAME: &str = "killed recording";
    match kprism_tracefs::undo_stale() {
        Ok(None) => None,
        Ok(Some(undone)) => {
            let failed = undone.failed.join("; ");
            Some(Item::new(NAME, failed.is_empty(), State::Optional, undone_text(&undone), &failed))
        }
        Err(why) => {
            Some(Item::new(NAME, false, State::Optional, "tracefs is as it left it", &why.to_string()))
        }
    }
}

/// BPF, for `kprism record durations --aggregate`.
fn bpf() -> Item {
    let host = kprism_bpf::host::Host::here();
    let found = format!("lockdown {}, {}", host.lockdown, if host.btf { "BTF" } else { "no BTF" });
    let why = host.function_refusal().unwrap_or_else(|| {
        "the kernel needs CONFIG_DEBUG_INFO_BTF=y: task switches are followed by its types".into()
    });
    let ok = host.function_refusal().is_none() && host.btf;
    Item::new(
        "BPF at functions",
        ok,
        State::Optional,
        found,
        &format!("kprism record durations --aggregate: {why}"),
    )
}

fn browser() -> Item {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let there = names.iter().find_map(|name| path::find_here(name).ok());
    let found = there.as_ref().map_or_else(|| "none".to_owned(), |p| p.display().to_string());
    let remedy = "only the tests of the HTML report need it: scripts/setup.sh test installs it";
    Item::new("Chromium", there.is_some(), State::Optional, found, remedy)
}
