// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a crate that use each other in a circle have to be read together: no circle is of more than three.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{ItemMod, ItemUse, Macro, UseTree, VisRestricted};

mod workspace;

/// A module's path in its crate; empty for the crate itself.
type Module = Vec<String>;

/// Paths that begin with `crate`, `self` or `super`, in a module.
struct Paths<'a> {
    module: &'a [String],
    found: Vec<Module>,
}

impl Paths<'_> {
    /// Notes a path, if it is one into this crate.
    fn note(&mut self, segments: &[String]) {
        let (mut at, mut rest) = match segments.first().map(String::as_str) {
            Some("crate") => (Vec::new(), &segments[1..]),
            Some("self") => (self.module.to_vec(), &segments[1..]),
            Some("super") => (self.module.to_vec(), segments),
            _ => return,
        };
        while let Some((first, more)) = rest.split_first().filter(|(first, _)| *first == "super") {
            assert_eq!(first, "super");
            at.pop();
            rest = more;
        }
        at.extend_from_slice(rest);
        self.found.push(at);
    }

    fn note_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: &syn::Ident| [before, &[name.to_string()]].concat();
        match tree {
            UseTree::Path(path) => self.note_tree(&with(&path.ident), &path.tree),
            UseTree::Name(name) => self.note(&with(&name.ident)),
            UseTree::Rename(rename) => self.note(&with(&rename.ident)),
            UseTree::Glob(_) => self.note(before),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.note_tree(before, tree)),
        }
    }
}

impl<'ast> Visit<'ast> for Paths<'_> {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        // Modules in a file are its tests.
        if module.content.is_none() {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.note_tree(&[], &item.tree);
    }

    /// The module in `pub(super)` uses this one, not the other way.
    fn visit_vis_restricted(&mut self, _: &'ast VisRestricted) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.note(&segments);
        visit::visit_path(self, path);
    }

    /// Arguments of macros are tokens: paths in them are idents with two colons between.
    fn visit_macro(&mut self, of: &'ast Macro) {
        let text = of.tokens.to_string();
        let words: Vec<&str> = text.split_whitespace().collect();
        for at in 0..words.len() {
            if !["crate", "self", "super"].contains(&words[at]) || at > 0 && words[at - 1] == "::" {
                continue;
            }
            let path =
                words[at..].chunks(2).take_while(|pair| pair.get(1).is_none_or(|colons| *colons == "::"));
            self.note(&path.map(|pair| pair[0].to_owned()).collect::<Vec<_>>());
        }
        visit::visit_macro(self, of);
    }
}

/// The files of a crate by module.
fn modules(folder: &Path) -> BTreeMap<Module, PathBuf> {
    let mut found = BTreeMap::new();
    let mut todo = vec![folder.to_owned()];
    while let Some(at) = todo.pop() {
        for entry in fs::read_dir(&at).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(folder).unwrap().with_extension("");
                let mut module: Module =
                    relative.iter().map(|part| part.to_string_lossy().into_owned()).collect();
                if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                    module.pop();
                }
                found.insert(module, path);
            }
        }
    }
    found
}

/// For each module, the others that it uses; not the crate's own, which declares them all.
fn uses(modules: &BTreeMap<Module, PathBuf>) -> BTreeMap<&Module, BTreeSet<&Module>> {
    let mut all = BTreeMap::new();
    for (module, path) in modules.iter().filter(|(module, _)| !module.is_empty()) {
        let text = fs::read_to_string(path).unwrap();
        let file = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut paths = Paths { module, found: Vec::new() };
        paths.visit_file(&file);
        let of = |mut path: Module| loop {
            match modules.get_key_value(&path) {
                Some((found, _)) => return found,
                None => path.pop(),
            };
        };
        let used = paths.found.into_iter().map(of).filter(|used| !used.is_empty() && *used != module);
        all.insert(module, used.collect());
    }
    all
}

/// All modules that lead from one back to itself.
fn reached<'a>(from: &'a Module, uses: &BTreeMap<&'a Module, BTreeSet<&'a Module>>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut todo: Vec<&Module> = vec![from];
    while let Some(at) = todo.pop() {
        todo.extend(uses.get(at).into_iter().flatten().filter(|next| reached.insert(**next)));
    }
    reached
}

#[test]
fn no_circle_of_more_than_three_files() {
    let crates = workspace::groups().into_iter().flat_map(|(_, folders)| folders);
    let (mut files, mut large) = (0, BTreeSet::new());
    for folder in crates.map(|folder| folder.join("src")) {
        let modules = modules(&folder);
        let uses = uses(&modules);
        files += modules.len();
        let closed: BTreeMap<&Module, BTreeSet<&Module>> =
            uses.keys().map(|module| (*module, reached(module, &uses))).collect();
        for module in uses.keys() {
            let circle: BTreeSet<&Module> =
                closed[module].iter().copied().filter(|other| closed[other].contains(module)).collect();
            if circle.len() > 3 {
                let names: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
                large.insert(format!("{}: {}", folder.display(), names.join(", ")));
            }
        }
    }
    assert!(files > 400, "{files} files");
    assert!(large.is_empty(), "circles:\n{}", large.into_iter().collect::<Vec<_>>().join("\n"));
}
