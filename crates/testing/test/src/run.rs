// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs registered tests with libtest-mimic, which prints and counts them as the built-in runner does.

use std::any::Any;
use std::fmt::Debug;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A test that takes this long is slow.
const SLOW: Duration = Duration::from_secs(5);

/// A registered test.
pub struct Test {
    /// Its module path, beginning with the file's name.
    pub module: &'static str,
    /// The function's name.
    pub name: &'static str,
    /// The reason for `#[ignore]`, if it has one.
    pub ignored: Option<&'static str>,
    /// The test function.
    pub run: fn() -> Result<(), String>,
}

inventory::collect!(Test);

/// Return types of tests.
pub trait Ends {
    /// Converts the result. An error fails the test.
    fn ends(self) -> Result<(), String>;
}

impl Ends for () {
    fn ends(self) -> Result<(), String> {
        Ok(())
    }
}

impl<E: Debug> Ends for Result<(), E> {
    fn ends(self) -> Result<(), String> {
        self.map_err(|error| format!("{error:?}"))
    }
}

/// Payload with which `skip` unwinds.
pub(crate) struct Skipped(pub String);

/// Runs the tests of this file according to the command line.
pub fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|n| n.parse().ok());
    }
    // With its flag for ignored tests, libtest-mimic would not print the reason. So the flag is set only if ignored
    // tests are requested.
    let asked = arguments.ignored || arguments.include_ignored;
    let mut tests: Vec<(String, &Test)> =
        inventory::iter::<Test>.into_iter().map(|test| (path(test), test)).collect();
    tests.sort_by(|a, b| a.0.cmp(&b.0));
    let trials = tests.into_iter().map(|(path, test)| {
        let thread = path.clone();
        let runner = move || match test.ignored {
            Some(why) if !asked => Ok(Completion::ignored_with(why)),
            _ => one(thread, test.run),
        };
        Trial::ignorable_test(path, runner).with_ignored_flag(asked && test.ignored.is_some())
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn path(test: &Test) -> String {
    match test.module.split_once("::") {
        Some((_, inner)) => format!("{inner}::{}", test.name),
        None => test.name.to_owned(),
    }
}

/// Runs one test on a thread with the test's name, so that a panic's message shows which test it is. Prints how long a slow
/// one took.
fn one(name: String, run: fn() -> Result<(), String>) -> Result<Completion, Failed> {
    let began = Instant::now();
    let thread = std::thread::Builder::new().name(name.clone()).spawn(run).map_err(Failed::from)?;
    let ended = thread.join();
    if began.elapsed() >= SLOW {
        println!("{:6.1} s  {name}", began.elapsed().as_secs_f64());
    }
    match ended {
        Ok(Ok(())) => Ok(Completion::Completed),
        Ok(Err(why)) => Err(Failed::from(why)),
        Err(panic) => match panic.downcast::<Skipped>() {
            Ok(skipped) => Ok(Completion::ignored_with(skipped.0)),
            Err(panic) => Err(Failed::from(message(&*panic))),
        },
    }
}

fn message(panic: &dyn Any) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text").to_owned()
}
