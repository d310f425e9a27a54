//! Synthetic programs: assembled blocks, run on a machine with made-up addresses.
#![allow(dead_code)]

use iced_x86::code_asm::CodeAssembler;
use iced_x86::{Decoder, DecoderOptions, IcedError};
use sim::isa::decode::BlockDecoder;
use sim::memory::tlb::PageTables;
use sim::system::statistics::Statistics;
use sim::{Access, Block, Description, Machine};

pub const CODE: u64 = 0x40_0000;

/// Page tables of a whole address space that maps every page to itself, without storing any: the table of
/// level L for the prefix p lies at 2^(43-L) + 4096 p.
pub struct Identity {
    /// Pages of 2 MiB.
    pub large: bool,
}

impl Identity {
    pub const ROOT: u64 = 1 << 40;
}

impl PageTables for Identity {
    fn entry(&self, physical: u64) -> u64 {
        let level = 43 - u64::from(physical.ilog2());
        let number = (physical - (1 << (43 - level))) / 8;
        match level {
            0 => (number << 12) | 1,
            1 if self.large => (number << 21) | 0x81,
            _ => ((1 << (44 - level)) + number * 4096) | 1,
        }
    }
}

pub type Assembled = Result<(), IcedError>;

/// Assembles a block that lies at `start`.
pub fn block(start: u64, write: impl Fn(&mut CodeAssembler) -> Assembled) -> Block {
    let mut assembler = CodeAssembler::new(64).unwrap();
    write(&mut assembler).unwrap();
    let bytes = assembler.assemble(start).unwrap();
    block_of(start, &bytes)
}

/// The block of these bytes.
pub fn block_of(start: u64, bytes: &[u8]) -> Block {
    let mut decoder = Decoder::with_ip(64, bytes, start, DecoderOptions::NONE);
    let mut ends = vec![0];
    while decoder.can_decode() {
        let _ = decoder.decode();
        ends.push(decoder.position());
    }
    let pieces = ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
    let mut block = BlockDecoder::new().block(start, pieces);
    block.physical = start;
    block.next_page = (start & !0xfff) + 4096;
    block
}

/// A machine and its address space.
pub struct Bench {
    pub machine: Machine,
    pub description: Description,
    pub tables: Identity,
}

impl Bench {
    pub fn new(overrides: &[&str]) -> Bench {
        Bench::of("table3", overrides)
    }

    pub fn of(machine: &str, overrides: &[&str]) -> Bench {
        let overrides: Vec<_> = overrides.iter().map(|item| item.to_string()).collect();
        Bench::on(Description::load(machine, &overrides).unwrap())
    }

    pub fn on(description: Description) -> Bench {
        let mut machine = Machine::new(&description);
        machine.set_root(Identity::ROOT);
        Bench { machine, description, tables: Identity { large: true } }
    }

    pub fn add(&mut self, block: Block) -> usize {
        self.machine.add_block(block)
    }

    pub fn enter(&mut self, block: usize) {
        self.machine.enter(block, &self.tables);
    }

    pub fn load(&mut self, index: u16, address: u64) {
        self.machine.access(access(index, address, false));
    }

    pub fn store(&mut self, index: u16, address: u64) {
        self.machine.access(access(index, address, true));
    }

    /// Runs `body` a number of times to warm up and then as often again; cycles of the second half.
    pub fn measure(&mut self, times: u64, mut body: impl FnMut(&mut Bench, u64)) -> u64 {
        for turn in 0..times {
            body(self, turn);
        }
        self.machine.pause(&self.tables);
        self.machine.start_region();
        for turn in 0..times {
            body(self, turn);
        }
        self.machine.pause(&self.tables);
        self.machine.cycles()
    }

    pub fn statistics(&self) -> Statistics {
        let statistics = Statistics::of(&self.machine, &self.description);
        assert!(statistics.broken.is_empty(), "{:?}", statistics.broken);
        statistics
    }

    pub fn statistic(&self, name: &str) -> f64 {
        self.statistics().get(name).unwrap_or_else(|| panic!("no statistic {name}"))
    }
}

pub fn access(index: u16, address: u64, store: bool) -> Access {
    Access { address, physical: address, index, size: 8, store, device: false }
}

/// SplitMix64, so that every run is the same.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// `value` is within `part` of `expected`.
#[track_caller]
pub fn assert_near(value: f64, expected: f64, part: f64, what: &str) {
    assert!(
        (value - expected).abs() <= part * expected.abs(),
        "{what}: {value}, expected {expected} ± {}%",
        part * 100.0
    );
}
