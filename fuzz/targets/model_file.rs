//! A model file: assembled from sections that may be anything, with right lengths and checksum. Every kernel
//! must predict the same from it, and taking it apart and assembling it again must change nothing.

#![no_main]

use std::io::Write as _;

use arbitrary::Arbitrary;
use flate2::{Compression, write::ZlibEncoder};
use libfuzzer_sys::fuzz_target;
use lifetime::model::names::Names;
use lifetime::model::sections::{Sections, checksum};
use lifetime_model::file::MAX_OUTPUTS;
use lifetime_model::{Kernel, Model};

#[derive(Debug, Arbitrary)]
struct Input {
    is_table: bool,
    hidden: u8,
    outputs: u8,
    rows: u8,
    max_frames: u8,
    outermost_first: bool,
    limits: [u64; 8],
    modules: Vec<(u8, [u8; 4], u8, u8)>,
    ranges: Vec<(u16, u8)>,
    /// Steps of each frame: the rows of a step.
    frames: Vec<Vec<Vec<u8>>>,
    weights: Vec<i8>,
    scales: Vec<f32>,
    keys: Vec<(u64, u8)>,
    contexts: Vec<Vec<u8>>,
    names: Option<(u8, Vec<String>, Vec<String>, Vec<String>)>,
    /// Bytes that are changed before the checksum is made.
    changes: Vec<(u16, u8)>,
    /// Whether ranges and limits are put in order.
    in_order: bool,
}

fn bytes<T>(of: impl IntoIterator<Item = T>, one: impl Fn(T) -> Vec<u8>) -> Vec<u8> {
    of.into_iter().flat_map(one).collect()
}

impl Input {
    fn file(&self) -> Vec<u8> {
        let outputs = 2 + usize::from(self.outputs) % 7;
        let hidden = if self.is_table { 0 } else { 16 * (1 + usize::from(self.hidden) % 8) };
        let (rows, gates) = (1 + usize::from(self.rows) % 8, 4 * hidden);
        let mut limits = self.limits[..outputs].to_vec();
        let mut ranges = self.ranges.clone();
        if self.in_order {
            limits.sort_unstable();
            limits[outputs - 1] = u64::MAX;
            ranges.sort_unstable();
            ranges.dedup_by_key(|range| range.0);
        }
        let modules = bytes(&self.modules, |(length, id, first, count)| {
            let mut entry = id.to_vec();
            entry.resize(32, 7);
            for number in [length, first, count] {
                entry.extend(u32::from(*number).to_le_bytes());
            }
            entry.resize(64, 0);
            entry
        });
        let (mut steps, mut ends) = (Vec::new(), vec![0_u32]);
        for frame in &self.frames {
            for step in frame {
                let last = step.len().saturating_sub(1);
                for (at, row) in step.iter().enumerate() {
                    let row = if self.in_order { u16::from(*row) % rows as u16 } else { u16::from(*row) };
                    steps.push(row | if at == last { 1 << 15 } else { 0 });
                }
            }
            ends.push(steps.len() as u32);
        }
        let frames = self.frames.len().max(1) as u32;
        let weights =
            |count: usize| self.weights.iter().cycle().take(count).map(|w| *w as u8).collect::<Vec<u8>>();
        let scales = |count: usize| {
            let scale = |scale: &f32| scale.to_le_bytes().to_vec();
            bytes(self.scales.iter().cycle().take(count), scale)
        };
        let word = |word: &u32| word.to_le_bytes().to_vec();
        let frame_of = |range: &(u16, u8)| {
            let frame = u32::from(range.1);
            (if self.in_order { frame % frames } else { frame }).to_le_bytes().to_vec()
        };
        let mut sections: Vec<(u32, usize, Vec<u8>)> = vec![
            (1, 2, b"{}".to_vec()),
            (2, outputs, bytes(&limits, |limit| limit.to_le_bytes().to_vec())),
            (3, self.modules.len(), modules),
            (4, ranges.len(), bytes(&ranges, |range| u32::from(range.0).to_le_bytes().to_vec())),
            (5, ranges.len(), bytes(&ranges, frame_of)),
            (6, ends.len(), bytes(&ends, word)),
            (7, steps.len(), bytes(&steps, |step| step.to_le_bytes().to_vec())),
        ];
        if self.is_table {
            let mut keys = self.keys.clone();
            if self.in_order {
                keys.sort_unstable();
                keys.dedup_by_key(|key| key.0);
                keys.iter_mut().for_each(|key| key.1 = if key.1 > 250 { 255 } else { key.1 % outputs as u8 });
            }
            sections.push((15, keys.len(), bytes(&keys, |key| key.0.to_le_bytes().to_vec())));
            sections.push((16, keys.len(), keys.iter().map(|key| key.1).collect()));
        } else {
            let all = [
                (8, rows * gates, weights(rows * gates)),
                (9, rows, scales(rows)),
                (10, gates, scales(gates)),
                (11, gates * hidden, weights(gates * hidden)),
                (12, gates, scales(gates)),
                (13, outputs * hidden, scales(outputs * hidden)),
                (14, outputs, scales(outputs)),
            ];
            sections.extend(all);
        }
        let mut file = b"MAYFLYLM".to_vec();
        file.extend(1_u32.to_le_bytes());
        file.extend((sections.len() as u32).to_le_bytes());
        file.resize(32, 0);
        let order = u32::from(self.outermost_first);
        let encoder = if self.is_table { 2 } else { 1 };
        let frames_read = 1 + u32::from(self.max_frames) % 64;
        for number in [encoder, hidden as u32, outputs as u32, rows as u32, frames_read, order] {
            file.extend(number.to_le_bytes());
        }
        file.resize(64 + 32 * sections.len(), 0);
        for (place, (kind, entries, content)) in sections.iter().enumerate() {
            file.resize(file.len().next_multiple_of(64), 0);
            let mut entry = u64::from(*kind).to_le_bytes().to_vec();
            for number in [file.len(), content.len(), *entries] {
                entry.extend((number as u64).to_le_bytes());
            }
            file[64 + 32 * place..][..32].copy_from_slice(&entry);
            file.extend(content);
        }
        file.resize(file.len().next_multiple_of(64), 0);
        for (at, byte) in &self.changes {
            let at = 32 + usize::from(*at) % (file.len() - 32);
            file[at] = *byte;
        }
        let length = file.len() as u64;
        file[16..24].copy_from_slice(&length.to_le_bytes());
        let sum = checksum(&file[32..]);
        file[24..32].copy_from_slice(&sum.to_le_bytes());
        file
    }
}

/// As the heap maps it: at a multiple of 8.
fn aligned(file: &[u8]) -> Vec<u64> {
    let word = |part: &[u8]| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        u64::from_ne_bytes(word)
    };
    file.chunks(8).map(word).collect()
}

fn check(file: &[u8], contexts: &[Vec<u8>]) {
    let words = aligned(file);
    // SAFETY: the words hold at least as many bytes, and any bytes are numbers.
    let bytes = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), file.len()) };
    let Ok(model) = Model::parse(bytes) else { return };
    for context in contexts {
        let frames: Vec<u32> = context.iter().map(|frame| u32::from(*frame)).collect();
        let class = model.classify(Kernel::Plain, &frames);
        assert!(
            class.is_none_or(|class| class < model.limits.len()) && (class.is_some() || model.is_table())
        );
        let of = |kernel: Kernel| model.scores(kernel, &frames).map(f32::to_bits);
        let plain: [u32; MAX_OUTPUTS] = of(Kernel::Plain);
        for kernel in [Kernel::Avx2, Kernel::Avx512].into_iter().filter(|kernel| kernel.works()) {
            // Numbers that are none may differ in their bits.
            let same = of(kernel)
                .iter()
                .zip(&plain)
                .all(|(a, b)| a == b || f32::from_bits(*a).is_nan() && f32::from_bits(*b).is_nan());
            assert!(same, "{kernel:?} scores otherwise");
        }
    }
    for id in [&[][..], &[7; 32]] {
        if let Some(module) = model.module(id) {
            let _ = (model.frame(module, 0), model.frame(module, u64::MAX), model.frame(module, 70));
        }
    }
    // Sections that the heap does not read may lie outside of the file.
    if let Ok(taken) = Sections::of(bytes) {
        let again = taken.file().expect("it has few sections");
        let twice = Sections::of(&again).and_then(|taken| taken.file()).expect("it has just been made");
        assert_eq!(again, twice);
    }
}

/// The names of a model, and what it makes of frames.
fn check_names(kind: u8, tokens: &[String], frames: &[String], looked_up: &[String]) {
    let encoders = ["table", "lstm-tokens", "lstm-frames", ""];
    let all = (encoders[usize::from(kind) % 4], tokens, frames);
    let text = serde_json::to_vec(&all).expect("texts are JSON");
    let mut packed = ZlibEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(&text).expect("into memory");
    if let Ok(names) = Names::read(&packed.finish().expect("into memory"), 1 << 15) {
        for frame in looked_up.iter().chain(frames) {
            let entries = names.entries(frame);
            assert!(entries.last().is_none_or(|last| last & 1 << 15 != 0), "a frame ends within a step");
        }
    }
}

fuzz_target!(|input: Input| {
    check(&input.file(), &input.contexts);
    if let Some((kind, tokens, frames, looked_up)) = &input.names {
        check_names(*kind, tokens, frames, looked_up);
    }
});
