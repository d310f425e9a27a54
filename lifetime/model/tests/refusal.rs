//! Files that are cut short, damaged, stale or malicious: refused, or harmless.

mod maker;

use lifetime_model::{Kernel, Model};
use maker::{Aligned, Maker, sign};
use proptest::prelude::*;

fn refusal(file: &[u8]) -> Option<&'static str> {
    Model::parse(Aligned::new(file).bytes()).err()
}

/// The offsets of a section and of its entry in the table.
fn section(file: &[u8], kind: u32) -> (usize, usize) {
    let count = file[12] as usize;
    let entry = (0..count).map(|i| 64 + 32 * i).find(|&at| file[at] == kind as u8).unwrap();
    (u64::from_le_bytes(file[entry + 8..entry + 16].try_into().unwrap()) as usize, entry)
}

/// The file with bytes of it changed, signed again.
fn with(file: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut changed = file.to_vec();
    changed[at..at + bytes.len()].copy_from_slice(bytes);
    sign(&mut changed);
    changed
}

#[test]
fn names_the_fault() {
    let whole = Maker::random(3, 16, 20, 2, 3).file();
    assert_eq!(refusal(&whole), None);
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(refusal(&flipped), Some("its checksum is wrong: damaged"));
    assert_eq!(refusal(&whole[..whole.len() - 1]), Some("it is not as long as it says: cut short?"));
    assert_eq!(refusal(b""), Some("it does not begin with MAYFLYLM: not a model that `mayfly train` wrote"));
    let changed = |at: usize, number: u32| refusal(&with(&whole, at, &number.to_le_bytes())).unwrap();
    assert_eq!(changed(8, 2), "it has another version than this heap reads: train again");
    assert_eq!(changed(32, 7), "its encoder is not known to this heap");
    assert_eq!(changed(36, 129), "its hidden size is not from 16 to 128");
    assert_eq!(changed(36, 24), "its hidden size is not a multiple of 16");
    assert_eq!(changed(36, 32), "it has not as many rows as it says");
    assert_eq!(changed(40, 9), "its outputs are not from 2 to 8");
    assert_eq!(changed(44, 0), "it has too many rows, or none");
    assert_eq!(changed(48, 65), "its contexts have not from 1 to 64 frames");
    assert_eq!(changed(52, 2), "its order of steps is not known");
    assert_eq!(changed(12, u32::MAX), "its section table lies outside of it");
    let entry = |kind| section(&whole, kind).1;
    assert_eq!(changed(entry(8), 7), "a section is there twice");
    assert_eq!(changed(entry(8), 99), "a section is missing");
    assert_eq!(changed(entry(8) + 12, 1), "a section lies outside of it");
    assert_eq!(changed(entry(8) + 20, 1), "a section lies outside of it");
    assert_eq!(changed(entry(8) + 8, 64), "a section begins where none can");
    assert_eq!(changed(entry(9) + 16, 7), "a section ends within an entry");
    assert_eq!(changed(entry(9) + 24, 7), "a section has not the number of entries that it should have");
    let data = |kind| section(&whole, kind).0;
    assert_eq!(changed(data(10), f32::NAN.to_bits()), "a weight is not a number");
    assert_eq!(changed(data(2), 100), "its classes do not ascend to the one that never dies");
    assert_eq!(changed(data(6) + 4, u32::MAX), "its frames do not divide its steps");
    assert_eq!(changed(data(7), 0x7FFF_7FFF), "a step names a row that is not there");
    assert_eq!(changed(data(5), 20), "a range names a frame that is not there");
    assert_eq!(changed(data(3) + 32, 0), "a module has no build-id");
    assert_eq!(changed(data(3) + 36, 1), "a module's ranges are not there");
    assert_eq!(changed(data(4) + 4, 0), "a module's ranges do not ascend");
    let last_step =
        data(7) + u64::from_le_bytes(whole[entry(7) + 16..entry(7) + 24].try_into().unwrap()) as usize - 2;
    let open = with(&whole, last_step, &[0, 0]);
    assert_eq!(refusal(&open), Some("a frame ends within a step"));
}

#[test]
fn names_the_fault_of_a_table() {
    let mut made = Maker::random(3, 16, 20, 2, 1);
    made.contexts = Some(vec![(vec![0], 255), (vec![0, 1], 6), (vec![2], 1)]);
    let whole = made.file();
    assert_eq!(refusal(&whole), None);
    let changed = |at: usize, number: u32| refusal(&with(&whole, at, &number.to_le_bytes())).unwrap();
    assert_eq!(changed(36, 16), "its hidden size is not from 16 to 128");
    assert_eq!(changed(32, 1), "its hidden size is not from 16 to 128");
    let (keys, outputs) = (section(&whole, 15).0, section(&whole, 16));
    assert_eq!(refusal(&with(&whole, keys + 8, &[0; 8])), Some("its contexts do not ascend"));
    assert_eq!(refusal(&with(&whole, outputs.0, &[7])), Some("a context has a class that is not there"));
    assert_eq!(changed(outputs.1, 99), "a section is missing");
    assert_eq!(changed(outputs.1 + 24, 2), "a section has not the number of entries that it should have");
}

/// Uses all parts of a model that was accepted.
fn exercise(model: &Model) {
    for id in [&[1, 2, 3][..], &[], &[0; 32]] {
        if let Some(module) = model.module(id) {
            let frames: Vec<u32> = (0..40).map(|i| model.frame(module, i * 9)).collect();
            assert!(model.classify(Kernel::best(), &frames).is_none_or(|output| output < model.limits.len()));
        }
    }
    let hostile: Vec<u32> = (0..200).chain([u32::MAX, u32::MAX - 1]).collect();
    for frames in hostile.chunks(7) {
        let output = model.classify(Kernel::best(), frames);
        assert!(output.is_none_or(|output| output < model.limits.len()));
        assert!(output.is_some() || model.is_table());
        assert_eq!(model.classify(Kernel::Plain, frames), output);
        assert_eq!(model.classify(Kernel::Avx2, frames), output);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    /// Changes mostly where they hurt: header, table, and the small sections before the weights.
    #[test]
    fn hostile_files_are_refused_or_harmless(
        seed in 0u64..4,
        table: bool,
        changes in proptest::collection::vec((0usize..1400, 0usize..4, any::<u32>()), 0..4),
        anywhere in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in proptest::option::weighted(0.1, any::<prop::sample::Index>()),
        signed in proptest::bool::weighted(0.9),
    ) {
        let mut made = Maker::random(seed, 16, 20, 2, 1);
        if table {
            made.contexts = Some(vec![(vec![0], 255), (vec![0, 1], 6), (vec![2], 1)]);
        }
        let mut file = made.file();
        for (at, kind, number) in changes {
            let at = at.min(file.len() - 4);
            let number = [number, number % 64, number % 4, u32::MAX][kind];
            file[at..at + 4].copy_from_slice(&number.to_le_bytes());
        }
        for (at, byte) in anywhere {
            let at = at.index(file.len());
            file[at] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        if signed && file.len() > 32 {
            sign(&mut file);
        }
        let file = Aligned::new(&file);
        if let Ok(model) = Model::parse(file.bytes()) {
            exercise(&model);
        }
    }
}
