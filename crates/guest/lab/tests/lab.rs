// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tests the lab with a real QEMU and Debian's kernel. Needs the agent built beside the tests
//! (`cargo build -p kprism-agent`), QEMU 10, and apt the first time.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kprism_lab::{
    CpuFeature, Ended, Error, Job, KernelSource, Options, Outcome, Pace, Prepared, Progress, ReportKind,
    Share, Span,
};

/// Guests are large and the machine may be small, so only one runs at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> std::sync::MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A folder for one test, removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("kprism-lab-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn prepare(options: &Options) -> Prepared {
    kprism_lab::prepare(options, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn run(prepared: &Prepared, job: &Job, folder: &Scratch) -> Outcome {
    kprism_lab::run(prepared, job, &folder.0, None, &mut |_| {}).unwrap_or_else(|error| panic!("{error}"))
}

fn shell(script: &str) -> Job {
    Job::new(["sh", "-c", script])
}

/// Prints data that could differ between runs: times to the nanosecond, interrupts, addresses, random numbers.
const TELLTALE: &str =
    "date +%s.%N; cat /proc/uptime /proc/interrupts /proc/stat /proc/self/maps /proc/vmstat;
    head -c 64 /dev/urandom | od -x; sleep 0.01; for i in 1 2 3; do ls -la /bin | sed s/a/z/g | sha256sum & done; wait;
    echo to the console > /dev/kmsg; date +%s.%N";

#[test]
fn two_runs_are_the_same_to_the_byte() {
    let _guard = one_at_a_time();
    for smp in [1, 2] {
        let prepared = prepare(&Options { smp, ..Options::default() });
        let runs = ["a", "b", "c"].map(|name| {
            let folder = Scratch::new(&format!("same-{smp}-{name}"));
            let outcome = run(&prepared, &shell(TELLTALE), &folder);
            assert_eq!((outcome.ended, outcome.exit_code), (Ended::Normal, Some(0)));
            ["stdout", "stderr", "console.log"].map(|file| folder.read(file))
        });
        assert!(runs[0] == runs[1] && runs[0] == runs[2], "{smp} CPUs: runs differ");
        assert!(String::from_utf8_lossy(&runs[0][2]).contains("to the console"));
    }
}

#[test]
fn two_boots_are_the_same_to_the_byte() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options { smp: 2, ..Options::default() });
    let runs = ["a", "b"].map(|name| {
        let folder = Scratch::new(&format!("boots-{name}"));
        let outcome = run(&prepared, &Job { span: Span::Boot, ..shell(TELLTALE) }, &folder);
        assert_eq!(outcome.exit_code, Some(0));
        ["stdout", "console.log"].map(|file| folder.read(file))
    });
    assert!(runs[0] == runs[1]);
    assert!(String::from_utf8_lossy(&runs[0][1]).contains("Linux version"));
}

#[test]
fn exit_codes_are_a_shells() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let folder = Scratch::new("codes");
    let cases: [(&[&str], u8, &str); 6] = [
        (&["true"], 0, ""),
        (&["sh", "-c", "exit 42"], 42, ""),
        (&["sh", "-c", "kill -TERM $$"], 143, ""),
        (&["sh", "-c", "kill -KILL $$"], 137, ""),
        (&["no-such-program"], 127, "kprism: no-such-program: No such file"),
        (&["/etc/passwd"], 126, "kprism: /etc/passwd: Permission denied"),
    ];
    for (argv, code, words) in cases {
        let outcome = run(&prepared, &Job::new(argv.iter().copied()), &folder);
        assert_eq!((outcome.ended, outcome.exit_code), (Ended::Normal, Some(code)), "{argv:?}");
        assert!(String::from_utf8_lossy(&folder.read("stderr")).contains(words), "{argv:?}");
    }
}

#[test]
fn output_comes_through_whole_and_while_it_is_made() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let folder = Scratch::new("output");
    // Every byte value, and more bytes than a pipe holds.
    let script = "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done
        head -c 1000000 /dev/zero; echo to stderr >&2";
    let mut pieces = 0;
    let mut streams = [Vec::new(), Vec::new()];
    let mut report = |progress: Progress<'_>| match progress {
        Progress::Stdout(bytes) => {
            pieces += 1;
            streams[0].extend_from_slice(bytes);
        }
        Progress::Stderr(bytes) => streams[1].extend_from_slice(bytes),
        _ => {}
    };
    let outcome = kprism_lab::run(&prepared, &shell(script), &folder.0, None, &mut report).unwrap();
    assert_eq!(outcome.exit_code, Some(0));
    let mut expected: Vec<u8> = (0..=255).collect();
    expected.resize(256 + 1_000_000, 0);
    assert!(streams[0] == expected && folder.read("stdout") == expected);
    assert_eq!(streams[1], b"to stderr\n");
    assert!(pieces > 1, "all came at the end");
}

#[test]
fn a_run_goes_on_from_the_booted_guest() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let folder = Scratch::new("quick");
    // Distinguished from a boot by what is missing on the console, not by time.
    let outcome = run(&prepared, &shell("dmesg | grep -c '^.*Linux version'"), &folder);
    assert!(outcome.start <= outcome.wall, "{outcome:?}");
    assert_eq!(folder.read("stdout"), b"1\n");
    let console = String::from_utf8_lossy(&folder.read("console.log")).into_owned();
    assert!(!console.contains("Linux version"), "{console}");
}

#[test]
fn a_share_a_command_before_and_an_environment() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let (folder, shared) = (Scratch::new("share"), Scratch::new("shared"));
    std::fs::create_dir(shared.0.join("sub")).unwrap();
    std::fs::write(shared.0.join("sub/file"), "shared content").unwrap();
    let job = Job {
        shares: vec![Share { host: shared.0.clone(), guest: "/work/here".into() }],
        before: vec!["echo made before > /tmp/before; echo quiet".into()],
        env: vec![("COLOUR".into(), "green".into())],
        cwd: Some("/work/here/sub".into()),
        ..shell("cat file /tmp/before; echo $COLOUR")
    };
    assert_eq!(run(&prepared, &job, &folder).exit_code, Some(0));
    assert_eq!(folder.read("stdout"), b"shared contentmade before\ngreen\n");
    assert_eq!(folder.read("stderr"), b"quiet\n");

    let failing = Job { before: vec!["exit 3".into()], ..shell("echo never") };
    let outcome = run(&prepared, &failing, &folder);
    assert!(matches!(&outcome.ended, Ended::Failed(why) if why.contains("exit 3")), "{outcome:?}");
    assert_eq!((outcome.exit_code, folder.read("stdout").len()), (None, 0));

    let job =
        Job { shares: vec![Share { host: "/no/such/folder".into(), guest: "/x".into() }], ..shell("true") };
    let error = kprism_lab::run(&prepared, &job, &folder.0, None, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("/no/such/folder"), "{error}");
}

#[test]
fn commands_afterwards_tell_what_they_see() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let folder = Scratch::new("after");
    let mut job = shell("echo left > /tmp/left; exit 4");
    job.after = vec!["cat /tmp/left; echo oops >&2".into(), "exit 3".into()];
    let outcome = run(&prepared, &job, &folder);
    assert_eq!(outcome.exit_code, Some(4), "{outcome:?}");
    assert_eq!(outcome.after, ["left\noops\n", ""]);
    assert_eq!((folder.read("stdout").len(), folder.read("stderr").len()), (0, 0));
    // A tracer's code has a symbol, though not a module's.
    let job =
        Job { before: vec!["echo function > /sys/kernel/tracing/current_tracer".into()], ..shell("true") };
    assert_eq!(run(&prepared, &job, &folder).exit_code, Some(0));
    let names = String::from_utf8(folder.read("symbols/kallsyms")).unwrap();
    assert!(names.lines().any(|line| line.ends_with("ftrace_trampoline\t[__builtin__ftrace]")));
}

#[test]
fn the_cpu_has_the_features_asked_for() {
    let _guard = one_at_a_time();
    let folder = Scratch::new("features");
    let with = |features: &[&str]| Options {
        cpu_features: features.iter().map(|text| CpuFeature::parse(text).unwrap()).collect(),
        ..Options::default()
    };
    let has = |features: &[&str]| {
        assert_eq!(
            run(&prepare(&with(features)), &shell("grep flags /proc/cpuinfo"), &folder).exit_code,
            Some(0)
        );
        let said = String::from_utf8(folder.read("stdout")).unwrap();
        ["erms", "fsrm", "rdrand", "avx2"].map(|name| said.split_whitespace().any(|word| word == name))
    };
    assert_eq!(has(&[]), [false, false, false, true]);
    assert_eq!(has(&["+erms", "-avx2"]), [true, false, false, false]);
    for odd in ["+avx512f", "+nosuch"] {
        match kprism_lab::prepare(&with(&[odd]), &mut |_| {}) {
            Err(Error::Qemu { reason }) => assert!(reason.contains("--cpu-features"), "{reason}"),
            other => panic!("{odd}: {other:?}"),
        }
    }
}

#[test]
fn a_hang_ends_at_the_time_given_and_a_panic_at_once() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let folder = Scratch::new("hang");
    let job = Job { timeout: Some(Duration::from_secs(6)), ..shell("echo begun; while :; do :; done") };
    let outcome = run(&prepared, &job, &folder);
    assert_eq!((outcome.ended, outcome.exit_code), (Ended::Timeout, None));
    assert_eq!(folder.read("stdout"), b"begun\n");

    let outcome = run(&prepared, &shell("echo begun; sleep 0.1; echo c > /proc/sysrq-trigger"), &folder);
    assert_eq!(outcome.ended, Ended::Panic("Kernel panic - not syncing: sysrq triggered crash".into()));
    assert!(outcome.console_tail.contains("RIP"), "{}", outcome.console_tail);
    let report = outcome.reports.reports.first().expect("the panic is told");
    assert_eq!(report.kind, ReportKind::Panic);
    assert!(report.trace.iter().any(|frame| frame.starts_with("sysrq_handle_crash+")), "{report:?}");
    assert_eq!(folder.read("stdout"), b"begun\n");
    assert_no_qemu(&folder.0);
}

#[test]
fn modules_are_loaded_with_what_they_need() {
    let _guard = one_at_a_time();
    let options = Options {
        modules: vec!["tun".into()],
        with_modules: vec!["dummy".into(), "xt-tcpudp".into()],
        ..Options::default()
    };
    let prepared = prepare(&options);
    let folder = Scratch::new("modules");
    let outcome =
        run(&prepared, &shell("cut -d' ' -f1 /proc/modules; modprobe dummy; modprobe xt_tcpudp"), &folder);
    assert_eq!(outcome.exit_code, Some(0), "{}", String::from_utf8_lossy(&folder.read("stderr")));
    assert_eq!(folder.read("stdout"), b"tun\n");
    let modules = String::from_utf8(folder.read("symbols/modules")).unwrap();
    let kallsyms = String::from_utf8(folder.read("symbols/kallsyms")).unwrap();
    for name in ["tun", "dummy", "xt_tcpudp", "x_tables"] {
        assert!(modules.contains(&format!("{name} ")), "{name} in {modules}");
        assert!(kallsyms.contains(&format!("[{name}]")), "{name}");
    }
    let missing = Options { modules: vec!["no_such_module".into()], ..Options::default() };
    let error = kprism_lab::prepare(&missing, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::NoModule { .. }), "{error}");
}

/// File systems request checksums by names that are no symbols. Their modules state this in `softdep`.
#[test]
fn modules_are_loaded_with_what_they_ask_for_by_alias() {
    let _guard = one_at_a_time();
    let options = Options { modules: vec!["btrfs".into(), "xfs".into()], ..Options::default() };
    let prepared = prepare(&options);
    let folder = Scratch::new("aliases");
    let outcome = run(&prepared, &shell("grep -wE 'btrfs|xfs' /proc/filesystems"), &folder);
    assert_eq!(outcome.exit_code, Some(0), "{}", String::from_utf8_lossy(&folder.read("stderr")));
    assert_eq!(String::from_utf8(folder.read("stdout")).unwrap().lines().count(), 2);
    let modules = String::from_utf8(folder.read("symbols/modules")).unwrap();
    for name in ["btrfs", "xfs", "libcrc32c"] {
        assert!(modules.contains(&format!("{name} ")), "{name} in {modules}");
    }
}

#[test]
fn symbols_of_what_ran_are_kept() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let folder = Scratch::new("symbols");
    // Records that an observer would write, and some that it might write for a guest that misbehaves.
    let records = [
        r#"{"k":"mmap","exec":true,"path":"/usr/bin/ls"}"#,
        r#"{"k":"mmap","exec":true,"path":"/init"}"#,
        r#"{"k":"mmap","exec":true,"path":"/../../etc/shadow"}"#,
        r#"{"k":"mmap","exec":true,"path":"/tmp/made-in-the-guest"}"#,
        r#"{"k":"mmap","exec":false,"path":"/usr/bin/sed"}"#,
        r#"{"k":"mmap","exec":true,"path":"[vdso]"}"#,
        r#"{"k":"mmap","exec":tr"#,
    ];
    std::fs::create_dir(folder.0.join("streams")).unwrap();
    std::fs::write(folder.0.join("streams/cpu0.side.jsonl"), records.join("\n")).unwrap();
    let outcome = run(&prepared, &shell("true"), &folder);
    let [missing] = &outcome.missing_files[..] else { panic!("{:?}", outcome.missing_files) };
    assert_eq!(
        (missing.path.as_str(), missing.why.as_str()),
        ("/tmp/made-in-the-guest", "it was made in the guest")
    );
    assert!(folder.read("symbols/root/usr/bin/ls").starts_with(b"\x7fELF"));
    assert!(folder.read("symbols/root/init").starts_with(b"\x7fELF"));
    assert!(folder.read("symbols/root/[vdso]").starts_with(b"\x7fELF"));
    assert!(!folder.0.join("symbols/root/usr/bin/sed").exists());
    let kallsyms = String::from_utf8(folder.read("symbols/kallsyms")).unwrap();
    assert!(kallsyms.lines().any(|line| line.starts_with("ffffffff8") && line.ends_with(" T _text")));
}

#[test]
fn the_observer_learns_where_to_look() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let hooks = std::fs::read_to_string(prepared.snapshot_folder().join("hooks")).unwrap();
    let keys: Vec<&str> = hooks.lines().filter_map(|line| line.split('=').next()).collect();
    assert_eq!(keys.len(), 34, "{hooks}");
    for key in ["sym.do_init_module", "sym.do_free_init", "sym.free_module", "off.module.kallsyms"] {
        assert!(keys.contains(&key), "{key}: {hooks}");
    }
    // The kernel checks its own BTF: comm is 16 bytes, and the fields of a path are two pointers.
    let btf = std::fs::read(prepared.snapshot_folder().join("btf")).unwrap();
    let btf = kprism_btf::Btf::parse("btf", btf, None).unwrap();
    assert_eq!((btf.offset("path", "mnt"), btf.offset("path", "dentry")), (Ok(0), Ok(8)));
    assert_eq!((btf.offset("list_head", "next"), btf.offset("list_head", "prev")), (Ok(0), Ok(8)));
    assert_eq!(prepared.kernel().build_id.len(), 40);
    assert!(prepared.kernel().release.starts_with("6.12"));
}

#[test]
fn a_bad_kernel_a_bad_initrd_and_a_bad_snapshot_are_told() {
    let _guard = one_at_a_time();
    let folder = Scratch::new("bad");
    let garbage = folder.0.join("garbage");
    std::fs::write(&garbage, vec![0x5a; 100_000]).unwrap();
    let short = Options { boot_timeout: Duration::from_secs(300), ..Options::default() };
    let options = Options { kernel: KernelSource::Image(garbage.clone()), ..short.clone() };
    let error = kprism_lab::prepare(&options, &mut |_| {}).unwrap_err();
    assert!(matches!(&error, Error::BadFile { path, .. } if *path == garbage), "{error}");
    let options = Options { kernel: KernelSource::Image("/no/such/kernel".into()), ..short.clone() };
    assert!(kprism_lab::prepare(&options, &mut |_| {}).unwrap_err().to_string().contains("/no/such/kernel"));
    // Too small for the files to unpack.
    let options = Options { mem_mib: 64, ..short.clone() };
    assert!(matches!(kprism_lab::prepare(&options, &mut |_| {}).unwrap_err(), Error::Option(_)));
    // The error of a boot that panics holds the kernel's message and its console.
    let options =
        Options { append: vec!["rdinit=/no/such/init".into(), "root=/dev/nothing".into()], ..short.clone() };
    let error = kprism_lab::prepare(&options, &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("Kernel panic"), "{error}");
    let options = Options { initrd: Some(garbage), ..short.clone() };
    let error = kprism_lab::prepare(&options, &mut |_| {}).unwrap_err();
    assert!(matches!(error, Error::Boot { .. }), "{error}");
    // A truncated snapshot, of a guest that no other test uses.
    let options = Options { append: vec!["kprism.test=bad-snapshot".into()], ..short };
    let prepared = prepare(&options);
    let mut said = Vec::new();
    for file in ["memory", "state"] {
        let file = prepared.snapshot_folder().join(file);
        let whole = std::fs::metadata(&file).unwrap().len();
        let file = std::fs::File::options().write(true).open(&file).unwrap();
        file.set_len(10_000).unwrap();
        said.push(kprism_lab::run(&prepared, &Job::new(["true"]), &folder.0, None, &mut |_| {}));
        file.set_len(whole).unwrap();
    }
    std::fs::remove_dir_all(prepared.snapshot_folder()).unwrap();
    for result in said {
        let text = result.unwrap_err().to_string();
        assert!(
            text.contains("delete") && text.contains(prepared.snapshot_folder().to_str().unwrap()),
            "{text}"
        );
    }
    assert_no_qemu(&folder.0);
}

#[test]
fn without_icount_it_works_too() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options { smp: 2, pace: Pace::Fast, ..Options::default() });
    let folder = Scratch::new("fast");
    assert_eq!(run(&prepared, &shell("nproc; exit 5"), &folder).exit_code, Some(5));
    assert_eq!(folder.read("stdout"), b"2\n");
}

#[test]
fn ctrl_c_ends_cleanly_and_a_kill_leaves_no_qemu() {
    let _guard = one_at_a_time();
    prepare(&Options::default());
    for (signal, code) in [(libc::SIGINT, Some(130)), (libc::SIGTERM, Some(130)), (libc::SIGKILL, None)] {
        let folder = Scratch::new(&format!("signal-{signal}"));
        let mut child = start_labrun(&folder.0, "echo begun; while :; do :; done");
        let begun =
            wait_for(|| std::fs::read(folder.0.join("stdout")).is_ok_and(|output| output == b"begun\n"));
        assert!(begun, "the command did not begin");
        assert!(!qemus(&folder.0).is_empty());
        // SAFETY: a signal to our own child, which is not reaped yet.
        unsafe { libc::kill(child.id() as libc::pid_t, signal) };
        let status = child.wait().unwrap();
        assert_eq!(status.code(), code);
        assert_no_qemu(&folder.0);
        if code.is_some() {
            assert!(folder.0.join("symbols/kallsyms").exists(), "what was recorded must be usable");
        }
    }
}

#[test]
fn ctrl_c_while_booting_leaves_nothing() {
    let _guard = one_at_a_time();
    let prepared = prepare(&Options::default());
    let snapshots = prepared.snapshot_folder().parent().unwrap().to_owned();
    let folder = Scratch::new("signal-boot");
    let mut command = labrun(&folder.0);
    let mut child = command.args(["--append", "kprism.test=ctrl-c", "--", "true"]).spawn().unwrap();
    // Another program may make a snapshot in the same cache: ours is the one of this child's QEMU.
    let pid = child.id();
    let building = || {
        let names = std::fs::read_dir(&snapshots).unwrap().flatten().map(|entry| entry.file_name());
        let names = names.map(|name| name.to_string_lossy().into_owned());
        let folders = names.filter(|name| name.ends_with(".new")).map(|name| snapshots.join(name));
        folders.into_iter().find(|folder| folder.join("control").exists() && is_booted_by(folder, pid))
    };
    assert!(wait_for(|| building().is_some()));
    let staging = building().unwrap();
    // SAFETY: a signal to our own child, which is not reaped yet.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
    assert_eq!(child.wait().unwrap().code(), Some(125));
    assert!(!staging.exists());
    assert_no_qemu(&staging);
}

fn start_labrun(folder: &Path, script: &str) -> Child {
    labrun(folder).args(["--", "sh", "-c", script]).spawn().unwrap()
}

/// The example program, with its output discarded.
fn labrun(folder: &Path) -> Command {
    let own = std::env::current_exe().unwrap();
    let labrun = own.parent().and_then(Path::parent).unwrap().join("examples/labrun");
    assert!(labrun.exists(), "{} is not built: run `cargo build --examples`", labrun.display());
    let mut command = Command::new(labrun);
    command.arg("--out").arg(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

fn wait_for(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(300) {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Processes with `folder` on their command line, except labrun.
fn qemus(folder: &Path) -> Vec<String> {
    let needle = folder.to_str().unwrap();
    let lines = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let line = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&line).replace('\0', " "))
    });
    lines.filter(|line| line.contains(needle) && line.contains("qemu")).collect()
}

/// True if a QEMU with `folder` on its command line is a child of the process.
fn is_booted_by(folder: &Path, parent: u32) -> bool {
    let needle = folder.to_str().unwrap();
    std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let read = |name: &str| std::fs::read(entry.path().join(name)).unwrap_or_default();
        let (line, status) = (read("cmdline"), read("status"));
        let status = String::from_utf8_lossy(&status);
        let ppid = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        String::from_utf8_lossy(&line).contains(needle)
            && ppid.is_some_and(|ppid| ppid.trim() == parent.to_string())
    })
}

fn assert_no_qemu(folder: &Path) {
    assert!(wait_for(|| qemus(folder).is_empty()), "left behind: {:?}", qemus(folder));
}
