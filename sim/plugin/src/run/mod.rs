//! One run, as QEMU's thread sees it: it passes on to the machine what the guest does.

mod allocator;
mod checkpoint;
mod kernel;
mod marks;

use crate::arguments::Arguments;
use crate::engine::Engine;
use crate::functions::{Function, Functions};
use crate::guest::GuestMemory;
use crate::instruction::{ALLOCATOR, CR3_WRITE, Instruction, KERNEL_RETURN, MARK, RETURN, SYSTEM_CALL};
use crate::model::{Event, MARKS, Model, Phase};
use crate::qemu::{self, Buffer, Register, Turns};
use crate::tables::{Seen, Tables};
use allocator::Returns;
use checkpoint::Saving;
use kernel::Kernel;
use qemu_plugin_sys::qemu_plugin_id_t;
use sim::Access;
use sim::isa::block::End;
use sim::isa::decode::BlockDecoder;
use std::path::PathBuf;

/// A system call that is a mark: getpgid(0x4d4d0000 | code), for programs in languages without instructions
/// of their own.
const GETPGID: u64 = 121;
/// The launcher gives the guest no more memory: below the hole for devices.
const MOST_MEMORY: u64 = 2 << 30;
/// The order in which x86 numbers its registers.
const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;
const R9: usize = 9;

/// A block that QEMU translates.
pub struct Decoded {
    /// Its number.
    pub number: usize,
    /// A function of the kernel that allocates pages and may return from it.
    pub returns_from: Option<u32>,
    /// A call of the program's allocator may return to it.
    pub is_returned_to: bool,
}

/// QEMU's side of a run.
pub struct Run {
    /// This plugin's name with QEMU.
    pub id: qemu_plugin_id_t,
    /// Makes QEMU translate all code again, with calls to the plugin.
    translate_anew: fn(qemu_plugin_id_t),
    folder: PathBuf,
    engine: Engine,
    phase: Phase,
    cores: usize,
    /// The turns of virtual CPUs, on a machine with several cores.
    turns: Option<Turns>,
    decoder: BlockDecoder,
    memory: GuestMemory,
    /// The page tables that a machine in another thread has.
    seen: Option<Seen>,
    registers: Vec<Option<Register>>,
    cr3: Option<Register>,
    buffer: Buffer,
    /// The page table's root.
    root: u64,
    /// The mark KERNEL_FUNCTION of the guest's init: its virtual address, and the host's.
    known: (u64, u64),
    /// The guest's marks so far, if this run makes a checkpoint.
    saving: Option<Saving>,
    kernel: Kernel,
    functions: Functions,
    /// The first and the last address of each block.
    blocks: Vec<(u64, u64)>,
    /// The block that is executed.
    current: usize,
    requests: Returns,
    /// Calls of posix_memalign: where they return to, and where the result will be.
    aligned: Vec<(u64, u64)>,
}

impl Run {
    /// From the plugin's arguments.
    pub fn new(
        id: qemu_plugin_id_t,
        translate_anew: fn(qemu_plugin_id_t),
        arguments: impl Iterator<Item = String>,
    ) -> Result<Run, String> {
        let arguments = Arguments::parse(arguments)?;
        let file = arguments.folder.join("functions.json");
        let functions = match std::fs::read_to_string(&file) {
            Ok(text) => serde_json::from_str::<Vec<Function>>(&text)
                .map_err(|error| format!("{}: {error}", file.display()))?,
            Err(_) => Vec::new(),
        };
        let mut model = Model::new(&arguments, functions.clone())?;
        let mut kernel = Kernel::default();
        if let Some(file) = &arguments.from {
            let told = |error: String| format!("{}: {error}", file.display());
            let bytes = std::fs::read(file).map_err(|error| told(error.to_string()))?;
            checkpoint::repeat(&bytes, &mut model, &mut kernel).map_err(told)?;
        }
        let (cores, root) = (model.cores(), model.root());
        let phase = if model.instruments() { Phase::Warm } else { Phase::Boot };
        // Cores' turns end when the machine says so, which it does at once or not at all.
        let has_thread = arguments.threads && cores == 1;
        if has_thread {
            model.tables = Tables::copies();
        }
        let mut seen = has_thread.then(|| Seen::new(MOST_MEMORY));
        if let Some(seen) = &mut seen {
            seen.set_root(root);
        }
        Ok(Run {
            id,
            translate_anew,
            folder: arguments.folder,
            engine: if has_thread { Engine::of_thread(model) } else { Engine::Own(Box::new(model)) },
            phase,
            cores,
            turns: None,
            decoder: BlockDecoder::new(),
            memory: GuestMemory::default(),
            seen,
            registers: Vec::new(),
            cr3: None,
            buffer: Buffer::new(),
            root,
            known: (0, 0),
            saving: arguments.save.map(Saving::to),
            kernel,
            functions: Functions::new(functions),
            blocks: Vec::new(),
            current: 0,
            requests: Returns::default(),
            aligned: Vec::new(),
        })
    }

    /// The registers' handles exist once the CPU does.
    pub fn find_registers(&mut self) {
        if self.cores > 1 {
            self.turns = Turns::find(self.cores);
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
        self.phase.instruments()
    }

    /// Decodes the block of these instructions and adds it to the machine.
    pub fn decode(&mut self, instructions: &[Instruction]) -> Decoded {
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
        let number = self.blocks.len();
        self.blocks.push((block.start, block.end - 1));
        let returns_from = self.kernel.returns_from(&block);
        let is_returned_to = self.functions.reads_at(block.start);
        self.engine.happens(Event::Block(block, is_returned_to));
        Decoded { number, returns_from, is_returned_to }
    }

    /// A block is entered.
    #[inline]
    pub fn enter(&mut self, number: usize) {
        self.current = number;
        if !self.aligned.is_empty() {
            self.aligned_returns(self.blocks[number].0);
        }
        match &self.turns {
            None => {
                if self.seen.is_some() {
                    let (first, last) = self.blocks[number];
                    self.see(first);
                    if first >> 12 != last >> 12 {
                        self.see(last);
                    }
                }
                self.engine.enter(number);
            }
            Some(turns) => {
                if let Engine::Own(model) = &mut self.engine
                    && model.enter_on(turns.current(), number)
                {
                    turns.end();
                }
            }
        }
    }

    /// Memory is accessed.
    #[inline]
    pub fn access(&mut self, access: Access) {
        self.see(access.address);
        self.engine.access(access);
        if access.store
            && !access.device
            && let Some(seen) = &self.seen
            && seen.is_table(access.physical)
        {
            self.table_written(access);
        }
    }

    /// The machine has the tables for this address.
    #[inline]
    fn see(&mut self, address: u64) {
        if let Some(seen) = &mut self.seen
            && !seen.knows(address)
        {
            let engine = &mut self.engine;
            seen.see(address, &self.memory, |page, content| engine.happens(Event::Table(page, content)));
        }
    }

    #[inline(never)]
    fn table_written(&mut self, access: Access) {
        use sim::memory::tlb::PageTables;
        let first = access.physical & !7;
        for word in (first..access.physical + u64::from(access.size)).step_by(8) {
            self.engine.word(word, self.memory.entry(word));
        }
        if let Some(seen) = &mut self.seen {
            seen.written(access.physical);
        }
    }

    /// An observed instruction is about to be executed.
    pub fn special(&mut self, kind: u32, index: usize) {
        if let Some(turns) = &self.turns
            && let Engine::Own(model) = &mut self.engine
        {
            model.switch(turns.current());
        }
        let number = kind & 0xffff;
        match kind & !0xffff {
            MARK => self.mark(number, index),
            CR3_WRITE => {
                let value = self.register(number as usize);
                self.set_root(index, value);
            }
            SYSTEM_CALL => {
                let (number, operand) = (self.register(RAX), self.register(RDI));
                if number == GETPGID && operand >> 16 == MARKS {
                    self.mark(operand as u32 & 0xffff, index);
                } else if self.instruments() {
                    self.engine.happens(Event::SystemCall(number));
                }
            }
            ALLOCATOR => self.calls_allocator(number),
            RETURN => self.maybe_return(),
            KERNEL_RETURN => self.kernel_return(number),
            _ => self.kernel_call(number),
        }
    }

    fn set_root(&mut self, index: usize, value: u64) {
        self.root = value;
        if let Some(seen) = &mut self.seen {
            seen.set_root(value);
        }
        self.engine.happens(Event::Root { index, value });
    }

    fn register(&mut self, number: usize) -> u64 {
        self.registers[number].map_or(0, |register| self.buffer.register(register))
    }

    /// QEMU ends.
    pub fn at_exit(&mut self) {
        if self.phase == Phase::Region {
            self.engine.happens(Event::End);
            self.engine.wait();
        }
    }

    /// Ends QEMU with one line, which the launcher shows.
    fn fail(&self, message: &str) -> ! {
        let _ = std::fs::write(self.folder.join("failure"), format!("{message}\n"));
        qemu::leave(1)
    }
}
