//! One run: from the guest's READY to the region's end.

mod arguments;
mod checkpoint;
mod intervals;
mod marks;
mod pages;
mod results;
mod trace;

use crate::functions::{Call, Function, Functions, Kind};
use crate::guest::GuestMemory;
use crate::instruction::{ALLOCATOR, CR3_WRITE, Instruction, KERNEL_RETURN, MARK, RETURN, SYSTEM_CALL};
use crate::qemu::{self, Buffer, Register, Turns};
use arguments::Arguments;
use checkpoint::Saving;
use intervals::Intervals;
use qemu_plugin_sys::qemu_plugin_id_t;
use sim::isa::block::End;
use sim::isa::decode::BlockDecoder;
use sim::{Access, Description, Machine};
use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use trace::TraceFile;

/// A system call that is a mark: getpgid(0x4d4d0000 | code), for programs in languages without instructions
/// of their own.
const GETPGID: u64 = 121;
const MARKS: u64 = 0x4d4d;
const PROGRESS_EVERY: u64 = 2_000_000;
/// Statistics so far are kept that often.
const KEPT_EVERY: Duration = Duration::from_secs(5);
/// The order in which x86 numbers its registers.
const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing is instrumented.
    Boot,
    /// The machine runs, so that its caches are warm.
    Warm,
    /// The measured region.
    Region,
    /// The results are written.
    Over,
}

/// The machine and the sources of its input.
pub struct Run {
    /// This plugin's name with QEMU.
    pub id: qemu_plugin_id_t,
    /// Makes QEMU translate all code again, with calls to the plugin.
    translate_anew: fn(qemu_plugin_id_t),
    folder: PathBuf,
    description: Description,
    machine: Machine,
    /// The turns of virtual CPUs, on a machine with several cores.
    turns: Option<Turns>,
    decoder: BlockDecoder,
    memory: GuestMemory,
    phase: Phase,
    registers: Vec<Option<Register>>,
    cr3: Option<Register>,
    buffer: Buffer,
    /// The mark KERNEL_FUNCTION of the guest's init: its virtual address, and the host's.
    known: (u64, u64),
    /// The guest's marks so far, if this run makes a checkpoint.
    saving: Option<Saving>,
    /// Where the kernel's observed functions are, as the guest's init reports them.
    kernel_functions: [Range<u64>; pages::FUNCTIONS],
    page_calls: pages::Allocations,
    functions: Functions,
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

impl Run {
    /// From the plugin's arguments.
    pub fn new(
        id: qemu_plugin_id_t,
        translate_anew: fn(qemu_plugin_id_t),
        arguments: impl Iterator<Item = String>,
    ) -> Result<Run, String> {
        let Arguments { folder, most_instructions, keeps_dram, keeps_blocks, save, from, trace, interval } =
            Arguments::parse(arguments)?;
        let file = folder.join("machine.toml");
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        let description = Description::parse(&text, &[])?;
        let functions = match std::fs::read_to_string(folder.join("functions.json")) {
            Ok(text) => serde_json::from_str::<Vec<Function>>(&text)
                .map_err(|error| format!("{}: {error}", folder.join("functions.json").display()))?,
            Err(_) => Vec::new(),
        };
        let mut machine = Machine::new(&description);
        if keeps_dram {
            machine.record_dram();
        }
        let intervals = interval.map(|every| Intervals::new(every, &folder)).transpose()?;
        let mut run = Run {
            id,
            translate_anew,
            folder,
            machine,
            turns: None,
            description,
            decoder: BlockDecoder::new(),
            memory: GuestMemory::default(),
            phase: Phase::Boot,
            registers: Vec::new(),
            cr3: None,
            buffer: Buffer::new(),
            known: (0, 0),
            saving: save.map(Saving::to),
            kernel_functions: Default::default(),
            page_calls: Default::default(),
            functions: Functions::new(functions),
            entries: keeps_blocks.then(Vec::new),
            trace: trace.map(TraceFile::at),
            intervals,
            most_instructions: if most_instructions == 0 { u64::MAX } else { most_instructions },
            next_progress: 0,
            started: Instant::now(),
            started_cpu: 0.0,
            kept: Instant::now(),
            events: 0,
        };
        if let Some(file) = from {
            let told = |error: String| format!("{}: {error}", file.display());
            run.repeat(&std::fs::read(&file).map_err(|error| told(error.to_string()))?).map_err(told)?;
        }
        Ok(run)
    }

    /// The registers' handles exist once the CPU does.
    pub fn find_registers(&mut self) {
        if self.machine.cores() > 1 {
            self.turns = Turns::find(self.machine.cores());
            if self.turns.is_none() {
                self.fail("this QEMU cannot end a core's turn early: use one that is built with modules");
            }
        }
        let all = qemu::registers();
        let find = |name: &str| all.iter().find(|(other, _)| other == name).map(|(_, register)| *register);
        self.registers = NAMES.iter().map(|name| find(name)).collect();
        self.cr3 = find("cr3");
        if self.cr3.is_none() || self.registers.contains(&None) {
            self.fail(
                "this QEMU's plugins cannot read CR3 and the general registers: version 9.1 or later is needed",
            );
        }
    }

    /// Whether the machine times blocks now.
    pub fn instruments(&self) -> bool {
        matches!(self.phase, Phase::Warm | Phase::Region)
    }

    /// QEMU translates a mark.
    pub fn saw_mark(&mut self, code: u16, instruction: &Instruction) {
        if code == 0x40 {
            self.known = (instruction.address, instruction.host);
        }
    }

    /// Decodes the block of these instructions and adds it to the machine; returns its number.
    pub fn decode(&mut self, instructions: &[Instruction]) -> usize {
        let start = &instructions[0];
        if self.memory.is_unknown() {
            // A run from a checkpoint has not seen the mark by which the others know.
            self.known = (start.address, start.host);
            self.find_memory();
        }
        let mut block = self.decoder.block(start.address, instructions.iter().map(Instruction::bytes));
        block.physical = self.memory.physical(start.host);
        let page = start.address >> 12;
        let next = instructions.iter().find(|instruction| instruction.address >> 12 != page);
        block.next_page = match next {
            Some(next) => self.memory.physical(next.host) & !0xfff,
            None => (block.physical & !0xfff) + 4096,
        };
        if matches!(block.ends, End::Call(_) | End::IndirectCall) && !block.is_kernel() {
            self.functions.call_ends(block.end);
        }
        self.machine.add_block(block)
    }

    /// The function of the program's allocator that begins with this block.
    pub fn allocator_function(&self, instructions: &[Instruction]) -> Option<u32> {
        let bytes = instructions.iter().flat_map(|instruction| instruction.bytes().iter().copied());
        self.functions.find(instructions[0].address, bytes)
    }

    /// Whether a call of such a function may return to this address, where this block begins.
    pub fn may_return_to(&mut self, number: usize, address: u64) -> bool {
        self.functions.reads_at(number, address)
    }

    /// The program calls its allocator.
    fn enter_allocator(&mut self, (kind, size): (Kind, u64)) {
        let stack = self.register(4);
        let (first, second) = (self.register(7), self.register(6));
        let Some(back) = self.buffer.memory(stack) else { return };
        let operand = match kind {
            Kind::Malloc | Kind::Free => first,
            Kind::Calloc => first.saturating_mul(second),
            Kind::Realloc | Kind::Aligned => second,
            Kind::PosixMemalign => self.register(2),
            Kind::GoMalloc => self.register(0),
            Kind::GoSweep => 0,
        };
        if kind == Kind::Free && operand == 0 {
            return;
        }
        let owner = kind.owner();
        if self.machine.enter_allocator(owner, operand, stack) {
            let start = self.machine.current_address().unwrap_or_default();
            let is_basic = matches!(kind, Kind::Malloc | Kind::Free);
            self.machine.allocator_code(if is_basic { start..start + size } else { 0..0 });
            if kind == Kind::Realloc {
                self.machine.reallocates(first);
            }
            self.functions.enter(Call { space: self.machine.space(), kind, back, result_at: first });
        }
    }

    /// The program is at an address to which a call of its allocator may have returned.
    fn maybe_return(&mut self) {
        let Some(address) = self.machine.current_address() else { return };
        if self.functions.is_awaited(self.machine.space(), address) {
            let result = self.register(0);
            self.come_back(address, result);
        }
    }

    /// The call has returned. `result`: its return value; 0 where registers cannot be read, since this block
    /// was translated before a call was known to return to it (a jump leads to it as well). Then the object
    /// is not tracked.
    fn come_back(&mut self, address: u64, result: u64) {
        let Some(call) = self.functions.returned(self.machine.space(), address) else { return };
        let result = match call.kind {
            Kind::PosixMemalign => self.buffer.memory(call.result_at).unwrap_or(0),
            _ => result,
        };
        self.machine.return_from_allocator(result);
    }

    /// A block is entered.
    #[inline]
    pub fn enter(&mut self, number: usize) {
        match &self.turns {
            None => self.machine.enter(number, &self.memory),
            Some(turns) => {
                if self.machine.enter_on(turns.current(), number, &self.memory) {
                    turns.end();
                }
            }
        }
        if let Some(entries) = &mut self.entries
            && self.phase == Phase::Region
        {
            entries.resize(entries.len().max(number + 1), 0);
            entries[number] += 1;
        }
        if let Some(start) = self.machine.current_address()
            && self.functions.is_awaited(self.machine.space(), start)
            && !self.functions.is_read_at(number)
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
                self.leave(0);
            }
            let interval_ends = self.intervals.as_ref().map_or(u64::MAX, Intervals::end);
            self.next_progress = self.next_progress.min(self.most_instructions).min(interval_ends);
        }
    }

    /// An observed instruction is about to be executed.
    pub fn special(&mut self, kind: u32, index: usize) {
        if let Some(turns) = &self.turns {
            self.machine.switch(turns.current());
        }
        let number = kind & 0xffff;
        match kind & !0xffff {
            MARK => self.mark(number, index),
            CR3_WRITE => {
                let value = self.register(number as usize);
                self.machine.split(index, &self.memory);
                self.machine.set_root(value);
            }
            SYSTEM_CALL => {
                let (number, operand) = (self.register(0), self.register(7));
                if number == GETPGID && operand >> 16 == MARKS {
                    self.mark(operand as u32 & 0xffff, index);
                } else if self.instruments() {
                    self.machine.system_call(number);
                }
            }
            ALLOCATOR => self.enter_allocator(self.functions.kind_and_size(number)),
            RETURN => self.maybe_return(),
            KERNEL_RETURN => self.kernel_return(number),
            _ => self.kernel_call(number),
        }
    }

    /// Which of the kernel's observed functions begins at this address.
    pub fn kernel_function(&self, address: u64) -> Option<u32> {
        self.kernel_functions.iter().position(|one| one.start == address).map(|index| index as u32)
    }

    /// Which of the functions that allocate pages this block of it may return from: by a return, or by a
    /// jump to the code that all functions of a kernel with mitigations share for that.
    pub fn returns_from(&self, number: usize) -> Option<u32> {
        let block = self.machine.block(number);
        let within = |function: &u32| self.kernel_functions[*function as usize].contains(&block.start);
        let function = [pages::ALLOCATES, pages::ALLOCATES_MANY].into_iter().find(within)?;
        let returns = match block.ends {
            End::Return => true,
            End::Jump(target) => !self.kernel_functions[function as usize].contains(&target),
            _ => false,
        };
        returns.then_some(function)
    }

    fn register(&mut self, number: usize) -> u64 {
        self.registers[number].map_or(0, |register| self.buffer.register(register))
    }

    /// QEMU ends.
    pub fn at_exit(&mut self) {
        if self.phase == Phase::Region {
            self.finish(Some("the guest ended"), None);
        }
    }

    /// Ends QEMU with one line, which the launcher shows.
    fn fail(&mut self, message: &str) -> ! {
        let _ = std::fs::write(self.folder.join("failure"), format!("{message}\n"));
        self.leave(1)
    }

    fn leave(&mut self, status: i32) -> ! {
        self.phase = Phase::Over;
        std::process::exit(status)
    }
}
