//! The speed of the machine's model, without an emulator: `cargo run --release -p sim --example speed`.
//!
//! A made-up program: 2000 blocks of 5 to 8 instructions, which load and store in a working set of the given
//! size and branch at random a tenth of the time. Prints millions of instructions a second, and the stream's
//! own cost apart.

use sim::isa::decode::BlockDecoder;
use sim::memory::tlb::PageTables;
use sim::{Access, Description, Machine};
use std::time::Instant;

struct NoTables;

impl PageTables for NoTables {
    fn entry(&self, physical: u64) -> u64 {
        physical | 1
    }
}

fn main() {
    let description = Description::load("table3", &[]).unwrap();
    for (name, working_set) in [("16 KiB", 16 << 10), ("1 MiB", 1 << 20), ("16 MiB", 16 << 20)] {
        let mut machine = Machine::new(&description);
        machine.set_root(0);
        let mut random = Random(1);
        // add [rbx], rax; mov rcx, [rbx]; add rcx, rdx; imul rdx, rcx; lea; test; je
        let texts: [&[u8]; 7] = [
            &[0x48, 0x01, 0x03],
            &[0x48, 0x8b, 0x0b],
            &[0x48, 0x01, 0xd1],
            &[0x48, 0x0f, 0xaf, 0xd1],
            &[0x48, 0x8d, 0x74, 0x10, 0x08],
            &[0x48, 0x85, 0xc9],
            &[0x74, 0x10],
        ];
        let mut start = 0x40_0000;
        let mut blocks = Vec::new();
        for number in 0..2000 {
            let mut block = BlockDecoder::new().block(start, texts[number % 3..].iter().copied());
            block.physical = start;
            block.next_page = (start & !0xfff) + 4096;
            start = block.end;
            let touches: Vec<u16> = block
                .operations
                .iter()
                .enumerate()
                .filter(|(_, o)| o.flags & sim::isa::block::LOAD != 0)
                .map(|(i, _)| i as u16)
                .collect();
            blocks.push((machine.add_block(block), touches));
        }
        let turns = 4_000_000;
        let clock = Instant::now();
        let mut at = 0;
        for turn in 0..turns {
            let (block, touches) = &blocks[at];
            machine.enter(*block, &NoTables);
            for index in touches {
                let address = (0x1000_0000 + random.next() % working_set) & !7;
                machine.access(Access {
                    address,
                    physical: address,
                    index: *index,
                    size: 8,
                    store: false,
                    device: false,
                });
            }
            at = if turn % 10 == 0 { random.next() as usize % blocks.len() } else { (at + 1) % blocks.len() };
        }
        machine.pause(&NoTables);
        let seconds = clock.elapsed().as_secs_f64();
        println!(
            "{name:>8}: {:6.1} MIPS, {:.2} instructions a cycle, {} L1d misses",
            machine.instructions() as f64 / seconds / 1e6,
            machine.instructions() as f64 / machine.cycles() as f64,
            machine.parts().1.counts().l1d.misses,
        );
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
