//! Calls of the kernel's functions that allocate and free pages, and that free a process's page table, as the
//! guest's memory and registers have them.

use super::marks::DIRECT_MAP;
use super::{R9, RAX, RCX, RDI, RSI, RSP, Run};
use crate::model::Event;
use crate::model::pages::{Asked, Got, STRUCT_PAGE};
use sim::isa::block::{Block, End};
use std::collections::HashMap;
use std::ops::Range;

/// The functions of the kernel that the guest's init reports, in its order.
const ALLOCATES: u32 = 0;
/// Of many pages at once.
const ALLOCATES_MANY: u32 = 1;
const PROCESS_EXITS: u32 = 2;
const FREES_FOLIOS: u32 = 5;
/// How many functions there are.
const FUNCTIONS: usize = 6;

/// A `struct page` is the first of a folio of several pages (PG_head of Linux 6.12).
const HEAD: u64 = 1 << 6;
/// A `struct folio_batch` has no more.
const MOST_FOLIOS: u64 = 31;

/// The kernel's observed functions.
#[derive(Default)]
pub(super) struct Kernel {
    /// Where they are, as the guest's init reports them.
    functions: [Range<u64>; FUNCTIONS],
    /// By the stack pointer at the entry: where the kernel's array of many pages is.
    arrays: HashMap<u64, u64>,
}

impl Kernel {
    /// The mark KERNEL_FUNCTION.
    pub fn set_function(&mut self, [first, second]: [u64; 2]) {
        if let Some(function) = self.functions.get_mut(second as usize & 0xff) {
            *function = first..first + (second >> 8);
        }
    }

    /// Which of the functions that allocate pages this block of it may return from: by a return, or by a
    /// jump to the code that all functions of a kernel with mitigations share for that.
    pub fn returns_from(&self, block: &Block) -> Option<u32> {
        let within = |function: &u32| self.functions[*function as usize].contains(&block.start);
        let function = [ALLOCATES, ALLOCATES_MANY].into_iter().find(within)?;
        let returns = match block.ends {
            End::Return => true,
            End::Jump(target) => !self.functions[function as usize].contains(&target),
            _ => false,
        };
        returns.then_some(function)
    }
}

impl Run {
    /// Which of the kernel's observed functions begins at this address.
    pub fn kernel_function(&self, address: u64) -> Option<u32> {
        let mut all = self.kernel.functions.iter();
        all.position(|one| one.start == address).map(|index| index as u32)
    }

    /// An observed function of the kernel is entered.
    pub(super) fn kernel_call(&mut self, function: u32) {
        let (first, second) = (self.register(RDI), self.register(RSI));
        let event = match function {
            ALLOCATES | ALLOCATES_MANY => {
                // Flags and order; of many: flags, how many as the fourth argument, the array as the sixth.
                let (order, stack) = (second & 15, self.register(RSP));
                let (mut count, mut operand) = (1 << order, order);
                if function == ALLOCATES_MANY {
                    (count, operand) = (self.register(RCX), self.register(R9));
                    self.kernel.arrays.insert(stack, operand);
                }
                Event::Allocates(Asked { flags: first, count, operand, stack })
            }
            // A process and its page table, by its address in the map of all memory.
            PROCESS_EXITS => Event::Exits(second.wrapping_sub(DIRECT_MAP)),
            FREES_FOLIOS => Event::Frees(self.folios(first)),
            _ => Event::Frees(vec![(first, second)]),
        };
        self.engine.happens(event);
    }

    /// A function that allocates pages returns, or jumps elsewhere within its frame.
    pub(super) fn kernel_return(&mut self, function: u32) {
        let (stack, result) = (self.register(RSP), self.register(RAX));
        let got = if function == ALLOCATES {
            Got::One(result)
        } else {
            let array = self.kernel.arrays.remove(&stack).filter(|array| *array != 0);
            let pages = array.map_or(0..0, |array| array..array + 8 * result).step_by(8);
            Got::Many(pages.map_while(|at| self.buffer.memory(at)).collect())
        };
        self.engine.happens(Event::Allocated { stack, got });
    }

    /// A batch: how many in its first byte, then from byte 8 on the folios.
    fn folios(&mut self, batch: u64) -> Vec<(u64, u64)> {
        let many = self.buffer.memory(batch).map_or(0, |many| (many & 0xff).min(MOST_FOLIOS));
        let folio = |index| {
            let folio = self.buffer.memory(batch + 8 * index)?;
            let flags = self.buffer.memory(folio)?;
            // The order is in the lowest byte of the second page's flags.
            let order =
                if flags & HEAD == 0 { 0 } else { self.buffer.memory(folio + STRUCT_PAGE).unwrap_or(0) };
            Some((folio, order & 0xff))
        };
        (1..=many).map_while(folio).collect()
    }
}
