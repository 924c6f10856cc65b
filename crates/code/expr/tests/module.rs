// SPDX-License-Identifier: MIT OR Apache-2.0
//! Conditions in functions of a file that is not linked, as kernel modules are: by its relocated debug information, at the addresses of
//! the loaded module.

use std::path::{Path, PathBuf};
use std::process::Command;

use kprism_expr::dwarf::{Debug, Image, InModule};
use kprism_expr::interp::{self, Machine};
use kprism_expr::ir::{Input, Space};
use kprism_expr::watch::{Event, Watch};
use kprism_test::{GCC, needs, test};

const SOURCE: &str = "
struct rec { struct rec *next; unsigned key; };
static unsigned nrecs = 7;
__attribute__((noipa)) static struct rec *lookup(struct rec *r, unsigned key) {
    while (r && r->key != key) r = r->next;
    return r;
}
static inline __attribute__((always_inline)) int inlined(int n) { return n + 1; }
int work(struct rec *r, int n) { nrecs++; return lookup(r, inlined(n)) != 0; }
";

/// Addresses of the loaded module.
const WORK: u64 = 0xffff_ffff_c000_0000;
const LOOKUP: u64 = 0xffff_ffff_c000_0100;
const NRECS: u64 = 0xffff_ffff_c000_2000;

fn built(folder: &Path) -> PathBuf {
    std::fs::write(folder.join("my-mod.c"), SOURCE).unwrap();
    let words = ["-g", "-O2", "-c", "-ffunction-sections", "-o", "my-mod.ko", "my-mod.c"];
    let built = Command::new("gcc").args(words).current_dir(folder).status().expect("gcc");
    assert!(built.success());
    folder.join("my-mod.ko")
}

fn address(symbol: &str) -> Option<u64> {
    match symbol {
        "work" => Some(WORK),
        "lookup" => Some(LOOKUP),
        "nrecs" => Some(NRECS),
        _ => None,
    }
}

/// The slots of a call, and a memory with one record and `nrecs`.
struct Loaded([u64; 7]);

/// Address of the record.
const REC: u64 = 0xffff_8880_0000_1000;

impl Machine for Loaded {
    fn input(&mut self, input: Input) -> u64 {
        match input {
            Input::Arg(n) => self.0[usize::from(n)],
            _ => 0,
        }
    }

    fn read(&mut self, _: Space, at: u64, into: &mut [u8]) -> bool {
        let known = [(NRECS, 41u32), (REC + 8, 5)];
        let Some((_, value)) = known.iter().find(|(start, _)| *start == at) else { return false };
        into.copy_from_slice(&value.to_le_bytes()[..into.len()]);
        true
    }

    fn var(&mut self, _: u16) -> &mut u64 {
        unreachable!("conditions from outside have no variables")
    }
}

#[test]
fn values_are_those_of_the_loaded_module() {
    needs(&[GCC]);
    let folder = tempfile::tempdir().unwrap();
    let image = Image::open(&built(folder.path())).unwrap();
    let debug = Debug::new(&image).unwrap();
    let watch = |place: &str, condition: &str| {
        let found = InModule::find(&debug, place, &address).unwrap().expect("a function of the module");
        assert_eq!(found.symbol(), place.trim_end_matches("%return"));
        let entry = address(found.symbol()).unwrap();
        Watch::in_module(found, condition, entry)
    };
    let holds = |place: &str, condition: &str, slots: [u64; 7]| {
        let watch = watch(place, condition).unwrap();
        // The recorder takes it.
        let watch = Watch::from_json(&watch.json()).unwrap();
        let Event::Call { entry, at_return, slots: 6 } = watch.event else { panic!("{:?}", watch.event) };
        assert_eq!(
            (Some(entry), at_return),
            (address(place.trim_end_matches("%return")), place.ends_with("%return"))
        );
        interp::run(&watch.condition.unwrap(), &mut Loaded(slots)).unwrap() != 0
    };
    let entry = [REC, 9, 0, 0, 0, 0, 0];
    assert!(holds("lookup", "key == 9 && r->key == 5", entry));
    assert!(!holds("lookup", "key == 5", entry));
    assert!(holds("work", "nrecs == 41 && n == 9", entry));
    assert!(!holds("work", "nrecs == 7", entry));
    // After the return, the arguments are those at the entry.
    let back = [REC, 9, 0, 0, 0, 0, REC];
    assert!(holds("lookup%return", "$retval != 0 && $retval->key == 5 && key == 9", back));

    let refused = |condition: &str| watch("lookup", condition).unwrap_err().to_string();
    assert!(refused("nothing > 1").contains("nothing"));
    for place in ["absent", "my-mod.c:5", "lookup+4"] {
        assert!(InModule::find(&debug, place, &address).unwrap().is_none(), "{place}");
    }
    let inlined = InModule::find(&debug, "inlined", &address);
    let inlined = inlined.map(|found| found.map(|found| found.symbol().to_owned()));
    assert!(inlined.is_err(), "{inlined:?}");
    // Where the symbols do not tell an address, none is made up.
    let nowhere = |_: &str| None;
    let found = InModule::find(&debug, "work", &nowhere).unwrap().unwrap();
    let refused = Watch::in_module(found, "nrecs == 41", WORK).unwrap_err().to_string();
    assert!(refused.contains("not among the symbols of the loaded module"), "{refused}");
}

kprism_test::main!();
