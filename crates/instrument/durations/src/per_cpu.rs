// SPDX-License-Identifier: MIT OR Apache-2.0
//! Values by CPU number. Events look them up one by one, so usual numbers are places in a vector. A damaged trace may
//! have any number: the others are in a map, so that none costs memory.

use std::collections::BTreeMap;

/// Numbers below this are places in the vector.
const NEAR: u32 = 1024;

/// A value for each CPU that was seen.
#[derive(Debug, Clone)]
pub(crate) struct PerCpu<T> {
    near: Vec<Option<T>>,
    far: BTreeMap<u32, T>,
}

impl<T> Default for PerCpu<T> {
    fn default() -> Self {
        PerCpu { near: Vec::new(), far: BTreeMap::new() }
    }
}

impl<T> PerCpu<T> {
    /// The value of a CPU, made by `new` if there is none.
    #[inline]
    pub fn entry(&mut self, cpu: u32, new: impl FnOnce() -> T) -> &mut T {
        if cpu >= NEAR {
            return self.far.entry(cpu).or_insert_with(new);
        }
        let place = cpu as usize;
        if place >= self.near.len() {
            self.near.resize_with(place + 1, || None);
        }
        self.near[place].get_or_insert_with(new)
    }

    #[inline]
    pub fn get(&self, cpu: u32) -> Option<&T> {
        match cpu < NEAR {
            true => self.near.get(cpu as usize)?.as_ref(),
            false => self.far.get(&cpu),
        }
    }

    #[inline]
    pub fn get_mut(&mut self, cpu: u32) -> Option<&mut T> {
        match cpu < NEAR {
            true => self.near.get_mut(cpu as usize)?.as_mut(),
            false => self.far.get_mut(&cpu),
        }
    }

    /// Numbers of the CPUs that have a value, in ascending order.
    pub fn cpus(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        let near = (0u32..).zip(0..self.near.len()).filter(|(_, place)| self.near[*place].is_some());
        near.map(|(cpu, _)| cpu).collect::<Vec<_>>().into_iter().chain(self.far.keys().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_a_cpu_has_its_value() {
        let mut values = PerCpu::default();
        for cpu in [u32::MAX, 3, NEAR, NEAR - 1, 0] {
            assert_eq!(values.get(cpu), None);
            *values.entry(cpu, || u64::from(cpu)) += 1;
            assert_eq!(values.get(cpu), Some(&(u64::from(cpu) + 1)));
        }
        *values.get_mut(3).unwrap() = 7;
        assert_eq!((values.get(3), values.get(NEAR + 1)), (Some(&7), None));
        assert_eq!(values.get_mut(2), None);
        assert_eq!(values.cpus().collect::<Vec<_>>(), [0, 3, NEAR - 1, NEAR, u32::MAX]);
        assert_eq!(values.near.len(), NEAR as usize);
    }
}
