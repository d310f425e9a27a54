//! malloc and free in software, as a thread's cache of free objects is: for each class a stack of objects'
//! addresses in an array. malloc takes the last, free puts one behind it. An empty stack is filled with
//! [`FILLED`] objects, and of a full one the older half is given back, one object after the other. The
//! numbers of instructions and their loads are jemalloc's, roughly: a table from sizes to classes, the
//! class's head, the stack; a table of two levels from addresses to classes; a bitmap for each object that is
//! given back.

use super::{Code, STACK, add, add_to, branch, load, ret, set, store, test};
use crate::base::cause::Owner;
use crate::isa::block::{End, RAX, RDI};
use crate::system::machine::Machine;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Where the functions are: what is called when a stack is empty or full lies behind.
pub(super) const MALLOC: u64 = 0x0050_0000;
pub(super) const FREE: u64 = 0x0050_1000;
const FILL: u64 = 0x0050_2000;
const EMPTY: u64 = 0x0050_3000;

/// Objects that an empty stack is filled with.
pub const FILLED: usize = 16;
/// Objects of a full one.
pub const FULL: usize = 64;

const SIZES: u64 = 0x0600_0000;
const ROOTS: u64 = 0x0610_0000;
const LEAVES: u64 = 0x0800_0000;
const BITMAPS: u64 = 0x0700_0000;
const HEADS: u64 = 0x0620_0000;
const STACKS: u64 = 0x0630_0000;
const OBJECTS: Range<u64> = 4 << 30..60 << 30;

/// Registers beside RAX and RDI: RCX, RDX, RSI.
const CLASS: u8 = 2;
const HEAD: u8 = 3;
const SLOT: u8 = 7;

/// A block of a function, and the addresses of its accesses.
pub(super) struct Step {
    pub block: usize,
    accesses: [(u16, u64, bool); 5],
    many: usize,
}

impl Step {
    fn new(block: usize, accesses: &[(u16, u64, bool)]) -> Step {
        let mut step = Step { block, accesses: [(0, 0, false); 5], many: accesses.len() };
        step.accesses[..accesses.len()].copy_from_slice(accesses);
        step
    }

    pub fn accesses(&self) -> impl Iterator<Item = (u16, u64, bool)> {
        self.accesses[..self.many].iter().copied()
    }
}

/// A class of objects.
struct Class {
    number: u64,
    stack: VecDeque<u64>,
    given_back: Vec<u64>,
}

impl Class {
    fn head(&self) -> u64 {
        HEADS + 32 * self.number
    }

    fn slot(&self, index: usize) -> u64 {
        STACKS + 8 * (self.number * FULL as u64 + index as u64)
    }
}

/// The heap, and the code of its functions.
pub(super) struct Heap {
    classes: BTreeMap<u64, Class>,
    unused: u64,
    malloc: [usize; 2],
    fill: [usize; 2],
    free: [usize; 2],
    empty: [usize; 2],
}

/// The size of the class: steps of 16 bytes up to 1024, then of a quarter of the power of two below.
fn class_bytes(bytes: u64) -> u64 {
    let step = if bytes <= 1024 { 16 } else { 1 << (bytes - 1).ilog2().saturating_sub(2) };
    bytes.next_multiple_of(step)
}

/// The leaf of the table from addresses to classes.
fn leaf(address: u64) -> u64 {
    LEAVES + 8 * ((address - OBJECTS.start) >> 12)
}

fn bitmap(address: u64) -> u64 {
    BITMAPS + 64 * ((address - OBJECTS.start) >> 14 & 0x3_ffff)
}

impl Heap {
    pub fn new(machine: &mut Machine) -> Heap {
        let mut code = Code { machine, next: MALLOC };
        let begin = [
            add(RDI),
            load(CLASS, RDI),
            load(HEAD, 0),
            add_to(HEAD, CLASS),
            load(SLOT, HEAD),
            load(RAX, SLOT),
            add(SLOT),
            test(SLOT),
            branch(),
        ];
        let first = code.block(&begin, End::Conditional(FILL));
        let hit = code.next;
        let malloc = [first, code.block(&[store(HEAD), load(CLASS, HEAD), add(CLASS), ret()], End::Return)];
        code.next = FREE;
        let begin = [
            set(CLASS),
            add_to(CLASS, RDI),
            load(CLASS, CLASS),
            load(CLASS, CLASS),
            load(SLOT, CLASS),
            test(SLOT),
            branch(),
        ];
        let first = code.block(&begin, End::Conditional(EMPTY));
        let room = code.next;
        let free = [first, code.block(&[add(SLOT), store(SLOT), store(CLASS), ret()], End::Return)];
        code.next = FILL;
        let turn = [load(RAX, HEAD), add(RAX), add_to(SLOT, RAX), store(SLOT), test(SLOT), branch()];
        let fill = [code.block(&turn, End::Conditional(FILL)), code.block(&[branch()], End::Jump(hit))];
        code.next = EMPTY;
        let turn =
            [load(RAX, SLOT), add(RAX), load(HEAD, RAX), load(HEAD, HEAD), add(HEAD), store(HEAD), branch()];
        let empty = [code.block(&turn, End::Conditional(EMPTY)), code.block(&[branch()], End::Jump(room))];
        Heap { classes: BTreeMap::new(), unused: OBJECTS.start, malloc, fill, free, empty }
    }

    /// The code of a function, without what it calls where a stack is empty or full.
    pub fn code(&self, owner: Owner) -> Range<u64> {
        let start = if owner == Owner::Free { FREE } else { MALLOC };
        start..start + 0x1000
    }

    fn class(&mut self, bytes: u64) -> &mut Class {
        let number = self.classes.len() as u64;
        let new = || Class { number, stack: VecDeque::new(), given_back: Vec::new() };
        self.classes.entry(class_bytes(bytes)).or_insert_with(new)
    }

    /// malloc: the object, and the blocks up to the return.
    pub fn allocate(&mut self, bytes: u64) -> Result<(u64, Vec<Step>), String> {
        let (size, mut unused) = (class_bytes(bytes), self.unused);
        let (malloc, fill) = (self.malloc, self.fill);
        let class = self.class(bytes);
        let head = class.head();
        let is_empty = class.stack.is_empty();
        let mut steps = Vec::new();
        let begin = |class: &Class| {
            let top = class.slot(class.stack.len().saturating_sub(1));
            Step::new(
                malloc[0],
                &[
                    (1, SIZES + bytes.min(4096) / 8, false),
                    (2, HEADS - 8, false),
                    (4, head, false),
                    (5, top, false),
                ],
            )
        };
        steps.push(begin(class));
        if is_empty {
            // Large objects are taken one at a time.
            let many = if size > 4096 { 1 } else { FILLED };
            for _ in 0..many {
                let object = class.given_back.pop().unwrap_or_else(|| {
                    let start = if size >= 4096 { unused.next_multiple_of(4096) } else { unused };
                    unused = start + size;
                    start
                });
                let at = class.slot(class.stack.len());
                steps.push(Step::new(fill[0], &[(0, bitmap(object.min(OBJECTS.end)), false), (3, at, true)]));
                class.stack.push_front(object);
            }
            steps.push(Step::new(fill[1], &[]));
        }
        let object = class.stack.pop_back().unwrap_or(unused);
        steps.push(Step::new(malloc[1], &[(0, head, true), (1, head + 8, false), (3, STACK - 8, false)]));
        if unused > OBJECTS.end {
            return Err("the trace's objects take more memory than the machine has".to_owned());
        }
        self.unused = unused;
        Ok((object, steps))
    }

    /// free: the blocks up to the return.
    pub fn free(&mut self, object: u64, bytes: u64) -> Vec<Step> {
        let (free, empty) = (self.free, self.empty);
        let class = self.class(bytes);
        let head = class.head();
        let root = ROOTS + 8 * (object >> 30);
        let mut steps =
            vec![Step::new(free[0], &[(2, root, false), (3, leaf(object), false), (4, head, false)])];
        if class.stack.len() == FULL {
            for index in 0..FULL / 2 {
                let slot = class.slot(index);
                let Some(old) = class.stack.pop_front() else { break };
                let its = [
                    (0, slot, false),
                    (2, leaf(old), false),
                    (3, bitmap(old), false),
                    (5, bitmap(old), true),
                ];
                steps.push(Step::new(empty[0], &its));
                class.given_back.push(old);
            }
            steps.push(Step::new(empty[1], &[]));
        }
        let slot = class.slot(class.stack.len());
        class.stack.push_back(object);
        steps.push(Step::new(free[1], &[(1, slot, true), (2, head, true), (3, STACK - 8, false)]));
        steps
    }
}
