//! Events of the guest, by marks and otherwise: Memento's instructions and the sections in which its shim
//! does their work, malloc and free, the kernel's pages, system calls.

use crate::base::cause::Owner;
use crate::core::extension::{Extension, View};
use crate::isa::block::{Access, RAX, RDI, TRASH_REGISTER};
use crate::system::allocations::SMALL_BYTES;
use crate::system::machine::Machine;
use crate::system::pages::Held;
use std::ops::Range;

/// `__GFP_MOVABLE`: pages of processes, which the kernel can move.
const MOVABLE: u64 = 1 << 3;

const NO_MEMENTO: &str =
    "the guest executes Memento's instructions, and this machine has none: take machine memento";

impl Machine {
    /// The mark MEMENTO_REGION: the OS gives this process its region (§3.2).
    ///
    /// # Errors
    /// This machine has no Memento, or its units refuse the region.
    pub fn set_region(&mut self, start: u64, end_and_flags: u64) -> Result<(), String> {
        let extension = self.extension.as_mut().ok_or(NO_MEMENTO)?;
        let mut view = view!(self);
        let process = view.tlbs.root();
        let (core, now) = (self.own.number, self.own.core.now());
        let done = extension.set_region(core, process, start, end_and_flags, now, &mut view)?;
        self.own.core.wait(done, Owner::MemoryCall);
        Ok(())
    }

    /// obj-alloc: the section in which the shim did the same ends here.
    ///
    /// # Errors
    /// This machine has no Memento, or its units do not do what the shim did.
    pub fn allocate(&mut self, size_and_lane: u64, address: u64) -> Result<(), String> {
        self.end_operation();
        self.unit_operation(Owner::Allocate, RAX, |extension, at, view| {
            extension.allocate(size_and_lane, address, at, view)
        })
    }

    /// A new object is used, line by line, though no access to it is seen.
    pub fn touch(&mut self, size_and_lane: u64, address: u64) {
        let Some(extension) = &mut self.extension else { return };
        let end = address + (size_and_lane & 0xffff_ffff);
        for line in address >> 6..end.div_ceil(64) {
            let address = address.max(line << 6);
            let access = Access { address, physical: 0, index: 0, size: 1, store: true, device: false };
            extension.translate(&access, self.own.core.now(), &mut self.hierarchy, &mut self.own.tlbs);
        }
    }

    /// obj-free; `refused`: it raised an exception.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn free(&mut self, address: u64, lane: u64, refused: bool) -> Result<(), String> {
        self.end_operation();
        self.note_most_pages();
        self.unit_operation(Owner::Free, TRASH_REGISTER, |extension, at, view| {
            extension.free(address, lane, refused, at, view)
        })
    }

    fn unit_operation(
        &mut self,
        owner: Owner,
        result: u8,
        work: impl FnOnce(&mut Extension, u64, &mut View) -> Result<u64, String>,
    ) -> Result<(), String> {
        let extension = self.extension.as_mut().ok_or(NO_MEMENTO)?;
        let mut view = view!(self);
        let mut outcome = Ok(());
        let config = extension.units.config();
        let in_software = !(if owner == Owner::Allocate { config.object_alloc } else { config.object_free });
        self.own.core.unit_operation(owner, RDI, result, in_software, |at| {
            work(extension, at, &mut view).unwrap_or_else(|error| {
                outcome = Err(error);
                at
            })
        });
        self.counts.user_instructions += 1;
        self.counts.unit_operations += 1;
        outcome
    }

    /// A thread's buffer of other threads' objects is emptied though it is not full: the thread ends (§4).
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn free_batch(&mut self, lane: u64) -> Result<(), String> {
        self.end_operation();
        self.note_most_pages();
        self.unit_operation(Owner::Free, TRASH_REGISTER, |extension, at, view| {
            extension.free_batch(lane, at, view)
        })
    }

    /// Whether the process that runs has a Memento region.
    pub fn has_region(&self) -> bool {
        self.extension.as_ref().is_some_and(|extension| extension.has_region(self.own.tlbs.root()))
    }

    /// The kernel frees a process's page table: the process has exited, and the page allocator takes its
    /// pages back. That is the kernel's work, as it is in the baseline.
    pub fn process_exited(&mut self, root: u64) {
        self.uncharged.retain(|other| other & !0xfff != root);
        self.forget_replaced(root);
        self.note_most_pages();
        if let Some(extension) = &mut self.extension {
            let mut view = view!(self);
            let back = extension.exit(root, self.own.core.now(), &mut view);
            self.own.core.wait(back, Owner::Kernel);
        }
    }

    /// The region's end: the processes' memory goes back to the pool. Where the program has exited that is
    /// part of it, as the kernel's work at an exit is part of the baseline's.
    pub fn end_region(&mut self, is_exit: bool) {
        self.pages.end(self.pool_pages());
        if let Some(extension) = &mut self.extension {
            let mut view = view!(self);
            let done = extension.end(self.own.core.now(), &mut view);
            if is_exit {
                self.own.core.wait(done, Owner::Kernel);
            }
        }
    }

    /// From here until [`Machine::charge_again`], this address space's instructions on this core cost
    /// nothing.
    pub fn stop_charging(&mut self) {
        if !self.is_uncharged() {
            self.uncharged.push(self.space());
        }
    }

    /// The end of an operation's section, and of the charge-free time but for a call that was replaced: that
    /// lasts until its return.
    pub fn end_operation(&mut self) {
        if !self.is_in_replaced_call() {
            self.charge_again();
        }
    }

    /// The end of this address space's uncharged section. Where there is none, it began on another core,
    /// where the thread was then.
    pub fn charge_again(&mut self) {
        let (own, root) = (self.space(), self.own.tlbs.root());
        let has_moved = !self.others.is_empty() && !self.uncharged.contains(&own);
        if has_moved && let Some(index) = self.uncharged.iter().position(|other| other & !0xfff == root) {
            self.uncharged.remove(index);
            self.forget_replaced(root);
        }
        self.uncharged.retain(|root| *root != own);
    }

    #[inline]
    pub(super) fn is_uncharged(&self) -> bool {
        !self.uncharged.is_empty() && self.uncharged.contains(&self.space())
    }

    /// The program enters its allocator: malloc of so many bytes, or free of an address. `stack`: its stack
    /// pointer, or 0 where it is not known. Whether it was outside before.
    pub fn enter_allocator(&mut self, owner: Owner, operand: u64, stack: u64) -> bool {
        let enters = self.allocations.enter(self.space(), owner, operand, stack);
        if enters {
            self.own.user_owner = owner;
            self.own.is_small = match owner {
                Owner::Free => self.allocations.is_small(self.own.tlbs.root(), operand),
                _ => operand <= SMALL_BYTES,
            };
            if owner == Owner::Free {
                self.allocations.freed(self.own.tlbs.root(), operand);
            }
            self.request(owner, stack);
        }
        enters
    }

    /// The function that it entered has its code here. For objects that Memento would serve too, an ideal
    /// allocator's code takes no time. Functions that it calls do: the software that fills an empty list, or
    /// empties a long one.
    pub fn allocator_code(&mut self, code: Range<u64>) {
        if !self.ideal_allocator {
            return;
        }
        let is_ideal = !code.is_empty() && self.own.is_small;
        self.own.free_of_charge = if is_ideal { code } else { 0..0 };
        if is_ideal {
            self.replace_ideal();
        }
    }

    #[inline]
    pub(super) fn is_free_of_charge(&self, address: u64) -> bool {
        self.own.user_owner != Owner::User && self.own.free_of_charge.contains(&address)
    }

    /// A realloc of this object: a free and an allocation, as far as lifetimes go.
    pub fn reallocates(&mut self, object: u64) {
        self.allocations.freed(self.own.tlbs.root(), object);
    }

    /// The program leaves its allocator; malloc with an object's address.
    pub fn leave_allocator(&mut self, owner: Owner, address: u64) {
        if let Some(bytes) = self.allocations.leave(self.space()) {
            self.has_left(owner, address, bytes);
        }
    }

    /// The program's outermost call of its allocator has returned.
    pub fn return_from_allocator(&mut self, address: u64) {
        if let (owner, Some(bytes)) = (self.own.user_owner, self.allocations.leave_all(self.space())) {
            self.has_left(owner, address, bytes);
        }
    }

    fn has_left(&mut self, owner: Owner, address: u64, bytes: u64) {
        self.answer(owner);
        self.own.user_owner = Owner::User;
        if owner == Owner::Allocate {
            self.allocations.allocated(self.own.tlbs.root(), address, bytes);
        }
    }

    /// The kernel allocates pages. Those of the shim's arenas are not counted: the page allocator has its
    /// own.
    pub fn kernel_allocates(&mut self, flags: u64, pages: u64) {
        if self.is_uncharged() {
            return;
        }
        let counts = &mut self.counts;
        *(if flags & MOVABLE != 0 { &mut counts.user_pages } else { &mut counts.kernel_pages }) += pages;
    }

    /// The kernel has allocated these pages, one behind the other, each named by a number. It was asked for
    /// them when [`Machine::kernel_allocates`] was called.
    pub fn kernel_holds(&mut self, flags: u64, pages: impl Iterator<Item = u64>) {
        for page in pages {
            self.pages.allocated(page, flags & MOVABLE != 0);
        }
    }

    /// The kernel frees these pages.
    pub fn kernel_frees(&mut self, pages: impl Iterator<Item = u64>) {
        self.note_most_pages();
        for page in pages {
            self.pages.freed(page);
        }
    }

    /// Whether pages that the kernel allocates now are counted.
    pub fn counts_pages(&self) -> bool {
        !self.is_uncharged()
    }

    fn note_most_pages(&mut self) {
        self.pages.note_most(self.pool_pages());
    }

    /// The pages that are held now, and those when the most were: allocated in the region and not freed.
    pub fn pages_held(&self) -> (Held, Held) {
        self.pages.now_and_most(self.pool_pages())
    }

    fn pool_pages(&self) -> Held {
        self.extension.as_ref().map_or(Held::default(), |extension| {
            let [data, tables, blocks] = extension.units.pages_held();
            Held { user: data, kernel: tables + blocks }
        })
    }

    /// The program calls the kernel with this number (x86-64 Linux).
    pub fn system_call(&mut self, number: u64) {
        if self.is_uncharged() {
            return;
        }
        self.counts.system_calls += 1;
        // mmap, munmap, brk, mremap, madvise
        let memory = matches!(number, 9 | 11 | 12 | 25 | 28);
        self.own.kernel_work = if memory { Owner::MemoryCall } else { Owner::Kernel };
    }
}
