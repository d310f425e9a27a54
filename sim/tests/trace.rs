//! Traces for ChampSim: what they have of a program, read again.

mod common;

use common::*;
use iced_x86::code_asm::*;
use sim::Access;
use sim::system::trace::{RECORD_BYTES, Trace};
use std::io::Write;
use std::sync::{Arc, Mutex};

/// Writes a block's instructions.
type Assembly = dyn Fn(&mut CodeAssembler) -> Assembled;

/// A file in memory.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A record, read as inc/trace_instruction.h has it.
#[derive(Debug, PartialEq)]
struct Record {
    ip: u64,
    branch: bool,
    taken: bool,
    written: Vec<u8>,
    read: Vec<u8>,
    stores: Vec<u64>,
    loads: Vec<u64>,
}

/// Kinds of branches, as inc/instruction.h tells them.
fn kind(record: &Record) -> &'static str {
    const STACK: u8 = 6;
    const FLAGS: u8 = 25;
    const NEXT: u8 = 26;
    let has = |list: &[u8], number| list.contains(&number);
    let other = record.read.iter().any(|number| ![STACK, FLAGS, NEXT].contains(number));
    let [reads_sp, reads_flags, reads_ip] = [STACK, FLAGS, NEXT].map(|number| has(&record.read, number));
    let [writes_sp, writes_ip] = [STACK, NEXT].map(|number| has(&record.written, number));
    match () {
        () if !reads_sp && !reads_flags && writes_ip && !other => "jump",
        () if !reads_sp && !reads_ip && !reads_flags && writes_ip && other => "indirect",
        () if !reads_sp && reads_ip && !writes_sp && writes_ip && (reads_flags || other) => "conditional",
        () if reads_sp && reads_ip && writes_sp && writes_ip && !reads_flags && !other => "call",
        () if reads_sp && reads_ip && writes_sp && writes_ip && !reads_flags && other => "indirect call",
        () if reads_sp && !reads_ip && writes_sp && writes_ip => "return",
        () if writes_ip => "other",
        () => "none",
    }
}

fn read(bytes: &[u8]) -> Vec<Record> {
    assert_eq!(bytes.len() % RECORD_BYTES, 0);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let some = |bytes: &[u8]| bytes.chunks(8).map(word).filter(|address| *address != 0).collect();
    let registers = |bytes: &[u8]| bytes.iter().copied().filter(|number| *number != 0).collect();
    bytes
        .chunks(RECORD_BYTES)
        .map(|one| Record {
            ip: word(&one[..8]),
            branch: one[8] == 1,
            taken: one[9] == 1,
            written: registers(&one[10..12]),
            read: registers(&one[12..16]),
            stores: some(&one[16..32]),
            loads: some(&one[32..64]),
        })
        .collect()
}

/// What is traced while `body` runs.
fn traced(bench: &mut Bench, body: impl FnOnce(&mut Bench)) -> Vec<Record> {
    let output = Output::default();
    bench.machine.start_region();
    bench.machine.start_trace(Trace::to(Box::new(output.clone())));
    body(bench);
    bench.machine.pause(&bench.tables);
    bench.machine.end_trace().unwrap();
    let bytes = output.0.lock().unwrap().clone();
    read(&bytes)
}

#[test]
fn instructions_addresses_and_directions_are_the_programs() {
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| {
        a.add(qword_ptr(rbx + rcx * 8), rax)?;
        a.mov(rdx, qword_ptr(rsi))?;
        a.test(rdx, rdx)?;
        a.je(CODE)
    }));
    let end = bench.machine.block(body).end;
    let back = bench.add(block(end, |a| a.jmp(CODE)));
    let found = traced(&mut bench, |bench| {
        for (turn, next) in [(1, body), (2, body), (3, back), (4, body)] {
            bench.enter(body);
            bench.load(0, 0x1000 * turn);
            bench.store(0, 0x1000 * turn);
            bench.load(1, 0x9000 + turn);
            if next == back {
                bench.enter(back);
            }
        }
        bench.enter(body);
    });
    let counted = bench.machine.instructions();
    assert_eq!(found.len() as u64, counted);
    let branches: Vec<_> = found.iter().filter(|one| one.branch).map(|one| (kind(one), one.taken)).collect();
    let (again, through, jump) = (("conditional", true), ("conditional", false), ("jump", true));
    assert_eq!(branches, [again, again, through, jump, again]);
    assert_eq!(bench.statistic("branch.conditional"), 4.0);
    let first = &found[0];
    assert_eq!((first.ip, &first.loads[..], &first.stores[..]), (CODE, &[0x1000][..], &[0x1000][..]));
    assert_eq!(first.read.len(), 3, "rbx, rcx and rax: {first:?}");
    assert_eq!(found[1].loads, [0x9001]);
    assert_eq!((found[1].written.len(), kind(&found[1])), (1, "none"));
    assert_eq!(found[2].written, [25], "the flags");
    let all = |of: fn(&Record) -> usize| found.iter().map(of).sum::<usize>() as f64;
    assert_eq!(all(|one| one.loads.len()), bench.statistic("loads"));
    assert_eq!(all(|one| one.stores.len()), bench.statistic("stores"));
}

#[test]
fn each_kind_of_branch_is_champsims() {
    let mut bench = Bench::new(&[]);
    let kinds: [(&str, &Assembly); 9] = [
        ("jump", &|a| a.jmp(CODE)),
        ("conditional", &|a| a.jne(CODE)),
        ("conditional", &|a| a.jrcxz(CODE + 0x10)),
        ("indirect", &|a| a.jmp(rax)),
        ("indirect", &|a| a.jmp(qword_ptr(CODE as i32))),
        ("call", &|a| a.call(CODE)),
        ("indirect call", &|a| a.call(qword_ptr(rbx))),
        ("return", &|a| a.ret()),
        ("other", &|a| a.syscall()),
    ];
    let blocks: Vec<_> = kinds.iter().map(|(_, write)| bench.add(block(CODE, write))).collect();
    let found = traced(&mut bench, |bench| {
        for number in &blocks {
            bench.enter(*number);
            let operation = bench.machine.block(*number).operations[0];
            if operation.flags & sim::isa::block::LOAD != 0 {
                bench.load(0, 0x5000);
            }
            if operation.flags & sim::isa::block::STORE != 0 {
                bench.store(0, 0x6000);
            }
        }
    });
    let wanted: Vec<_> = kinds.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.iter().map(kind).collect::<Vec<_>>(), wanted);
    assert!(found.iter().all(|one| one.branch));
}

#[test]
fn elements_of_a_string_instruction_are_records_beside_the_instructions() {
    let mut bench = Bench::new(&[]);
    let copy = bench.add(block_of(CODE, &[0xf3, 0xaa])); // rep stosb
    let end = bench.add(block(CODE + 2, |a| a.jmp(CODE)));
    let found = traced(&mut bench, |bench| {
        for byte in 0..256 {
            bench.enter(copy);
            bench.machine.access(Access { size: 1, ..access(0, 0x7000 + byte, true) });
        }
        bench.enter(end);
    });
    assert_eq!(bench.machine.instructions(), 2);
    // Four lines: the first is the instruction's.
    assert_eq!((found.len(), bench.statistic("trace.repetitions")), (5, 3.0));
    let lines: Vec<_> = found.iter().flat_map(|one| one.stores.clone()).collect();
    assert_eq!(lines, [0x7000, 0x7040, 0x7080, 0x70c0]);
}

#[test]
fn an_output_that_takes_nothing_is_an_error() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut bench = Bench::new(&[]);
    let body = bench.add(block(CODE, |a| a.jmp(CODE)));
    bench.machine.start_trace(Trace::to(Box::new(Full)));
    for _ in 0..10_000 {
        bench.enter(body);
    }
    bench.machine.pause(&bench.tables);
    assert_eq!(bench.machine.end_trace().unwrap_err().kind(), std::io::ErrorKind::StorageFull);
}
