// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requirements of tests on the machine: a name for each, a check whether it is met, and a remedy.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use crate::skip;

/// A requirement that a machine may not meet.
#[derive(Clone, Copy)]
pub struct Need {
    /// The text after "needs …".
    pub what: &'static str,
    /// The remedy.
    pub remedy: &'static str,
    present: fn() -> bool,
}

/// Ignores this test unless the machine meets all of these.
pub fn needs(all: &[Need]) {
    for need in all {
        if !need.is_met() {
            need.skip();
        }
    }
}

impl Need {
    /// Returns true if the machine meets it. Checked once per process.
    pub fn is_met(self) -> bool {
        static SEEN: Mutex<Option<HashMap<&str, bool>>> = Mutex::new(None);
        let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *seen.get_or_insert_default().entry(self.what).or_insert_with(self.present)
    }

    fn skip(self) -> ! {
        skip(format!("needs {}: {}", self.what, self.remedy))
    }
}

const SETUP: &str = "sh scripts/setup.sh test";

macro_rules! needs {
    ($($(#[$doc:meta])* $name:ident = $what:expr, $remedy:expr, $present:expr;)*) => {
        $($(#[$doc])* pub const $name: Need = Need { what: $what, remedy: $remedy, present: $present };)*
    };
}

needs! {
    /// uprobes, tracefs and the like.
    ROOT = "root", "run the tests as root", || {
        // SAFETY: it takes nothing and gives a number.
        unsafe { libc::geteuid() == 0 }
    };
    /// Mounts that only the test sees. `unshare` makes them private, which the kernel refuses where `/` is no mount point, as in a chroot.
    MOUNTS = "mounts of its own (unshare --mount)", "run the tests as root, where / is a mount point: not in a chroot",
        || runs_with("unshare", &["--mount", "true"]);
    /// Loading programs and maps into the running kernel.
    BPF = "the right to load BPF programs", "run the tests as root, outside containers", may_load_bpf;
    /// Probes in programs.
    UPROBES = "uprobes", "a kernel with CONFIG_UPROBE_EVENTS",
        || Path::new("/sys/bus/event_source/devices/uprobe").is_dir();
    /// The running kernel's types.
    BTF = "types of the running kernel (/sys/kernel/btf/vmlinux)", "a kernel with CONFIG_DEBUG_INFO_BTF",
        || Path::new("/sys/kernel/btf/vmlinux").is_file();
    /// perf, allowed to sample.
    PERF = "perf, allowed to record", "sh scripts/setup.sh test; sysctl kernel.perf_event_paranoid=2 or root",
        || perf_records("cpu-clock:u");
    /// perf, allowed to sample the kernel's tracepoints.
    PERF_TRACEPOINTS = "perf, allowed to record tracepoints", "sh scripts/setup.sh test, and root",
        || perf_records("sched:sched_switch");
    /// perf, allowed to sample page faults.
    PERF_FAULTS = "perf, allowed to record page faults", "sh scripts/setup.sh test, and root", || perf_records("page-faults");
    /// No Intel PT: the error message is tested.
    NO_INTEL_PT = "a machine without Intel PT", "a virtual machine without it",
        || !Path::new("/sys/bus/event_source/devices/intel_pt").exists();
    /// No hardware counters: the error message is tested.
    NO_PMU = "a machine without hardware counters", "a virtual machine without them", || {
        !["cpu", "cpu_core", "ibs_op"].iter().any(|pmu| Path::new("/sys/bus/event_source/devices").join(pmu).is_dir())
    };
    /// Captures of real processors and samples of ftrace: `captures()`.
    CAPTURES = "captures of real processors and kernels", "KPRISM_TEST_DATA=FOLDER names where they are",
        || std::env::var_os("KPRISM_TEST_DATA").is_some_and(|folder| Path::new(&folder).is_dir());
    /// Intel's decoder, used by tests/oracle: `ptoracle()`.
    PTORACLE = "Intel's decoder (tests/oracle)", "make test builds it and sets KPRISM_PTORACLE",
        || std::env::var_os("KPRISM_PTORACLE").is_some();
    /// A checkout of libipt, for its own test suite.
    LIBIPT = "the source of libipt", "sh scripts/libipt.sh, or KPRISM_LIBIPT names a folder with it",
        || libipt().join("test/src").is_dir();
    /// GCC and its gcov.
    GCC = "gcc and gcov", SETUP, || runs("gcc", "--version") && runs("gcov", "--version");
    /// git, which chooses the commits of a bisection.
    GIT = "git", SETUP, || runs("git", "--version");
    /// The debugger that judges expressions and tracepoints.
    GDB = "gdb", SETUP, || runs("gdb", "--version");
    /// `sys/sdt.h`.
    SDT = "sys/sdt.h", SETUP, || {
        ["x86_64-linux-gnu/sys/sdt.h", "sys/sdt.h"].iter().any(|file| Path::new("/usr/include").join(file).is_file())
    };
    /// The reader of CTF traces.
    BABELTRACE = "babeltrace2", SETUP, || runs("babeltrace2", "--version");
    /// The reader of trace.dat.
    TRACE_CMD = "trace-cmd", SETUP, || Command::new("trace-cmd").arg("-h").output().is_ok();
    /// QEMU for the guest: 9.2 to 11.0.
    QEMU = "qemu-system-x86_64, 9.2 to 11.0", SETUP, || {
        let named = std::env::var_os("KPRISM_QEMU").unwrap_or_else(|| "qemu-system-x86_64".into());
        let said = Command::new(named).arg("--version").stdin(Stdio::null()).output();
        let said = said.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        let mut numbers = said.split("version ").nth(1).unwrap_or_default().split(['.', ' ']);
        let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok()).unwrap_or(0);
        ((9, 2)..(11, 1)).contains(&(next(), next()))
    };
    /// QEMU for a guest of 64-bit ARM.
    ARM64_QEMU = "qemu-system-aarch64", "sh scripts/setup.sh test, or install qemu-system-arm",
        || runs("qemu-system-aarch64", "--version");
    /// Kernel and programs of such a guest: [`arm64_guest`].
    ARM64_GUEST = "a guest of 64-bit ARM", "sh scripts/arm64-guest.sh gets it by apt, once",
        || arm64_guest().join("recipe").is_file() && runs("busybox", "true");
    /// The recorder for it: [`arm64_recorder`].
    ARM64_RECORDER = "kprism-recorder for 64-bit ARM",
        "PROFILE=checked make recorder-arm64 builds it, or KPRISM_RECORDER_AARCH64 names it", || arm64_recorder().is_file();
    /// apt, which downloads the guest's kernel.
    APT = "apt", "a Debian system", || runs("apt-cache", "--version");
    /// A disk image that boots systemd, with its kernel beside it: folder `tools/systemd-image` of [`cache`].
    SYSTEMD_IMAGE = "a disk image with systemd", "sh scripts/systemd-image.sh makes it, as root",
        || cache().join("tools/systemd-image/recipe").is_file();
    /// ssh and its server, which tests start on the loopback.
    SSHD = "ssh and sshd", SETUP, || Path::new("/usr/sbin/sshd").exists() && Command::new("ssh").arg("-V").output().is_ok();
    /// A browser and its driver: `chromium()`.
    BROWSER = "Chromium with chromedriver", SETUP, || chromium().is_some() && runs("chromedriver", "--version");
    /// axe-core, which judges pages by WCAG: [`axe`].
    AXE = "axe-core", "sh scripts/axe.sh gets it by npm", || axe().is_file();
    /// Perfetto's trace processor, and Node to run it: `perfetto()`.
    PERFETTO = "Perfetto's trace processor and Node", SETUP,
        || runs("node", "--version") && perfetto_folder().join("engine_bundle.js").is_file();
    /// For `record tlb --method user`.
    USER_PLUGINS = "a qemu-x86_64 that takes plugins", "sh scripts/qemu-user.sh gets one", || {
        let help = |program: PathBuf| Command::new(program).arg("-help").output();
        let takes = |program| help(program).is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("\n-plugin "));
        let named = std::env::var_os("KPRISM_QEMU_USER").map(PathBuf::from);
        named.map_or_else(|| takes(cache().join("tools/qemu-user/qemu-x86_64")) || takes("qemu-x86_64".into()), takes)
    };
    /// Records every memory access of a program.
    VALGRIND = "valgrind", SETUP, || runs("valgrind", "--version");
    /// Another simulator of TLBs.
    TLB_JUDGE = "another simulator of TLBs", "KPRISM_TLB_JUDGE names a program (crates/instrument/tlb/tests/judge.rs)",
        || std::env::var_os("KPRISM_TLB_JUDGE").is_some();
    /// Readers of tables, notebooks and Spark for Python: [`python_packages`].
    PYTHON_PACKAGES = "the packages of python/requirements.txt", SETUP, || {
        python_packages().join("complete").is_file() && runs("readelf", "--version")
    };
    /// Java, for Spark.
    JAVA = "Java 17 or later", SETUP, || runs("java", "--version");
    /// `kprism lake sql`: the program that DuckDB is linked into, beside the tests' programs.
    SQL = "kprism-sql", SETUP, || {
        let own = std::env::current_exe().ok();
        let built = own.as_deref().and_then(|own| own.parent()?.parent().map(|folder| folder.join("kprism-sql")));
        std::env::var_os("KPRISM_SQL").is_some() || built.is_some_and(|program| program.is_file())
    };
    /// A guest whose packages take minutes to get: [`tracer_guest`].
    TRACER_GUEST = "a guest with perf and bpftrace", "KPRISM_TRACER_GUEST=1 makes it, once, in minutes",
        || std::env::var_os("KPRISM_TRACER_GUEST").is_some() || tracer_guest().is_file();
    /// LTTng's kernel modules: [`lttng_modules`].
    LTTNG_MODULES = "LTTng's kernel modules",
        "sh scripts/lttng-modules.sh builds them, once, in a minute or two (KPRISM_TRACER_GUEST=1: the test does)",
        || lttng_modules().is_some();
    /// SystemTap and the kernel it is for: [`systemtap`].
    SYSTEMTAP = "SystemTap", "sh scripts/systemtap.sh fetches it with its kernel's debug information, 1 GB, once \
        (KPRISM_TRACER_GUEST=1: the test does)", || systemtap().is_some();
    /// A kernel with its own coverage counters.
    GCOV_KERNEL = "a kernel built with gcov", "make test builds a small one, make test-gcov-kernel a whole one, once",
        || std::env::var_os("KPRISM_GCOV_KERNEL").is_some();
    /// Such a kernel with debug information.
    GCOV_DEBUG_KERNEL = "a kernel built with gcov and debug information",
        "KPRISM_GCOV_DEBUG=1 make test-gcov-kernel builds it, once", || std::env::var_os("KPRISM_GCOV_DEBUG").is_some();
    /// The smaller such kernel with debug information and types (BTF).
    GCOV_TYPES_KERNEL = "a small kernel built with gcov and BTF", "KPRISM_GCOV_TYPES=1 make test builds it, once",
        || std::env::var_os("KPRISM_GCOV_TYPES").is_some();
}

/// The folder with kernel and programs of a guest of 64-bit ARM.
pub fn arm64_guest() -> PathBuf {
    cache().join("tools/arm64-guest")
}

/// The recorder for 64-bit ARM: `KPRISM_RECORDER_AARCH64`, or the file that `make recorder-arm64` puts beside the tests' programs.
pub fn arm64_recorder() -> PathBuf {
    let beside = || {
        let own = std::env::current_exe().unwrap_or_default();
        own.ancestors().nth(2).unwrap_or(&own).join("kprism-recorder-aarch64")
    };
    std::env::var_os("KPRISM_RECORDER_AARCH64").map_or_else(beside, PathBuf::from)
}

/// The file that tells that the cache has a guest with perf and bpftrace.
pub fn tracer_guest() -> PathBuf {
    cache().join("tools/tracer-guest")
}

/// The folder of LTTng's kernel modules for the guest's kernel, if they were built; with `KPRISM_TRACER_GUEST` they are.
pub fn lttng_modules() -> Option<PathBuf> {
    tool("lttng-modules.sh")
}

/// The folder of SystemTap, if it was fetched; with `KPRISM_TRACER_GUEST` it is.
pub fn systemtap() -> Option<PathBuf> {
    tool("systemtap.sh")
}

/// The folder that a script of `scripts` prints: of what it made before, or with `KPRISM_TRACER_GUEST` makes now.
fn tool(script: &str) -> Option<PathBuf> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts").join(script);
    let mut command = Command::new("sh");
    command.arg(script);
    if std::env::var_os("KPRISM_TRACER_GUEST").is_none() {
        command.arg("--have");
    }
    let said = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().ok()?;
    said.status.success().then(|| PathBuf::from(String::from_utf8_lossy(&said.stdout).trim_end()))
}

/// The folder named by `KPRISM_TEST_DATA`. The test is ignored if it is not set, or if `file` is missing.
pub fn captures(file: &str) -> PathBuf {
    needs(&[CAPTURES]);
    let path = PathBuf::from(std::env::var_os("KPRISM_TEST_DATA").unwrap_or_default()).join(file);
    if !path.exists() {
        skip(format!("needs {}, which is not there: KPRISM_TEST_DATA names another folder", path.display()));
    }
    path
}

/// The first of these programs that runs. The test is ignored if none does. `package` is the Debian package that
/// contains it.
pub fn program(names: &[&str], package: &str) -> String {
    let starts = |name: &&&str| Command::new(name).arg("--version").stdin(Stdio::null()).output().is_ok();
    let found = names.iter().find(starts);
    found.map_or_else(
        || skip(format!("needs {}: install {package} ({SETUP})", names[0])),
        |name| (*name).to_owned(),
    )
}

/// Google's pprof: `KPRISM_PPROF`, or any other; Go includes one.
pub fn pprof() -> Command {
    let own = std::env::var("KPRISM_PPROF").unwrap_or_else(|_| "pprof".into());
    for line in [&[own.as_str()][..], &["go", "tool", "pprof"]] {
        let command = || {
            let mut command = Command::new(line[0]);
            command.args(&line[1..]);
            command
        };
        // It exits with 2 after printing its help.
        let help = command().arg("-help").output();
        if help.is_ok_and(|output| String::from_utf8_lossy(&output.stderr).contains("-sample_index")) {
            return command();
        }
    }
    skip(format!("needs pprof: {SETUP} installs Go, which has it, or KPRISM_PPROF names one"))
}

/// A schema that set-up fetched, by its file's name. The test is ignored without it.
pub fn schema(name: &str) -> PathBuf {
    let path = cache().join("schemas").join(name);
    if !path.is_file() {
        skip(format!("needs the schema {name}: {SETUP}"));
    }
    path
}

/// The environment that set-up made of `python/requirements.txt`, by `scripts/python-env.sh`; empty if that cannot be asked.
pub fn python_packages() -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/python-env.sh");
    let said = Command::new("sh").arg(script).arg("--have").output();
    said.map(|said| PathBuf::from(String::from_utf8_lossy(&said.stdout).trim())).unwrap_or_default()
}

/// A Python that has one of these modules: `KPRISM_PYTHON`, or the system's; with the modules that set-up installed for
/// it.
pub fn python_with(modules: &[&str]) -> Command {
    let plain = || Command::new(std::env::var("KPRISM_PYTHON").unwrap_or_else(|_| "python3".into()));
    // Modules are built for one version of Python.
    let version = plain().args(["-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let folder = cache().join(format!("tools/python-{}", version.unwrap_or_default()));
    let python = || {
        let mut python = plain();
        python.env("PYTHONPATH", &folder);
        python
    };
    let has = |module: &&str| {
        let import = python().arg("-c").arg(format!("import {module}")).output();
        import.is_ok_and(|output| output.status.success())
    };
    if !modules.iter().any(has) {
        let names = modules.join(" or ");
        skip(format!("needs Python with {names}: {SETUP}, or KPRISM_PYTHON names one that has it"));
    }
    python()
}

/// The source of libipt: `KPRISM_LIBIPT`, or the folder that `scripts/libipt.sh` uses.
pub fn libipt() -> PathBuf {
    std::env::var_os("KPRISM_LIBIPT").map_or_else(|| cache().join("tools/libipt"), PathBuf::from)
}

/// The folder of Perfetto's trace processor.
pub fn perfetto() -> PathBuf {
    needs(&[PERFETTO]);
    perfetto_folder()
}

/// The program of `tests/oracle`.
pub fn ptoracle() -> PathBuf {
    needs(&[PTORACLE]);
    std::env::var_os("KPRISM_PTORACLE").unwrap_or_default().into()
}

/// Path of the browser.
pub fn chromium() -> Option<&'static Path> {
    let places = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];
    places.into_iter().map(Path::new).find(|path| path.exists())
}

/// kprism's folder in the user's cache, to which set-up downloads the tests' tools that apt does not have.
pub fn cache() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache");
    std::env::var_os("XDG_CACHE_HOME").map_or_else(home, PathBuf::from).join("kprism")
}

/// The program of axe-core, of the version that `ui/package.json` locks; `scripts/axe.sh` puts it there.
pub fn axe() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../ui/package.json");
    let text = std::fs::read_to_string(package).unwrap_or_default();
    let version =
        text.split("\"axe-core\": \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or("none");
    cache().join(format!("tools/axe-core-{version}.js"))
}

fn perfetto_folder() -> PathBuf {
    std::env::var_os("KPRISM_PERFETTO").map_or_else(|| cache().join("perfetto"), PathBuf::from)
}

fn runs(program: &str, argument: &str) -> bool {
    runs_with(program, &[argument])
}

fn runs_with(program: &str, arguments: &[&str]) -> bool {
    let started = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    started.is_ok_and(|output| output.status.success())
}

fn perf_records(event: &str) -> bool {
    let file = std::env::temp_dir().join(format!("kprism-perf-{}.data", std::process::id()));
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-e", event, "-o"]).arg(&file).args(["--", "true"]);
    let may = perf.output().is_ok_and(|output| output.status.success());
    let _ = std::fs::remove_file(file);
    may
}

/// Returns true if bpf(2) can create a map with one element.
fn may_load_bpf() -> bool {
    const MAP_CREATE: libc::c_long = 0;
    // An array with keys of 4 bytes and values of 8.
    let attr: [u32; 16] = [2, 4, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: the kernel reads as many bytes as it is told of, which `attr` has.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, MAP_CREATE, attr.as_ptr(), size_of_val(&attr)) };
    if let Ok(fd @ 0..) = libc::c_int::try_from(fd) {
        // SAFETY: the kernel has just made it, and nobody else knows it.
        unsafe { libc::close(fd) };
        return true;
    }
    false
}
