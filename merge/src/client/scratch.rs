//! Working memory of a call, outside the program's heap.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use rustix::io;

use crate::base::mapping::Mapping;

/// An array in a mapping of its own.
pub struct Scratch<T: Copy> {
    memory: Mapping,
    length: usize,
    of: PhantomData<T>,
}

impl<T: Copy> Scratch<T> {
    /// `length` elements, all bytes zero: for types that allow this value.
    pub fn new(length: usize) -> io::Result<Scratch<T>> {
        const { assert!(align_of::<T>() <= 4096) };
        Ok(Scratch { memory: Mapping::anonymous(length * size_of::<T>())?, length, of: PhantomData })
    }
}

impl<T: Copy> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping has room for so many and is aligned to pages; zero bytes are a value of the
        // types used (numbers, hashes, page map entries, `Page::Same`).
        unsafe { std::slice::from_raw_parts(self.memory.start().cast(), self.length) }
    }
}

impl<T: Copy> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().cast(), self.length) }
    }
}
