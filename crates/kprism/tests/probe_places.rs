// SPDX-License-Identifier: MIT OR Apache-2.0
//! `record probe` natively: where in the code a name or a line is, and what the bytes there mean. Programs in C, C++ and
//! Rust that say themselves what is right; GDB judges more of them in `tests/probe/matrix.py`, of which a slice runs here.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kprism_test::{BPF, GDB, ROOT, UPROBES, needs, skip, test};
use serde_json::{Value, json};

fn ready() {
    needs(&[ROOT, BPF, UPROBES]);
}

/// Compilers and tools that are not everywhere.
fn tool(name: &str) {
    if Command::new(name).arg("--version").output().is_err() {
        skip(format!("needs {name}"));
    }
}

/// Clang, which may be there under a numbered name only.
fn clang() -> String {
    let numbered = (11..=25).rev().map(|version| format!("clang-{version}"));
    let runs = |name: &String| Command::new(name).arg("--version").output().is_ok();
    let found = std::iter::once("clang".to_owned()).chain(numbered).find(runs);
    found.unwrap_or_else(|| skip("needs clang: sh scripts/setup.sh test"))
}

fn kprism(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_kprism")).args(args).output().expect("kprism runs")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn built(dir: &Path, name: &str, source: &str, command: &[&str]) -> PathBuf {
    let (file, program) = (dir.join(name), dir.join(name.split('.').next().expect("a stem")));
    std::fs::write(&file, source).expect("a source");
    let status =
        Command::new(command[0]).args(&command[1..]).arg("-g").arg("-o").arg(&program).arg(&file).output();
    let output = status.expect("a compiler");
    assert!(output.status.success(), "{}", said(&output));
    program
}

/// What one run of the program gave: values of each hit, and what was said.
fn probed(program: &Path, place: &str, more: &[&str]) -> (Vec<Value>, String) {
    let run = program.with_extension("run");
    let program = program.to_str().expect("a path");
    let args = [&["record", "probe", place, "-o", run.to_str().unwrap()], more, &["--", program]].concat();
    let output = kprism(&args);
    let text = said(&output);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{text}");
    let output = kprism(&["script", "probe", "--json", "-i", run.to_str().unwrap()]);
    let lines = String::from_utf8(output.stdout).unwrap();
    (
        lines
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["values"].clone())
            .collect(),
        text,
    )
}

fn refused(program: &Path, place: &str, more: &[&str]) -> String {
    let run = program.with_extension("run");
    let program = program.to_str().expect("a path");
    let args = [&["record", "probe", place, "-o", run.to_str().unwrap()], more, &["--", program]].concat();
    let output = kprism(&args);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    said(&output)
}

const INLINED: &str = r#"
#include <stdio.h>
volatile int sink;
static inline int twice(int v) { sink = v; return sink * 2; }
__attribute__((noinline)) int one(int v) { return twice(v) + 1; }
__attribute__((noinline)) int two(int v) { return twice(v) + twice(v + 1); }
int (*far)(int) = twice;
int main(void) { int sum = 0; for (int i = 0; i < 5; i++) sum += one(i) + two(i) + far(i); return sum == 0; }
"#;

#[test]
fn inlined_copies_are_probed_too() {
    ready();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "inlined.c", INLINED, &["gcc", "-O2"]);
    let (hits, text) = probed(&program, "twice", &["--collect", "v"]);
    assert_eq!(hits.len(), 20, "{text}");
    let sum: i64 = hits.iter().map(|hit| hit["v"].as_i64().expect("a value")).sum();
    assert_eq!(sum, 10 + 10 + 15 + 10, "{text}");
    assert!(text.contains("twice is 4 places in the code, 4 are probed"), "{text}");
    assert!(text.contains("twice: 20 hits at 4 places in all"), "{text}");
    // What is left out, and what is enough, is counted over all places.
    let (hits, text) = probed(&program, "twice", &["--collect", "v", "--skip", "3", "--pass", "4"]);
    assert_eq!(hits.len(), 4, "{text}");
    let (hits, text) = probed(&program, "twice%return", &["--collect", "$retval"]);
    assert_eq!(hits.len(), 5, "{text}");
    assert!(text.contains("inlined in 3 places too, which have no return"), "{text}");
    // The function of a file.
    assert_eq!(probed(&program, "inlined.c:twice", &[]).0.len(), 20);
    let text = refused(&program, "other.c:twice", &[]);
    assert!(text.contains("`twice` is in other files than other.c"), "{text}");
    // A line in it is as many places.
    let (hits, text) = probed(&program, "inlined.c:4", &[]);
    assert_eq!((hits.len(), text.contains("20 hits at 4 places")), (20, true), "{text}");
    // GDB counts an instruction of another line too, before which this line goes on; that is said.
    assert!(text.contains("inlined.c:4 only goes on at 0x"), "{text}");
}

const FOLDED: &str = r#"
volatile int sink;
static inline __attribute__((always_inline)) void put(int v)
{
	int k = v * 2 + 1;
	sink = k;
	sink = v;
}
__attribute__((noinline)) void both(int a) { put(a); put(3); }
int main(void) { for (int i = 0; i < 5; i++) both(i); return 0; }
"#;

/// How often GDB stops at a place.
fn stops_of_gdb(program: &Path, place: &str) -> usize {
    let script = program.with_extension("py");
    let text = format!(
        "import gdb\ngdb.execute('set breakpoint pending off')\ngdb.Breakpoint('{place}')\nn = 0\ngdb.execute('run', to_string=True)\n\
         while gdb.selected_inferior().pid:\n    n += 1\n    gdb.execute('continue', to_string=True)\nprint('stops', n)\n"
    );
    std::fs::write(&script, text).expect("a script");
    let output = Command::new("gdb").args(["-nx", "-batch", "-x"]).arg(script).arg(program).output();
    let text = String::from_utf8(output.expect("gdb").stdout).unwrap();
    let stops = text.lines().find_map(|line| line.strip_prefix("stops "));
    stops.expect("GDB counts").parse().expect("a number")
}

#[test]
fn a_line_that_a_compiler_has_worked_out_is_counted() {
    ready();
    needs(&[GDB]);
    let dir = tempfile::tempdir().unwrap();
    for level in ["-O1", "-O2"] {
        let program = built(dir.path(), "folded.c", FOLDED, &["gcc", level]);
        let (hits, text) = probed(&program, "folded.c:5", &["--collect", "v"]);
        assert_eq!(hits.len(), stops_of_gdb(&program, "folded.c:5"), "{level}: {text}");
        let sum: i64 = hits.iter().map(|hit| hit["v"].as_i64().expect("a value")).sum();
        assert_eq!((hits.len(), sum), (10, 10 + 5 * 3), "{level}: {text}");
    }
}

const FIELDS: &str = r#"
struct __attribute__((packed)) packed {
  unsigned char c; int a : 31; int b : 31; unsigned u : 20; long l : 60; unsigned char t : 3; long z : 61;
} it = { 9, -77777777, 99999999, 777777, -12345678901234, 5, -99999999999999 };
volatile int sink;
__attribute__((noinline)) int work(struct packed *p) { sink = p->a; return p->b; }
int main(void) { return work(&it) == 0; }
"#;

#[test]
fn bit_fields_that_cross_their_units() {
    ready();
    for flags in [["gcc", "-gdwarf-2"], ["gcc", "-gdwarf-4"], ["gcc", "-gdwarf-5"]] {
        bit_fields(&flags);
    }
}

#[test]
fn bit_fields_that_cross_their_units_by_clang() {
    ready();
    let clang = clang();
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        bit_fields(&[&clang, version]);
    }
}

fn bit_fields(command: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "fields.c", FIELDS, command);
    let place = "work if p->a == -77777777 && p->b == 99999999 && p->u == 777777 && p->z == -99999999999999";
    let (hits, text) = probed(&program, place, &["--collect", "p->l,p->t,*p"]);
    let whole = json!({"c": 9, "a": -77777777, "b": 99999999, "u": 777777, "l": -12345678901234_i64, "t": 5,
        "z": -99999999999999_i64});
    let expected = json!({"p->l": -12345678901234_i64, "p->t": 5, "*p": whole});
    assert_eq!(hits, [expected], "{command:?}: {text}");
}

const TEXTS: &str = r#"
#include <string.h>
char full[4] = {'a', 'b', 'c', 'd'}, after[8] = "abc", utf[12] = "gr\xc3\xbc\xc3\x9f", latin[4] = "a\xc8z", longer[300];
unsigned char data[8] = {1, 0, 2, 200, 0, 'x', 0, 0};
char *at = longer;
double nan_, infinite;
__int128 wide = -5;
unsigned __int128 huge = ((unsigned __int128)1 << 100) + 7;
volatile int sink;
__attribute__((noinline)) int work(int n) { int line[n]; for (int i = 0; i < n; i++) line[i] = i * 3; sink = line[n - 1];
  return sink; }
int main(void) { memset(longer, 'L', 299); nan_ = 0.0 / sink; infinite = 1.0 / sink; memcpy(after + 4, "xyz", 4);
  work(3); memcpy(after + 4, "uvw", 4); work(4); return 0; }
"#;

#[test]
fn texts_end_where_they_end() {
    ready();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "texts.c", TEXTS, &["gcc", "-O0"]);
    let collect = "full,after,utf,latin,data,at,nan_,infinite,wide,huge";
    let (hits, text) = probed(&program, "work", &["--collect", collect]);
    let cut = format!("{}…", "L".repeat(127));
    assert_eq!(
        hits[0],
        json!({"full": "abcd", "after": "abc\0xyz", "utf": "grüß", "latin": [97, 200, 122], "data": [1, 0, 2, 200, 0, 120],
            "at": cut, "nan_": "NaN", "infinite": "inf", "wide": -5, "huge": "1267650600228229401496703205383"}),
        "{text}"
    );
    // By what a string says, not by what lies behind it.
    let run = dir.path().join("run");
    let (run, path) = (run.to_str().unwrap(), program.to_str().unwrap());
    let output = kprism(&["record", "probe", "work", "--by", "full,after", "-o", run, "--", path]);
    assert!(output.status.success(), "{}", said(&output));
    let report = String::from_utf8(kprism(&["report", "probe", "-i", run]).stdout).unwrap();
    assert!(report.contains("2  \"abcd\", \"abc\"\n"), "{report}");
    // An array whose length only the program knows.
    let text = refused(&program, "texts.c:11", &["--collect", "line"]);
    assert!(text.contains("the length of `line` is known only when it runs"), "{text}");
    let (hits, text) = probed(&program, "texts.c:11", &["--collect", "*(int (*)[3])line,$eax,$al"]);
    assert_eq!(hits[0]["*(int (*)[3])line"], json!([0, 3, 6]), "{text}");
}

#[test]
fn a_line_is_where_the_frame_is_made() {
    ready();
    let dir = tempfile::tempdir().unwrap();
    let source = "volatile int sink;\n__attribute__((noinline)) int work(int n) {\n  int own = n * 2;\n  sink = own;\n  return own;\n}\nint main(void) { work(4); work(5); return 0; }\n";
    let program = built(dir.path(), "frame.c", source, &["gcc", "-O0"]);
    let (hits, text) = probed(&program, "frame.c:2", &["--collect", "n"]);
    assert_eq!(hits, [json!({"n": 4}), json!({"n": 5})], "{text}");
    let text = refused(&program, "work", &["--collect", "own"]);
    assert!(text.contains("`own` is not set yet where the function begins"), "{text}");
}

/// `noipa`: gcc 14 passes a member instead of `this` to a clone, and leaves `this` to the caller's debug information.
const CLASSES: &str = r#"
#include <string>
#include <vector>
namespace ns { int counter = 7;
  struct Base { int b; virtual ~Base() {} }; struct Other { int o; };
  struct Der : Base, Other { int d; std::vector<int> v; static int total;
    __attribute__((noipa)) int method(int k) { asm volatile(""); return d + k; }
    __attribute__((noipa)) int method(double) { asm volatile(""); return d; } };
  int Der::total = 123; enum class Color { Red = 1, Green = 5 }; }
template <class T> __attribute__((noipa)) T most(T a, T b) { asm volatile(""); return a > b ? a : b; }
__attribute__((noipa)) int refs(int &r, const ns::Der &d, ns::Color c) { asm volatile(""); return r + d.d + (int)c; }
__attribute__((noipa)) int value(std::string s, int n) { asm volatile(""); return s.size() + n; }
int main() { ns::Der d; d.b = 1; d.o = 2; d.d = 3; d.v = {1, 2}; int n = 41;
  return refs(n, d, ns::Color::Green) + d.method(5) + d.method(1.5) + most(1, 2) + most(3L, 4L) + value("four", 6) == 0; }
"#;

#[test]
fn what_cpp_has() {
    ready();
    tool("g++");
    let dir = tempfile::tempdir().unwrap();
    for level in ["-O0", "-O2"] {
        let program = built(dir.path(), "classes.cpp", CLASSES, &["g++", level]);
        let collect = "r,d.b,d.o,d.d,c,sizeof(ns::Der),sizeof(d),ns::counter";
        let (hits, text) =
            probed(&program, "refs if r == 41 && c == ns::Color::Green", &["--collect", collect]);
        let size = hits[0]["sizeof(d)"].clone();
        let expected = json!({"r": 41, "d.b": 1, "d.o": 2, "d.d": 3, "c": "Green", "sizeof(ns::Der)": 48, "sizeof(d)": size,
            "ns::counter": 7});
        assert_eq!(hits, [expected], "{level}: {text}");
        assert!(probed(&program, "refs if r > 1000000", &[]).0.is_empty());
        let (hits, text) = probed(&program, "ns::Der::method(int)", &["--collect", "k,d,b,total,this->o"]);
        assert_eq!(hits, [json!({"k": 5, "d": 3, "b": 1, "total": 123, "this->o": 2})], "{level}: {text}");
        let (hits, text) = probed(&program, "Der::method", &["--collect", "d"]);
        assert_eq!(hits.len(), 2, "{level}: {text}");
        let (hits, text) = probed(&program, "most<long>", &["--collect", "a,b"]);
        assert_eq!(hits, [json!({"a": 3, "b": 4})], "{level}: {text}");
        assert_eq!(probed(&program, "most", &[]).0.len(), 2);
        let (hits, text) = probed(&program, "value", &["--collect", "s._M_string_length,n"]);
        assert_eq!(hits, [json!({"s._M_string_length": 4, "n": 6})], "{level}: {text}");
        let (hits, text) = probed(&program, "refs", &["--collect", "d"]);
        assert_eq!(
            (&hits[0]["d"]["<Base>"]["b"], &hits[0]["d"]["<Other>"]["o"]),
            (&json!(1), &json!(2)),
            "{text}"
        );
    }
}

const OWNED_CPP: &str = r#"#include <string>
#include <string_view>
#include <vector>
#define KEEP __attribute__((noipa))
KEEP int owned(int n, const std::string &text, std::string_view part, const std::vector<short> &all,
               const std::vector<std::string> &names, const std::vector<bool> &bits) {
  int sum = n + text.size();
  asm volatile("" ::: "memory");
  return sum;
}
int main() {
  for (int n = 0; n < 4; n++) {
    std::string text = "text " + std::to_string(n);
    if (n == 3) text += std::string("\0\33[31m, and too long to be kept in the object itself", 52);
    std::vector<short> all;
    for (short i = 0; i < n * 100; i++) all.push_back(i - 1);
    owned(n, text, std::string_view(text).substr(0, n), all, {text, "second"}, {true, false});
  }
}
"#;

/// C++'s strings and vectors: by their number of elements, as text; also as conditions, keys and elements.
#[test]
fn what_cpp_has_elements_of() {
    ready();
    tool("g++");
    let dir = tempfile::tempdir().unwrap();
    for level in ["-O0", "-O2"] {
        let program = built(dir.path(), "owned.cpp", OWNED_CPP, &["g++", "-std=c++17", level]);
        let collect = "n,text,part,all,all[150],names[1],names[0][0],text._M_string_length,bits";
        let (hits, said) = probed(&program, "owned", &["--collect", collect]);
        assert_eq!(hits.len(), 4, "{level}: {said}");
        for (n, hit) in hits.iter().enumerate() {
            let mut whole = format!("text {n}");
            if n == 3 {
                whole += "\0\u{1b}[31m, and too long to be kept in the object itself";
            }
            assert_eq!(
                (&hit["n"], &hit["text"], &hit["part"]),
                (&json!(n), &json!(whole), &json!(whole[..n])),
                "{hit}"
            );
            assert_eq!((&hit["names[1]"], &hit["names[0][0]"]), (&json!("second"), &json!(b't')), "{hit}");
            assert_eq!(hit["text._M_string_length"], whole.len(), "{hit}");
            let all = hit["all"].as_array().unwrap();
            let kept: Vec<Value> = (0..64.min(100 * n) as i64).map(|i| Value::from(i - 1)).collect();
            assert_eq!(all[..kept.len()], kept, "{hit}");
            assert_eq!(all[kept.len()..], [json!("…")][..usize::from(n > 0)], "{hit}");
            assert_eq!(hit.get("all[150]"), (n > 1).then_some(&json!(149)), "{hit}");
            // It has bits, not elements: its members are shown.
            assert!(hit["bits"].is_object(), "{hit}");
        }
        for (condition, expected) in [
            ("text == \"text 1\"", vec![1]),
            ("text != \"text 1\"", vec![0, 2, 3]),
            ("part == \"te\" && names[1] == \"second\"", vec![2]),
            ("part == \"\"", vec![0]),
            ("all[99] == 98", vec![1, 2, 3]),
            ("text[5] == '2'", vec![2]),
        ] {
            let (hits, said) = probed(&program, &format!("owned if {condition}"), &["--collect", "n"]);
            let hits: Vec<_> = hits.iter().map(|hit| hit["n"].as_u64().unwrap()).collect();
            assert_eq!(hits, expected, "{level}, {condition}: {said}");
        }
        // What a terminal is shown commands nothing.
        let run = dir.path().join("shown.run");
        let (run, own) = (run.to_str().unwrap(), program.to_str().unwrap());
        let output = kprism(&["record", "probe", "owned", "-o", run, "--by", "text", "--", own]);
        assert_eq!(output.status.code(), Some(0), "{}", self::said(&output));
        let shown = String::from_utf8(kprism(&["report", "probe", "-i", run]).stdout).unwrap();
        assert!(shown.contains("text 3") && !shown.contains('\u{1b}'), "{shown}");
    }
}

const SHAPES: &str = r#"
pub mod shape {
    pub enum Shape { Circle(f64), Rect { w: u32, h: u32 }, Empty }
    #[inline(never)]
    pub fn area(s: &Shape, scale: u32) -> u32 {
        std::hint::black_box(match s { Shape::Circle(r) => *r as u32, Shape::Rect { w, h } => w * h * scale, Shape::Empty => 0 })
    }
}
#[inline(never)]
fn texts(s: &str, o: Option<u32>) -> usize {
    let n = s.len();
    std::hint::black_box(n + o.unwrap_or(0) as usize)
}
fn main() {
    for s in [shape::Shape::Circle(1.5), shape::Shape::Rect { w: 3, h: 4 }, shape::Shape::Empty] { shape::area(&s, 2); }
    texts("abc", Some(7)); texts("", None);
}
"#;

#[test]
fn what_rust_has() {
    ready();
    tool("rustc");
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "shapes.rs", SHAPES, &["rustc", "-C", "opt-level=0"]);
    let (hits, text) = probed(&program, "shape::area", &["--collect", "scale,*s"]);
    let all = [json!({"Circle": {"__0": 1.5}}), json!({"Rect": {"w": 3, "h": 4}}), json!({"Empty": {}})];
    assert_eq!(hits, all.map(|s| json!({"scale": 2, "*s": s})), "{text}");
    let (hits, text) = probed(&program, "shapes.rs:12", &["--collect", "n,o,s.length"]);
    assert_eq!(
        hits,
        [
            json!({"n": 3, "o": {"Some": {"__0": 7}}, "s.length": 3}),
            json!({"n": 0, "o": {"None": {}}, "s.length": 0})
        ],
        "{text}"
    );
    // At the function the probe is behind the prologue, where the debug information says where everything is.
    let (hits, text) = probed(&program, "texts", &["--collect", "s.length"]);
    assert_eq!(hits, [json!({"s.length": 3}), json!({"s.length": 0})], "{text}");
    // Where a value was before the function has put it down, Rust does not say.
    let text = refused(&program, "texts%return", &["--collect", "s"]);
    assert!(text.contains("passed in a way that is not known: Rust leaves it open"), "{text}");
}

const OF_32_BITS: &str = r#"
volatile int sink;
__attribute__((noinline)) int f(int a, int b) { sink = a; return a * b; }
void _start(void)
{
	for (int i = 1; i <= 3; i++)
		sink += f(i, 10 * i);
	__asm__ volatile("int $0x80" :: "a"(1), "b"(0));
}
"#;

#[test]
fn programs_of_32_bits_are_refused() {
    ready();
    let dir = tempfile::tempdir().unwrap();
    let flags = ["-m32", "-O0", "-nostdlib", "-static", "-fno-stack-protector", "-fno-pie", "-no-pie"];
    let program = built(dir.path(), "m32.c", OF_32_BITS, &[&["gcc"][..], &flags].concat());
    for place in ["f", "f%return", "m32.c:3", "f+1"] {
        let text = refused(&program, place, &[]);
        assert!(text.contains("a program for 32-bit x86"), "{place}: {text}");
    }
    let explained = kprism(&["explain", "f if a > 1", "--exec", program.to_str().unwrap()]);
    assert_eq!(explained.status.code(), Some(2));
    assert!(said(&explained).contains("a program for 32-bit x86"), "{}", said(&explained));
}

/// The calling convention is not asked for where the debug information knows better: GCC does not say that `theirs` has
/// another one.
const CONVENTIONS: &str = r#"
struct point { int id; float w; };
struct mixed { double d; long l; };
long double ld(int a, int b) { return a + b; }
int mx(struct mixed m, double x, int b) { return (int)m.l + b + (x > 1); }
__attribute__((ms_abi)) int theirs(int a, long b) { return a + (int)b; }
struct point made(int a) { struct point p = { a, 1.5f }; return p; }
struct mixed both(int a) { struct mixed m = { 2.5, a }; return m; }
int main(void)
{
	for (int n = 1; n < 4; n++) {
		ld(10 + n, n);
		mx((struct mixed){ 1.5, 40 + n }, 0.5 * n, n);
		theirs(n, 7);
		made(90 + n);
		both(50 + n);
	}
	return 0;
}
"#;

#[test]
fn parameters_are_where_the_debug_information_says() {
    ready();
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "conventions.c", CONVENTIONS, &["gcc", "-O0"]);
    for (place, collect, expected) in [
        ("ld if a == 12", "a,b", vec![json!({"a": 12, "b": 2})]),
        ("mx if b > 2", "m.l,x,b", vec![json!({"m.l": 43, "x": 1.5, "b": 3})]),
        ("theirs if a == 2", "a,b", vec![json!({"a": 2, "b": 7})]),
        (
            "made%return",
            "$retval.id",
            vec![json!({"$retval.id": 91}), json!({"$retval.id": 92}), json!({"$retval.id": 93})],
        ),
        ("both%return if a == 52", "$retval.l", vec![json!({"$retval.l": 52})]),
    ] {
        let (hits, text) = probed(&program, place, &["--collect", collect]);
        assert_eq!(hits, expected, "{place}: {text}");
    }
    // No time of the call has passed there, behind the prologue or before it.
    let text = refused(&program, "ld if a == 12 && $duration > 0", &[]);
    assert!(text.contains("no time of the call has passed"), "{text}");
    // Registers are those at the entry.
    let (hits, text) = probed(&program, "ld if $edi == 12", &["--collect", "a"]);
    assert_eq!(hits, [json!({"a": 12})], "{text}");
}

const OWNED: &str = r#"
use std::hint::black_box;
#[inline(never)]
fn owned(n: usize, text: &str, whole: &String, all: &Vec<u16>, some: &[u16], bytes: &[u8], boxed: &Box<str>, path: &std::path::Path) -> usize {
    let sum = n + text.len();
    black_box((whole, all, some, bytes, boxed, path));
    black_box(sum)
}
fn main() {
    for n in 0..4usize {
        let whole = format!("text {n} \u{e4}\0");
        let all: Vec<u16> = (0..n as u16 * 100).collect();
        let boxed: Box<str> = whole.clone().into();
        owned(n, &whole[..n], &whole, &all, &all[..n.min(2)], whole.as_bytes(), &boxed, std::path::Path::new("/a/b"));
    }
}
"#;

/// Text and slices, which have no end but their number.
#[test]
fn what_rust_has_elements_of() {
    ready();
    tool("rustc");
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "owned.rs", OWNED, &["rustc", "-C", "opt-level=0"]);
    let place = "owned.rs:6";
    let (hits, text) =
        probed(&program, place, &["--collect", "n,text,*whole,*all,some,bytes,*boxed,path,(*all)[150]"]);
    assert_eq!(hits.len(), 4, "{text}");
    for (n, hit) in hits.iter().enumerate() {
        let whole = format!("text {n} \u{e4}\0");
        assert_eq!((&hit["n"], &hit["text"]), (&json!(n), &json!(whole[..n])), "{hit}");
        assert_eq!((&hit["*whole"], &hit["*boxed"]), (&json!(whole), &json!(whole)), "{hit}");
        assert_eq!((&hit["some"], &hit["path"]), (&json!(&[0, 1][..n.min(2)]), &json!("/a/b")), "{hit}");
        assert_eq!(hit["bytes"], json!(whole.as_bytes()), "{hit}");
        let all = hit["*all"].as_array().unwrap();
        let kept: Vec<Value> = (0..64.min(100 * n)).map(Value::from).collect();
        assert_eq!(all[..kept.len()], kept, "{hit}");
        // 64 have room in --strings 128.
        assert_eq!(all[kept.len()..], [json!("…")][..usize::from(n > 0)], "{hit}");
        // Behind the last nothing is read.
        assert_eq!(hit.get("(*all)[150]"), (n > 1).then_some(&json!(150)), "{hit}");
    }
    let counted = |condition: &str| {
        let (hits, text) = probed(&program, &format!("{place} if {condition}"), &["--collect", "n"]);
        (hits.iter().map(|hit| hit["n"].as_u64().unwrap()).collect::<Vec<_>>(), text)
    };
    for (condition, expected) in [
        ("text == \"te\"", vec![2]),
        ("text != \"te\"", vec![0, 1, 3]),
        ("text == \"\"", vec![0]),
        ("*whole == \"text 3 \u{e4}\\0\"", vec![3]),
        ("*boxed == \"text 1 \u{e4}\\0\" && bytes != \"text\"", vec![1]),
        ("path == \"/a/b\"", vec![0, 1, 2, 3]),
        ("bytes[0] == 't' && some.length > 1", vec![2, 3]),
    ] {
        assert_eq!(counted(condition).0, expected, "{condition}");
    }
    let (hits, text) = counted("(*all)[150] == 150");
    assert!(hits == [2, 3] && text.contains("2 × condition: bad read"), "{text}");
    let text = refused(&program, &format!("{place} if all == \"text\""), &[]);
    assert!(text.contains("is no string"), "{text}");
    // Counted by, whole: what lies behind the end of a text is no part of the key.
    let run = dir.path().join("by.run");
    let run = run.to_str().unwrap();
    let own = program.to_str().unwrap();
    let output = kprism(&["record", "probe", place, "-o", run, "--by", "*boxed,text", "--", own]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let report: Value =
        serde_json::from_slice(&kprism(&["report", "probe", "--json", "-i", run]).stdout).expect("JSON");
    let rows = report["totals"][0]["rows"].as_array().unwrap();
    assert!(rows.len() == 4 && rows[3]["key"]["text"] == "tex", "{report}");
    // Where the compiler has them.
    let program = built(dir.path(), "owned.rs", OWNED, &["rustc", "-C", "opt-level=2"]);
    let probe = format!("{place} if bytes == \"text 2 \u{e4}\\0\"");
    let (hits, text) = probed(&program, &probe, &["--collect", "some"]);
    assert_eq!(hits, [json!({"some": [0, 1]})], "{text}");
}

/// Where instructions of a function begin, and their text.
fn instructions(program: &Path, function: &str) -> Vec<(u64, String)> {
    let mut command = Command::new("objdump");
    command.args(["-d", "--no-show-raw-insn"]).arg(format!("--disassemble={function}")).arg(program);
    let output = command.output().expect("objdump");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = |line: &str| {
        let (address, insn) = line.trim().split_once(":\t")?;
        Some((u64::from_str_radix(address, 16).ok()?, insn.to_owned()))
    };
    let all: Vec<_> = text.lines().filter_map(line).collect();
    let start = all.first().expect("a function").0;
    all.into_iter().map(|(address, insn)| (address - start, insn)).collect()
}

/// A breakpoint in the middle of an instruction would make another of it, and one on an instruction that the kernel cannot
/// execute elsewhere is never put there.
#[test]
fn no_breakpoint_where_none_can_be() {
    ready();
    tool("objdump");
    let dir = tempfile::tempdir().unwrap();
    let source = "volatile long sink;\n__attribute__((noinline)) void stop(long n) { sink = n * 12345; if (sink == 7) __asm__ volatile(\"hlt\"); }\nint main(void) { for (long n = 0; n < 5; n++) stop(n); return 0; }\n";
    let program = built(dir.path(), "stop.c", source, &["gcc", "-O1"]);
    let all = instructions(&program, "stop");
    for (offset, _) in all.iter().filter(|(_, insn)| insn.starts_with("imul") || insn.starts_with("mov")) {
        assert_eq!(probed(&program, &format!("stop+{offset}"), &["--collect", "$rip"]).0.len(), 5);
        let text = refused(&program, &format!("stop+{}", offset + 1), &[]);
        assert!(text.contains("in the middle of an instruction"), "{text}");
    }
    let (hlt, _) = all.iter().find(|(_, insn)| insn.starts_with("hlt")).expect("it is there");
    let text = refused(&program, &format!("stop+{hlt}"), &[]);
    assert!(text.contains("no breakpoint"), "{text}");
}

/// A probe of a return hides who called: who looks for that, ends the program.
#[test]
fn what_a_probe_of_a_return_does_to_exceptions_is_said() {
    ready();
    tool("g++");
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "classes.cpp", CLASSES, &["g++", "-O1"]);
    let (_, text) = probed(&program, "ns::Der::method(int)%return", &["--collect", "$retval"]);
    assert!(text.contains("an exception or a panic that passes through"), "{text}");
    let (_, text) = probed(&program, "ns::Der::method(int)", &["--collect", "k"]);
    assert!(!text.contains("exception"), "{text}");
    let program = built(dir.path(), "inlined.c", INLINED, &["gcc", "-O1"]);
    let (_, text) = probed(&program, "one%return", &["--collect", "$retval"]);
    assert!(!text.contains("exception"), "{text}");
}

/// Go's runtime looks at who called a function whenever it moves a stack, and ends the program.
#[test]
fn returns_of_go_are_refused() {
    ready();
    tool("go");
    let dir = tempfile::tempdir().unwrap();
    let source = "package main\n\n//go:noinline\nfunc work(n int, s string) int { return n + len(s) }\n\nfunc main() { for i := 0; i < 5; i++ { work(i, \"abc\") } }\n";
    std::fs::write(dir.path().join("work.go"), source).unwrap();
    let program = dir.path().join("work");
    let mut command = Command::new("go");
    command.args(["build", "-o"]).arg(&program).arg("work.go").current_dir(dir.path());
    command.env("GOCACHE", dir.path().join("cache")).env("GOFLAGS", "-mod=mod");
    let output = command.output().expect("go");
    assert!(output.status.success(), "{}", said(&output));
    let (hits, text) = probed(&program, "main.work", &["--collect", "n"]);
    assert_eq!(hits.len(), 5, "{text}");
    let text = refused(&program, "main.work%return", &["--collect", "$rax"]);
    assert!(text.contains("Go's runtime"), "{text}");
}

#[test]
fn debug_information_in_files_of_its_own() {
    ready();
    tool("objcopy");
    let dir = tempfile::tempdir().unwrap();
    let program = built(dir.path(), "apart.c", FIELDS, &["gcc", "-O2"]);
    let (apart, debug) = (dir.path().join("apart"), dir.path().join("apart.debug"));
    let binutils = |name: &str, args: &[&str]| {
        let output = Command::new(name).args(args).current_dir(dir.path()).output().expect("binutils");
        assert!(output.status.success(), "{}", said(&output));
    };
    binutils("objcopy", &["--only-keep-debug", "apart", "apart.debug"]);
    binutils("strip", &["-g", "apart"]);
    // Only symbols.
    let (hits, text) = probed(&program, "work", &["--collect", "*(unsigned char *)$rdi"]);
    assert_eq!(hits, [json!({"*(unsigned char *)$rdi": 9})], "{text}");
    assert!(text.contains("has no debug information: only symbols"), "{text}");
    binutils("strip", &["apart"]);
    let text = refused(&apart, "work", &[]);
    assert!(text.contains("no function `work`") && text.contains("--debug-file"), "{text}");
    let debug = debug.to_str().unwrap();
    let (hits, text) = probed(&apart, "work", &["--collect", "p->a", "--debug-file", debug]);
    assert_eq!(hits, [json!({"p->a": -77777777})], "{text}");
    binutils("objcopy", &["--add-gnu-debuglink=apart.debug", "apart"]);
    let (hits, text) = probed(&apart, "work", &["--collect", "p->b"]);
    assert_eq!(hits, [json!({"p->b": 99999999})], "{text}");
    let text = refused(&apart, "work", &["--exec", debug]);
    assert!(text.contains("debug information only") && text.contains("--debug-file"), "{text}");
    // That of another program.
    let other = built(dir.path(), "other.c", "int main(void) { return 1; }", &["gcc"]);
    let text = refused(&apart, "work", &["--debug-file", other.to_str().unwrap()]);
    assert!(text.contains("debug information of another file"), "{text}");
}

#[test]
fn entries_that_need_no_single_step() {
    ready();
    let dir = tempfile::tempdir().unwrap();
    let source = r#"
volatile int sink;
__attribute__((noinline)) int work(int n) { sink = n; return n; }
asm(".globl spin\n.type spin, @function\nspin: endbr64\n1: decl %edi\njne 1b\nmov $7, %eax\nret\n.size spin, .-spin\n");
int spin(int);
int main(void) { for (int i = 1; i < 4; i++) { work(i); spin(5); } return 0; }
"#;
    let program = built(dir.path(), "landing.c", source, &["gcc", "-O2", "-fcf-protection"]);
    let address = || {
        let text = std::fs::read(program.with_extension("run").join("streams/probe/probes.json")).unwrap();
        let probes: Value = serde_json::from_slice(&text).unwrap();
        probes["probes"][0]["address"].as_u64().expect("an address")
    };
    let symbols = Command::new("nm").arg(&program).output().expect("nm");
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let start = |name: &str| {
        let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("a symbol");
        u64::from_str_radix(&line[..16], 16).expect("an address")
    };
    let (hits, text) = probed(&program, "work", &["--collect", "n"]);
    assert_eq!(hits, [json!({"n": 1}), json!({"n": 2}), json!({"n": 3})], "{text}");
    assert_eq!(address(), start("work") + 4);
    let (hits, text) = probed(&program, "work%return if n > 1", &["--collect", "$retval"]);
    assert_eq!(hits, [json!({"$retval": 2}), json!({"$retval": 3})], "{text}");
    // One that jumps to its second instruction is met once a call, at the first.
    let (hits, text) = probed(&program, "spin", &["--collect", "$edi"]);
    assert_eq!(hits, [json!({"$edi": 5}), json!({"$edi": 5}), json!({"$edi": 5})], "{text}");
    assert_eq!(address(), start("spin"));
    assert!(text.contains("single-stepping"), "{text}");
}

#[test]
fn values_and_counts_are_those_of_gdb() {
    ready();
    needs(&[GDB]);
    tool("python3");
    tool("g++");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/probe/matrix.py");
    let output = Command::new("python3")
        .arg(script)
        .arg("--slice")
        .env("KPRISM", env!("CARGO_BIN_EXE_kprism"))
        .output()
        .expect("python");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !text.contains("skipped"), "{text}{}", said(&output));
}

kprism_test::main!();
