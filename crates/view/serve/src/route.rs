// SPDX-License-Identifier: MIT OR Apache-2.0
//! A path behind the token, and a query, become a route.
//!
//! Paths are compared as they are: nothing in them is decoded, and no part of one becomes the name of a file. A query may have
//! each of the words of its route once and no others, so that nothing is asked for and ignored.

use std::borrow::Cow;

use form_urlencoded::parse;

/// Maximum length of a query, bytes. Names of C++ functions are long.
pub const MAX_QUERY: usize = 16 << 10;

/// A view of a run: a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// Flow or durations.
    Report,
    /// TLB misses.
    Tlb,
    /// Records of probes.
    Probe,
    /// Initcalls of a boot.
    Boot,
    /// Coverage by gcov's counters.
    Cover,
}

impl View {
    /// All views with the last part of their paths.
    pub const ALL: [(View, &'static str); 5] = [
        (View::Report, "report"),
        (View::Tlb, "tlb"),
        (View::Probe, "probe"),
        (View::Boot, "boot"),
        (View::Cover, "cover"),
    ];

    /// The last part of its path.
    pub fn word(self) -> &'static str {
        View::ALL.iter().find(|(view, _)| *view == self).map_or("", |(_, word)| word)
    }
}

/// A request of a page for data beside itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Asked {
    /// A function's instructions and source lines with counts.
    Source {
        /// Its name.
        name: String,
        /// Its module.
        module: String,
        /// Its begin, where several functions have that name.
        start: Option<u64>,
    },
    /// Lines of `kprism script`.
    Lines {
        /// Every instruction, or calls as they nest.
        calls: bool,
        /// Only this CPU.
        cpu: Option<u16>,
        /// Only this thread or process. A CPU, a task or both are named.
        task: Option<u32>,
        /// From this time on, ns.
        from: u64,
        /// Up to this time, ns.
        to: u64,
    },
    /// A whole tree of calling contexts.
    Tree(Tree),
}

/// The scope of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tree {
    /// All tasks.
    All,
    /// A task by its number in the page.
    Task(u32),
    /// A system call by name.
    Syscall(String),
}

/// A request that can be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// The list of runs.
    Index,
    /// A page of a run.
    Page(usize, View),
    /// Progress of a run's page that is being made.
    Progress(usize, View),
    /// Two runs compared.
    Diff(usize, usize),
    /// Data of a run, for a page that was made from the recording of this identity.
    Data(usize, String, Asked),
}

/// A request that cannot be answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wrong {
    /// There is no such path.
    Path,
    /// The query is not one of its path; says why.
    Query(String),
}

/// A query's words and values.
struct Query<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Query<'q> {
    fn new(text: &'q str) -> Result<Self, Wrong> {
        if text.len() > MAX_QUERY {
            return Err(Wrong::Query(format!("longer than {MAX_QUERY} bytes")));
        }
        Ok(Query(parse(text.as_bytes()).collect()))
    }

    /// Takes the value of a word, which may be there once.
    fn take(&mut self, word: &str) -> Option<String> {
        let at = self.0.iter().position(|(key, _)| key == word)?;
        Some(self.0.remove(at).1.into_owned())
    }

    fn need(&mut self, word: &str) -> Result<String, Wrong> {
        self.take(word).ok_or_else(|| Wrong::Query(format!("{word} is missing")))
    }

    fn number<T: TryFrom<u64>>(&mut self, word: &str) -> Result<T, Wrong> {
        let number = self.number_if(word)?;
        number.ok_or_else(|| Wrong::Query(format!("{word} is missing")))
    }

    fn number_if<T: TryFrom<u64>>(&mut self, word: &str) -> Result<Option<T>, Wrong> {
        let Some(text) = self.take(word) else { return Ok(None) };
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let value = digits.then(|| text.parse::<u64>().ok()).flatten().and_then(|n| T::try_from(n).ok());
        value.map(Some).ok_or_else(|| Wrong::Query(format!("{word} is no such number")))
    }

    /// Refuses what nobody took.
    fn end<T>(self, value: T) -> Result<T, Wrong> {
        match self.0.first() {
            None => Ok(value),
            Some((word, _)) => Err(Wrong::Query(format!("{word:.40} is not asked for here, or twice"))),
        }
    }
}

/// The route of a path, which begins with a slash, and its query.
///
/// # Errors
/// There is no such path, or the query is not one of it.
pub fn route(path: &str, query: Option<&str>) -> Result<Route, Wrong> {
    let mut query = Query::new(query.unwrap_or_default())?;
    let parts: Vec<&str> = path.strip_prefix('/').ok_or(Wrong::Path)?.splitn(5, '/').collect();
    match parts[..] {
        [""] => query.end(Route::Index),
        ["diff"] => {
            let route = Route::Diff(query.number("old")?, query.number("new")?);
            query.end(route)
        }
        ["run", run, what, "progress"] => {
            let view = View::ALL.iter().find(|(_, word)| *word == what).ok_or(Wrong::Path)?.0;
            query.end(Route::Progress(number(run).ok_or(Wrong::Path)?, view))
        }
        ["run", run, what] => {
            let run = number(run).ok_or(Wrong::Path)?;
            if let Some((view, _)) = View::ALL.iter().find(|(_, word)| *word == what) {
                return query.end(Route::Page(run, *view));
            }
            if !["source", "lines", "tree"].contains(&what) {
                return Err(Wrong::Path);
            }
            let id = query.need("id")?;
            let asked = match what {
                "source" => source(&mut query)?,
                "lines" => lines(&mut query)?,
                _ => tree(&mut query)?,
            };
            query.end(Route::Data(run, id, asked))
        }
        _ => Err(Wrong::Path),
    }
}

/// A run's number as this crate writes it: digits, no zeros before them.
fn number(text: &str) -> Option<usize> {
    let number: usize = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

fn source(query: &mut Query<'_>) -> Result<Asked, Wrong> {
    let start = query.take("start").map(|text| {
        let digits = text.strip_prefix("0x").filter(|digits| !digits.starts_with('+'));
        let value = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        value.ok_or_else(|| Wrong::Query("start is no address 0x…".to_owned()))
    });
    Ok(Asked::Source { name: query.need("name")?, module: query.need("module")?, start: start.transpose()? })
}

fn lines(query: &mut Query<'_>) -> Result<Asked, Wrong> {
    let calls = match query.need("subject")?.as_str() {
        "insns" => false,
        "calls" => true,
        _ => return Err(Wrong::Query("subject is insns or calls".to_owned())),
    };
    let (cpu, task) = (query.number_if("cpu")?, query.number_if("task")?);
    if cpu.is_none() && task.is_none() {
        return Err(Wrong::Query("cpu or task is missing".to_owned()));
    }
    Ok(Asked::Lines { calls, cpu, task, from: query.number("from")?, to: query.number("to")? })
}

fn tree(query: &mut Query<'_>) -> Result<Asked, Wrong> {
    let tree = match query.need("scope")?.as_str() {
        "all" => Tree::All,
        "task" => Tree::Task(query.number("task")?),
        "syscall" => Tree::Syscall(query.need("name")?),
        _ => return Err(Wrong::Query("scope is all, task or syscall".to_owned())),
    };
    Ok(Asked::Tree(tree))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_are_compared_as_they_are() {
        assert_eq!(route("/", None), Ok(Route::Index));
        assert_eq!(route("/run/3/tlb", None), Ok(Route::Page(3, View::Tlb)));
        assert_eq!(route("/run/3/tlb/progress", None), Ok(Route::Progress(3, View::Tlb)));
        assert_eq!(route("/diff", Some("old=0&new=1")), Ok(Route::Diff(0, 1)));
        let wrong = [
            "",
            "run/0/report",
            "//",
            "/run/0",
            "/run/0/",
            "/run/0/report/",
            "/run/0/source/progress",
            "/run/0/report/progress/",
            "/run/00/report",
            "/run/+1/report",
            "/run/-1/report",
            "/run/99999999999999999999999/report",
            "/run/0/../../etc/passwd",
            "/../../etc/passwd",
            "/run/..%2f..%2fetc/report",
            "/run/0/report%00",
            "/run/0/manifest.json",
            "/run/0/REPORT",
            "/%72un/0/report",
            "/run/0/report;x",
            "/run/0/tables/functions.parquet",
            "/\\run\\0\\report",
        ];
        for path in wrong {
            assert_eq!(route(path, None), Err(Wrong::Path), "{path}");
        }
    }

    #[test]
    fn a_query_has_its_words_once_and_no_others() {
        let of = |query| route("/run/0/source", Some(query));
        let asked = Asked::Source { name: "a b&<".into(), module: "[kernel]".into(), start: Some(16) };
        assert_eq!(
            of("id=1&name=a+b%26%3C&module=%5Bkernel%5D&start=0x10"),
            Ok(Route::Data(0, "1".into(), asked))
        );
        for query in [
            "",
            "id=1&name=a",
            "id=1&module=a",
            "name=a&module=b",
            "id=1&name=a&name=b&module=c",
            "id=1&name=a&module=b&x=1",
            "id=1&name=a&module=b&start=1",
            "id=1&name=a&module=b&start=0x",
            "id=1&name=a&module=b&start=0x10000000000000000",
            "id=1&name=a&module=b&start=0x+1",
        ] {
            assert!(matches!(of(query), Err(Wrong::Query(_))), "{query}");
        }
        let of = |query| route("/run/0/lines", Some(query));
        assert!(of("id=1&subject=insns&cpu=0&from=0&to=18446744073709551615").is_ok());
        assert!(of("id=1&subject=insns&task=4294967295&from=0&to=1").is_ok());
        for query in [
            "id=1&subject=insns&from=0&to=1",
            "id=1&subject=insns&task=4294967296&from=0&to=1",
            "id=1&subject=insns&task=&from=0&to=1",
            "id=1&subject=insns&cpu=65536&from=0&to=1",
            "id=1&subject=insns&cpu=0&from=-1&to=1",
            "id=1&subject=insns&cpu=0&from=0&to=18446744073709551616",
            "id=1&subject=packets&cpu=0&from=0&to=1",
        ] {
            assert!(matches!(of(query), Err(Wrong::Query(_))), "{query}");
        }
        assert!(matches!(route("/", Some(&"a".repeat(MAX_QUERY + 1))), Err(Wrong::Query(_))));
        assert!(matches!(route("/run/0/report", Some("x=1")), Err(Wrong::Query(_))));
    }

    proptest! {
        /// Any text gives a route or a refusal.
        #[test]
        fn any_path_and_query(path in "(/(run|diff|[0-9]{1,3}|source|lines|tree|\\PC{0,5})){0,5}", query in "\\PC{0,60}") {
            let _ = route(&path, Some(&query));
        }

        /// A function's name goes through the query unchanged.
        #[test]
        fn names_go_through(name in "\\PC{0,40}", module in "\\PC{0,20}") {
            let query = form_urlencoded::Serializer::new(String::new())
                .extend_pairs([("id", "i"), ("name", &name), ("module", &module)])
                .finish();
            let asked = Asked::Source { name, module, start: None };
            prop_assert_eq!(route("/run/7/source", Some(&query)), Ok(Route::Data(7, "i".into(), asked)));
        }
    }
}
