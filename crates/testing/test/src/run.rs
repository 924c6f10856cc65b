// SPDX-License-Identifier: MIT OR Apache-2.0
//! Registered tests → libtest-mimic, which prints and counts them as the built-in runner does.

use std::any::Any;
use std::fmt::Debug;
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// A test of this file.
pub struct Test {
    /// Where it is, beginning with the file's own name.
    pub module: &'static str,
    /// The function's name.
    pub name: &'static str,
    /// Why it is ignored unless asked for.
    pub ignored: Option<&'static str>,
    /// The test itself.
    pub run: fn() -> Result<(), String>,
}

inventory::collect!(Test);

/// What a test may return.
pub trait Ends {
    /// An error fails the test.
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

/// What `skip` unwinds with.
pub(crate) struct Skipped(pub String);

/// Runs the tests of this file as the command line says.
pub fn run() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|n| n.parse().ok());
    }
    // With the flag, libtest-mimic would not say why it is ignored: the flag is for when that is asked about.
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

/// One test, on a thread that has its name: so a panic's message says which test it is, as it always did.
fn one(name: String, run: fn() -> Result<(), String>) -> Result<Completion, Failed> {
    let thread = std::thread::Builder::new().name(name).spawn(run);
    match thread.map_err(Failed::from)?.join() {
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
