// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python package, as users have it: the wheel in a virtual environment, its tables in other people's readers, faults, the
//! tour by its console script, the notebooks, Spark.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use kprism_test::{APT, JAVA, PYTHON_PACKAGES, QEMU, needs, python_packages, skip, test, turn};

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn built() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_kprism")).parent().unwrap()
}

/// The true run of the transcripts, copied, as a decode writes into it.
fn stored(name: &str, to: &Path) -> PathBuf {
    let from = top().join("crates/kprism/tests/cmd").join(name);
    let run = to.join(from.file_name().unwrap());
    done(Command::new("cp").arg("-r").args([&from, &run]));
    run
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let Output { status, stdout, stderr } = &output;
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(status.success(), "{command:?}: {status}\n{stdout}\n{stderr}");
    print!("{stdout}");
    stdout
}

/// The wheel, packed once, and an environment without any package but it.
struct Installed {
    place: tempfile::TempDir,
    wheel: PathBuf,
}

impl Installed {
    fn once() -> &'static Installed {
        static INSTALLED: OnceLock<Installed> = OnceLock::new();
        needs(&[PYTHON_PACKAGES]);
        if !built().join("libkprism_python.so").is_file() {
            skip("needs libkprism_python.so beside the program: cargo build --profile checked --workspace");
        }
        INSTALLED.get_or_init(|| {
            let place = tempfile::tempdir().unwrap();
            let wheel = PathBuf::from(pack(&place.path().join("wheel")));
            let installed = Installed { place, wheel };
            installed.environment("alone", false);
            installed.environment("packages", true);
            installed
        })
    }

    /// A virtual environment with the wheel; with `packages`, it sees those of the extras too.
    fn environment(&self, name: &str, packages: bool) {
        let folder = self.place.path().join(name);
        let pip = python_packages().join("bin/python");
        done(Command::new(&pip).args(["-m", "venv", "--without-pip"]).arg(&folder));
        let site = done(Command::new(folder.join("bin/python")).args(["-c", SITE]));
        if packages {
            let cached = done(Command::new(&pip).args(["-c", SITE]));
            std::fs::write(Path::new(site.trim()).join("packages.pth"), cached).unwrap();
        }
        let install = ["-m", "pip", "--disable-pip-version-check", "--python"];
        let mut command = Command::new(&pip);
        command.args(install).arg(folder.join("bin/python"));
        done(command.args(["install", "-q", "--no-index", "--no-deps"]).arg(&self.wheel));
    }

    fn python(&self, environment: &str) -> Command {
        let mut command = Command::new(self.place.path().join(environment).join("bin/python"));
        // Nothing of this checkout may be found by accident.
        command.current_dir(self.place.path());
        for variable in ["KPRISM", "KPRISM_AGENT", "KPRISM_OBSERVER", "KPRISM_RECORDER", "PYTHONPATH"] {
            command.env_remove(variable);
        }
        command
    }

    /// A script of `python/tests`.
    fn script(&self, name: &str) -> Command {
        let mut command = self.python("packages");
        command.arg(top().join("python/tests").join(name));
        command
    }
}

const SITE: &str = "import sysconfig; print(sysconfig.get_path('purelib'))";

fn pack(out: &Path) -> String {
    let mut command = Command::new("sh");
    command.arg(top().join("scripts/wheel.sh")).env("BUILT", built()).env("OUT", out);
    // The list of licences asks cargo for metadata of the whole workspace; here one file stands for it.
    done(command.env("NOTICES", top().join("LICENSE-MIT")).env("SOURCE_DATE_EPOCH", "1700000000"))
        .trim()
        .to_owned()
}

#[test]
fn the_wheel_is_the_same_twice_and_runs_alone() {
    let installed = Installed::once();
    let again = pack(&installed.place.path().join("again"));
    assert!(std::fs::read(again).unwrap() == std::fs::read(&installed.wheel).unwrap(), "two wheels differ");
    let run = stored("report.in/true.data", &installed.place.path().join("alone"));
    let script = "import kprism, sys\n\
        run = kprism.open(sys.argv[1])\n\
        print(kprism.__version__, len(run.tables), run.manifest['command'][0], run.table('tasks').columns[0])";
    let said = done(installed.python("alone").args(["-c", script]).arg(&run));
    let version = env!("CARGO_PKG_VERSION");
    assert!(said.starts_with(version) && said.contains(" true task"), "{said}");
    // The console script becomes the program, which finds its parts in the package.
    let program = installed.place.path().join("alone/bin/kprism");
    let mut alone = Command::new(&program);
    assert_eq!(done(alone.arg("--version").env_remove("KPRISM")), format!("kprism {version}\n"));
    let items = Command::new(&program).args(["check", "--json"]).env_remove("KPRISM").output().unwrap();
    let items: serde_json::Value = serde_json::from_slice(&items.stdout).unwrap();
    let agent = items.as_array().unwrap().iter().find(|item| item["name"] == "guest agent").unwrap();
    assert!(agent["found"].as_str().unwrap().contains("site-packages/kprism/"), "{agent}");
}

#[test]
fn tables_have_the_reports_sums_in_every_reader() {
    let installed = Installed::once();
    let place = tempfile::tempdir().unwrap();
    let runs = ["report.in/true.data", "diff.in/plain.data"].map(|name| stored(name, place.path()));
    done(installed.script("tables.py").args(runs));
}

#[test]
fn faults_are_exceptions_in_the_programs_words() {
    let installed = Installed::once();
    let place = tempfile::tempdir().unwrap();
    done(installed.script("faults.py").arg(stored("report.in/true.data", place.path())));
}

#[test]
fn the_tour_runs_by_the_console_script() {
    needs(&[QEMU, APT]);
    let installed = Installed::once();
    let place = tempfile::tempdir().unwrap();
    let commands = done(
        Command::new("python3")
            .arg(top().join("tests/dist/console.py"))
            .arg(top().join("docs/tour.md"))
            .args(["--skip", "tests/dist/skip.tsv", "A tour"])
            .current_dir(top()),
    );
    let bin = installed.place.path().join("packages/bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut ran = 0;
    for command in commands.lines() {
        done(
            Command::new("sh")
                .args(["-c", command])
                .env("PATH", &path)
                .env_remove("KPRISM")
                .current_dir(&place),
        );
        ran += 1;
    }
    assert!(ran > 15, "{ran} commands");
}

#[test]
fn the_notebooks_draw_their_figures() {
    needs(&[QEMU, APT]);
    let installed = Installed::once();
    let place = tempfile::tempdir().unwrap();
    let books = ["interrupts-off", "tlb-misses", "coverage-by-window"];
    let paths = books.map(|name| top().join(format!("python/notebooks/{name}.ipynb")));
    // Jupyter finds the kernel by its description, which starts the python of PATH.
    let bin = installed.place.path().join("packages/bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let share = python_packages().join("share/jupyter");
    let mut command = installed.script("notebooks.py");
    done(command.args(paths).env("PATH", path).env("JUPYTER_PATH", share).env("RUNS", place.path()));
}

#[test]
fn spark_decodes_the_same_when_a_worker_is_killed() {
    needs(&[JAVA, QEMU, APT]);
    turn(3, 0);
    let installed = Installed::once();
    let place = tempfile::tempdir().unwrap();
    let runs = [("true", "/bin"), ("ls", "/bin")].map(|(program, argument)| {
        let run = place.path().join(format!("{program}.data"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_kprism"));
        done(command.args(["lab", "run", "-o"]).arg(&run).args(["--", program, argument]));
        run
    });
    let mut command = installed.script("spark.py");
    let lake = place.path().join("lake");
    command.arg(top().join("contrib/spark/decode.py")).arg(&installed.wheel).arg(&lake).args(runs);
    // Each JVM lives for a minute: its second compiler would work for half of it.
    command.env("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC");
    // The workers' Python has Arrow, and no kprism.
    done(command.env("KPRISM_WORKERS_PYTHON", python_packages().join("bin/python")));
    // What Spark wrote, others read.
    done(installed.script("lake.py").arg(lake));
}

kprism_test::main!();
