//! Atomics for loom with real SeqCst.
//!
//! loom treats SeqCst loads and stores as acquire and release only. A read-modify-write always reads the
//! newest value, so here a SeqCst load is one that changes nothing, and a SeqCst store is a swap. That gives
//! the single order of all SeqCst operations on which the heap relies; weaker orderings are passed on
//! unchanged.

#![allow(dead_code)] // each test uses some

use core::sync::atomic::Ordering::{self, SeqCst};

macro_rules! sequential {
    ($name:ident, $value:ty) => {
        #[derive(Default)]
        pub struct $name(loom::sync::atomic::$name);

        impl $name {
            pub fn new(value: $value) -> Self {
                Self(loom::sync::atomic::$name::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                if order == SeqCst { self.0.fetch_or(0, SeqCst) } else { self.0.load(order) }
            }

            pub fn store(&self, value: $value, order: Ordering) {
                if order == SeqCst {
                    self.0.swap(value, SeqCst);
                } else {
                    self.0.store(value, order);
                }
            }

            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.0.swap(value, order)
            }

            pub fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.0.fetch_or(bits, order)
            }

            pub fn fetch_and(&self, bits: $value, order: Ordering) -> $value {
                self.0.fetch_and(bits, order)
            }

            pub fn compare_exchange(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange(from, to, success, failure)
            }

            pub fn compare_exchange_weak(
                &self,
                from: $value,
                to: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.0.compare_exchange_weak(from, to, success, failure)
            }
        }
    };
}

sequential!(AtomicU32, u32);
sequential!(AtomicU64, u64);
sequential!(AtomicUsize, usize);
