//! One run's machine, and what is kept of it: from the guest's READY to the region's end.
//!
//! It gets what the guest does as blocks, accesses and [`Event`]s, and asks QEMU nothing: so it may have a
//! thread of its own.

mod intervals;
pub mod marks;
pub mod pages;
mod results;
mod trace;

use crate::arguments::Arguments;
use crate::functions::{Call, Calls, Function, Functions, Kind};
use crate::qemu;
use crate::tables::Tables;
use intervals::Intervals;
use pages::{Asked, Got};
use sim::{Access, Block, Description, Machine};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trace::TraceFile;

/// The upper half of the operand of a system call that is a mark.
pub const MARKS: u64 = 0x4d4d;
const PROGRESS_EVERY: u64 = 2_000_000;
/// Statistics so far are kept that often.
const KEPT_EVERY: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing is instrumented.
    Boot,
    /// The machine runs, so that its caches are warm.
    Warm,
    /// The measured region.
    Region,
    /// The results are written.
    Over,
}

impl Phase {
    /// Whether the machine times blocks now.
    pub fn instruments(self) -> bool {
        matches!(self, Phase::Warm | Phase::Region)
    }
}

/// A call of the program's allocator.
pub struct Request {
    /// The function.
    pub function: u32,
    /// The stack pointer.
    pub stack: u64,
    /// Where it returns to.
    pub back: u64,
    /// The first three arguments.
    pub arguments: [u64; 3],
    /// RAX.
    pub rax: u64,
}

/// What the guest does, beside entering blocks and accessing memory. Those with an index happen before that
/// instruction of the block is executed.
pub enum Event {
    /// A new block, and whether registers are read at its begin.
    Block(Block, bool),
    /// A mark and its operands.
    Mark { code: u32, index: usize, operands: [u64; 2] },
    /// CR3 is written.
    Root { index: usize, value: u64 },
    /// The number of a system call.
    SystemCall(u64),
    /// The program calls its allocator.
    Request(Request),
    /// It is where such a call may have returned, with this in RAX.
    Returned(u64),
    /// What posix_memalign has stored: it returns to the block that is entered next.
    Aligned(u64),
    /// The kernel allocates pages.
    Allocates(Asked),
    /// And has them; the stack pointer says which allocation that was.
    Allocated { stack: u64, got: Got },
    /// It frees pages: their first and their order.
    Frees(Vec<(u64, u64)>),
    /// A process is gone, by its page table's root.
    Exits(u64),
    /// A page of the guest's page tables, and its content.
    Table(u64, Box<[u64; 512]>),
    /// QEMU ends.
    End,
}

/// The machine, and what a run keeps of it.
pub struct Model {
    folder: PathBuf,
    description: Description,
    machine: Machine,
    /// The guest's page tables.
    pub tables: Tables,
    phase: Phase,
    page_calls: pages::Allocations,
    functions: Functions,
    calls: Calls,
    /// What the next call of posix_memalign that returns has stored.
    aligned: u64,
    /// How often each block of the region was entered, by its number, if that is to be kept.
    entries: Option<Vec<u64>>,
    /// The trace that it writes.
    trace: Option<TraceFile>,
    intervals: Option<Intervals>,
    most_instructions: u64,
    next_progress: u64,
    started: Instant,
    started_cpu: f64,
    kept: Instant,
    events: u64,
}

impl Model {
    /// A machine, and files for what it counts. `functions`: the program's allocator.
    ///
    /// # Errors
    /// There is no machine in the folder, or no file can be written there.
    pub fn new(arguments: &Arguments, functions: Vec<Function>) -> Result<Model, String> {
        let folder = arguments.folder.clone();
        let file = folder.join("machine.toml");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let description = Description::parse(&text, &[])?;
        let mut machine = Machine::new(&description);
        if arguments.keeps_dram {
            machine.record_dram();
        }
        let most = arguments.most_instructions;
        let intervals = arguments.interval.map(|every| Intervals::new(every, &folder)).transpose()?;
        Ok(Model {
            folder,
            machine,
            description,
            tables: Tables::default(),
            phase: Phase::Boot,
            page_calls: Default::default(),
            functions: Functions::new(functions),
            calls: Calls::default(),
            aligned: 0,
            entries: arguments.keeps_blocks.then(Vec::new),
            trace: arguments.trace.clone().map(TraceFile::at),
            intervals,
            most_instructions: if most == 0 { u64::MAX } else { most },
            next_progress: 0,
            started: Instant::now(),
            started_cpu: 0.0,
            kept: Instant::now(),
            events: 0,
        })
    }

    /// How many cores it has.
    pub fn cores(&self) -> usize {
        self.machine.cores()
    }

    /// The root of the page table that the core has.
    pub fn root(&self) -> u64 {
        self.machine.root()
    }

    /// Whether the machine times blocks now.
    pub fn instruments(&self) -> bool {
        self.phase.instruments()
    }

    /// A block is entered.
    #[inline]
    pub fn enter(&mut self, number: usize) {
        self.machine.enter(number, &self.tables);
        self.entered(number);
    }

    /// The same on this core of several: whether its turn is over.
    #[inline]
    pub fn enter_on(&mut self, core: usize, number: usize) -> bool {
        let ends = self.machine.enter_on(core, number, &self.tables);
        self.entered(number);
        ends
    }

    /// What follows happens on this core of several.
    pub fn switch(&mut self, core: usize) {
        self.machine.switch(core);
    }

    #[inline]
    fn entered(&mut self, number: usize) {
        if let Some(entries) = &mut self.entries
            && self.phase == Phase::Region
        {
            entries.resize(entries.len().max(number + 1), 0);
            entries[number] += 1;
        }
        if let Some(start) = self.machine.current_address()
            && self.calls.is_awaited(self.machine.space(), start)
            && !self.calls.is_read_at(number)
        {
            self.come_back(start, 0);
        }
        if self.machine.instructions() >= self.next_progress {
            self.progress();
        }
    }

    /// Memory is accessed.
    #[inline]
    pub fn access(&mut self, access: Access) {
        self.machine.access(access);
    }

    /// Something else happens.
    pub fn happens(&mut self, event: Event) {
        match event {
            Event::Block(block, is_read) => {
                let number = self.machine.add_block(block);
                if is_read {
                    self.calls.reads_at(number);
                }
            }
            Event::Mark { code, index, operands } => {
                if self.instruments() {
                    self.machine.split(index, &self.tables);
                }
                self.act(code, operands);
            }
            Event::Root { index, value } => {
                self.machine.split(index, &self.tables);
                self.machine.set_root(value);
            }
            Event::SystemCall(number) => self.machine.system_call(number),
            Event::Request(request) => self.enter_allocator(&request),
            Event::Returned(result) => self.maybe_return(result),
            Event::Aligned(address) => self.aligned = address,
            Event::Allocates(asked) => self.allocates(asked),
            Event::Allocated { stack, got } => self.allocated(stack, got),
            Event::Frees(all) => self.frees(&all),
            Event::Exits(root) => self.machine.process_exited(root),
            Event::Table(page, content) => self.tables.set_page(page, content),
            Event::End => {
                if self.phase == Phase::Region {
                    self.finish(Some("the guest ended"), None);
                    self.phase = Phase::Over;
                }
            }
        }
    }

    /// Before anything else: a mark of a checkpoint's file.
    pub fn repeat(&mut self, root: u64, code: u32, operands: [u64; 2]) {
        self.machine.set_root(root);
        self.act(code, operands);
    }

    /// The program calls its allocator.
    fn enter_allocator(&mut self, request: &Request) {
        let (kind, size) = self.functions.kind_and_size(request.function);
        let [first, second, third] = request.arguments;
        let operand = match kind {
            Kind::Malloc | Kind::Free => first,
            Kind::Calloc => first.saturating_mul(second),
            Kind::Realloc | Kind::Aligned => second,
            Kind::PosixMemalign => third,
            Kind::GoMalloc => request.rax,
            Kind::GoSweep => 0,
        };
        if kind == Kind::Free && operand == 0 {
            return;
        }
        if self.machine.enter_allocator(kind.owner(), operand, request.stack) {
            let start = self.machine.current_address().unwrap_or_default();
            let is_basic = matches!(kind, Kind::Malloc | Kind::Free);
            self.machine.allocator_code(if is_basic { start..start + size } else { 0..0 });
            if kind == Kind::Realloc {
                self.machine.reallocates(first);
            }
            self.calls.enter(Call { space: self.machine.space(), kind, back: request.back });
        }
    }

    /// The program is at an address to which a call of its allocator may have returned.
    fn maybe_return(&mut self, result: u64) {
        let Some(address) = self.machine.current_address() else { return };
        if self.calls.is_awaited(self.machine.space(), address) {
            self.come_back(address, result);
        }
    }

    /// The call has returned. `result`: its return value; 0 where registers cannot be read, since this block
    /// was translated before a call was known to return to it (a jump leads to it as well). Then the object
    /// is not tracked.
    fn come_back(&mut self, address: u64, result: u64) {
        let Some(call) = self.calls.returned(self.machine.space(), address) else { return };
        let result = match call.kind {
            Kind::PosixMemalign => std::mem::take(&mut self.aligned),
            _ => result,
        };
        self.machine.return_from_allocator(result);
    }

    #[cold]
    fn progress(&mut self) {
        let instructions = self.machine.instructions();
        self.next_progress = instructions + PROGRESS_EVERY;
        if self.phase == Phase::Region {
            let line = format!(
                "{instructions} {} {:.3}\n",
                self.machine.cycles(),
                self.started.elapsed().as_secs_f64()
            );
            let _ = std::fs::write(self.folder.join("progress"), line);
            if self.intervals.as_ref().is_some_and(|one| instructions >= one.end()) {
                self.end_interval();
            }
            if self.kept.elapsed() >= KEPT_EVERY {
                self.keep();
                self.kept = Instant::now();
            }
            if instructions >= self.most_instructions {
                self.finish(Some("max-instructions"), None);
                qemu::leave(0);
            }
            let interval_ends = self.intervals.as_ref().map_or(u64::MAX, Intervals::end);
            self.next_progress = self.next_progress.min(self.most_instructions).min(interval_ends);
        }
    }

    /// Ends QEMU with one line, which the launcher shows.
    fn fail(&self, message: &str) -> ! {
        let _ = std::fs::write(self.folder.join("failure"), format!("{message}\n"));
        qemu::leave(1)
    }
}
