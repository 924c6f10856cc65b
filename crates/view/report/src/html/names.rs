// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions, modules and names of tasks as numbers, in the page's data.

use std::collections::HashMap;

use kprism_profile::Profile;
use serde::Serialize;

/// Functions, one column for each property.
#[derive(Default, Serialize)]
pub(super) struct Funcs {
    name: Vec<String>,
    module: Vec<u32>,
    kernel: Vec<u8>,
}

/// Numbers functions, modules and task names in order of first use, so that only those in use are embedded.
#[derive(Default)]
pub(super) struct Names {
    pub funcs: Funcs,
    func_ids: HashMap<u32, u32>,
    pub modules: Vec<String>,
    module_ids: HashMap<String, u32>,
    pub comms: Vec<String>,
    comm_ids: HashMap<String, u32>,
}

impl Names {
    pub fn func(&mut self, profile: &Profile, func: u32) -> u32 {
        if let Some(&id) = self.func_ids.get(&func) {
            return id;
        }
        let f = &profile.funcs[func as usize];
        let module = intern(&mut self.modules, &mut self.module_ids, &f.module);
        self.funcs.name.push(f.name.clone());
        self.funcs.module.push(module);
        self.funcs.kernel.push(f.kernel.into());
        let id = self.funcs.name.len() as u32 - 1;
        self.func_ids.insert(func, id);
        id
    }

    pub fn comm(&mut self, comm: &str) -> u32 {
        intern(&mut self.comms, &mut self.comm_ids, comm)
    }
}

fn intern(names: &mut Vec<String>, ids: &mut HashMap<String, u32>, name: &str) -> u32 {
    if let Some(&id) = ids.get(name) {
        return id;
    }
    names.push(name.to_string());
    ids.insert(name.to_string(), names.len() as u32 - 1);
    names.len() as u32 - 1
}
