//! What the guest tells of itself, by marks and otherwise: Memento's instructions and the sections in which its shim does
//! their work, malloc and free, the kernel's pages, system calls.

use crate::block::{Access, RAX, RDI, TRASH_REGISTER};
use crate::core::Owner;
use crate::extension::{Extension, View};
use crate::machine::Machine;

/// `__GFP_MOVABLE`: pages of processes, which the kernel can move.
const MOVABLE: u64 = 1 << 3;

const NO_MEMENTO: &str =
    "the guest executes Memento's instructions, and this machine has none: take machine memento";

impl Machine {
    /// The mark MEMENTO_REGION: the OS gives this process its region (§3.2).
    pub fn set_region(&mut self, start: u64, end_and_flags: u64) -> Result<(), String> {
        let extension = self.extension.as_mut().ok_or(NO_MEMENTO)?;
        let mut view = View { hierarchy: &mut self.hierarchy, tlbs: &mut self.tlbs };
        let process = view.tlbs.root();
        extension.set_region(process, start, end_and_flags, self.core.now(), &mut view)
    }

    /// obj-alloc: the section in which the shim did the same ends here.
    pub fn allocate(&mut self, size_and_lane: u64, address: u64) -> Result<(), String> {
        self.charge_again();
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
            extension.translate(&access, self.core.now(), &mut self.hierarchy, &mut self.tlbs);
        }
    }

    /// obj-free; `refused`: it raised an exception.
    pub fn free(&mut self, address: u64, lane: u64, refused: bool) -> Result<(), String> {
        self.charge_again();
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
        let mut view = View { hierarchy: &mut self.hierarchy, tlbs: &mut self.tlbs };
        let mut outcome = Ok(());
        let config = extension.units.config();
        let in_software = !(if owner == Owner::Allocate { config.object_alloc } else { config.object_free });
        self.core.unit_operation(owner, RDI, result, in_software, |at| {
            work(extension, at, &mut view).unwrap_or_else(|error| {
                outcome = Err(error);
                at
            })
        });
        self.counts.user_instructions += 1;
        self.counts.unit_operations += 1;
        outcome
    }

    /// The region's end: the processes' memory goes back to the pool.
    pub fn end_region(&mut self) {
        if let Some(extension) = &mut self.extension {
            let mut view = View { hierarchy: &mut self.hierarchy, tlbs: &mut self.tlbs };
            extension.end(self.core.now(), &mut view);
        }
    }

    /// From here until [`Machine::charge_again`], what this address space executes costs nothing.
    pub fn stop_charging(&mut self) {
        self.uncharged = Some(self.tlbs.root());
    }

    /// The end of an uncharged section.
    pub fn charge_again(&mut self) {
        self.uncharged = None;
    }

    #[inline]
    pub(super) fn is_uncharged(&self) -> bool {
        self.uncharged.is_some() && self.uncharged == Some(self.tlbs.root())
    }

    /// The program enters its software allocator: malloc of so many bytes, or free of an address.
    pub fn enter_allocator(&mut self, owner: Owner, operand: u64) {
        if self.allocations.enter(self.tlbs.root(), operand) {
            self.user_owner = owner;
            if owner == Owner::Free {
                self.allocations.freed(self.tlbs.root(), operand);
            }
        }
    }

    /// It leaves it; malloc with an object's address.
    pub fn leave_allocator(&mut self, owner: Owner, address: u64) {
        let process = self.tlbs.root();
        if let Some(bytes) = self.allocations.leave(process) {
            self.user_owner = Owner::User;
            if owner == Owner::Allocate {
                self.allocations.allocated(process, address, bytes);
            }
        }
    }

    /// The kernel allocates pages. Those of the shim's arenas are not counted: the page allocator has its own.
    pub fn kernel_allocates(&mut self, flags: u64, pages: u64) {
        if self.is_uncharged() {
            return;
        }
        let counts = &mut self.counts;
        *(if flags & MOVABLE != 0 { &mut counts.user_pages } else { &mut counts.kernel_pages }) += pages;
    }

    /// The program calls the kernel with this number (x86-64 Linux).
    pub fn system_call(&mut self, number: u64) {
        if self.is_uncharged() {
            return;
        }
        self.counts.system_calls += 1;
        // mmap, munmap, brk, mremap, madvise
        let memory = matches!(number, 9 | 11 | 12 | 25 | 28);
        self.kernel_work = if memory { Owner::MemoryCall } else { Owner::Kernel };
    }
}
