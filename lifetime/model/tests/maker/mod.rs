//! Makes model files as training does, for tests.

#![allow(dead_code, clippy::type_complexity)] // each test uses a part

use lifetime_model::table::key_of;
use xxhash_rust::xxh3::xxh3_64;

/// A file's bytes, beginning at a multiple of 64.
pub struct Aligned(Vec<[u8; 64]>, usize);

impl Aligned {
    pub fn new(bytes: &[u8]) -> Self {
        let mut lines = vec![[0; 64]; bytes.len().div_ceil(64)];
        lines
            .iter_mut()
            .zip(bytes.chunks(64))
            .for_each(|(line, chunk)| line[..chunk.len()].copy_from_slice(chunk));
        Self(lines, bytes.len())
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0.as_flattened()[..self.1]
    }
}

/// The content of a model file, as training has it.
#[derive(Clone)]
pub struct Maker {
    pub hidden: usize,
    pub max_frames: u32,
    pub outermost_first: bool,
    pub limits: Vec<u64>,
    /// Build-id and ranges: start and frame.
    pub modules: Vec<(Vec<u8>, Vec<(u32, u32)>)>,
    /// For each frame its steps, each of one or more rows.
    pub frames: Vec<Vec<Vec<u16>>>,
    pub rows: Vec<Vec<i8>>,
    pub row_scales: Vec<f32>,
    pub bias: Vec<f32>,
    /// By row, then unit.
    pub recurrent: Vec<Vec<i8>>,
    pub recurrent_scales: Vec<f32>,
    pub dense: Vec<Vec<f32>>,
    pub dense_bias: Vec<f32>,
    /// For a table in place of the network: prefixes of contexts, as rows, and their outputs.
    pub contexts: Option<Vec<(Vec<u16>, u8)>>,
}

/// Numbers that are the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut bits = self.0;
        bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ bits >> 31
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn weight(&mut self) -> i8 {
        (self.below(255) as i16 - 127) as i8
    }

    pub fn real(&mut self, most: f32) -> f32 {
        (self.below(2_000_001) as f32 / 1_000_000.0 - 1.0) * most
    }
}

impl Maker {
    /// A model with random weights, `frames` frames of up to `steps` steps of up to `rows_a_step` rows, and
    /// one module with build-id 1, 2, 3, whose range `i` begins at `16 * i` and is frame `i`.
    pub fn random(seed: u64, hidden: usize, frames: usize, steps: u64, rows_a_step: u64) -> Self {
        let random = &mut Random(seed);
        let (gates, rows) = (4 * hidden, 500);
        let mut made = Self {
            hidden,
            max_frames: 16,
            outermost_first: seed % 2 == 1,
            limits: vec![10, 100, 1000, 10_000, 100_000, 1_000_000, u64::MAX],
            modules: vec![(vec![1, 2, 3], (0..frames as u32).map(|i| (16 * i, i)).collect())],
            frames: Vec::new(),
            rows: (0..rows).map(|_| (0..gates).map(|_| random.weight()).collect()).collect(),
            row_scales: (0..rows).map(|_| random.real(0.008)).collect(),
            bias: (0..gates).map(|_| random.real(0.5)).collect(),
            recurrent: (0..gates).map(|_| (0..hidden).map(|_| random.weight()).collect()).collect(),
            recurrent_scales: (0..gates).map(|_| random.real(0.002)).collect(),
            dense: (0..7).map(|_| (0..hidden).map(|_| random.real(1.0)).collect()).collect(),
            dense_bias: (0..7).map(|_| random.real(0.1)).collect(),
            contexts: None,
        };
        for _ in 0..frames {
            let steps = 1 + random.below(steps);
            let mut step = || (0..1 + random.below(rows_a_step)).map(|_| random.below(rows) as u16).collect();
            made.frames.push((0..steps).map(|_| step()).collect());
        }
        made
    }

    /// A model that predicts `outputs[frame]` for every context whose innermost frame is `frame`: a unit for
    /// each output, which the frame's row switches on.
    pub fn by_innermost_frame(outputs: &[usize]) -> Self {
        let (hidden, gates) = (16, 64);
        let mut made = Self::random(0, hidden, outputs.len(), 1, 1);
        made.max_frames = 4;
        made.outermost_first = true;
        made.bias = [[10.0; 16], [-10.0; 16], [0.0; 16], [10.0; 16]].concat(); // in, forget, candidate, out
        made.recurrent_scales = vec![0.0; gates];
        made.rows = (0..7)
            .map(|output| (0..gates).map(|gate| 127 * i8::from(gate == 32 + output)).collect())
            .collect();
        made.row_scales = vec![0.05; 7];
        made.dense =
            (0..7).map(|output| (0..hidden).map(|unit| f32::from(unit == output)).collect()).collect();
        made.dense_bias = vec![0.0; 7];
        made.frames = outputs.iter().map(|&output| vec![vec![output as u16]]).collect();
        made
    }

    pub fn file(&self) -> Vec<u8> {
        let mut sections: Vec<(u32, usize, Vec<u8>)> = Vec::new();
        let mut add = |kind, count: usize, bytes: Vec<u8>| sections.push((kind, count, bytes));
        let metadata = br#"{"encoder":"test"}"#;
        add(1, metadata.len(), metadata.to_vec());
        add(2, self.limits.len(), self.limits.iter().flat_map(|limit| limit.to_le_bytes()).collect());
        let (mut modules, mut starts, mut range_frames) = (Vec::new(), Vec::new(), Vec::new());
        for (build_id, ranges) in &self.modules {
            let mut entry = build_id.clone();
            entry.resize(32, 0);
            for number in [build_id.len(), starts.len() / 4, ranges.len()] {
                entry.extend((number as u32).to_le_bytes());
            }
            entry.resize(64, 0);
            modules.extend(entry);
            starts.extend(ranges.iter().flat_map(|(start, _)| start.to_le_bytes()));
            range_frames.extend(ranges.iter().flat_map(|(_, frame)| frame.to_le_bytes()));
        }
        add(3, self.modules.len(), modules);
        add(4, starts.len() / 4, starts);
        add(5, range_frames.len() / 4, range_frames);
        let (mut firsts, mut steps) = (vec![0u32], Vec::<u16>::new());
        for frame in &self.frames {
            for step in frame {
                steps.extend(step);
                *steps.last_mut().unwrap() |= 1 << 15;
            }
            firsts.push(steps.len() as u32);
        }
        add(6, firsts.len(), firsts.iter().flat_map(|first| first.to_le_bytes()).collect());
        add(7, steps.len(), steps.iter().flat_map(|step| step.to_le_bytes()).collect());
        if let Some(contexts) = &self.contexts {
            let mut entries: Vec<(u64, u8)> =
                contexts.iter().map(|(functions, output)| (key_of(functions), *output)).collect();
            entries.sort_unstable();
            add(15, entries.len(), entries.iter().flat_map(|(key, _)| key.to_le_bytes()).collect());
            add(16, entries.len(), entries.iter().map(|&(_, output)| output).collect());
            return self.assembled(2, 0, &sections);
        }
        add(8, self.rows.concat().len(), self.rows.concat().iter().map(|&weight| weight as u8).collect());
        let floats =
            |numbers: &[f32]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        add(9, self.row_scales.len(), floats(&self.row_scales));
        add(10, self.bias.len(), floats(&self.bias));
        let quad = |c: usize| {
            self.recurrent.iter().flat_map(move |row| row[c..c + 4].iter().map(|&weight| weight as u8))
        };
        add(11, self.recurrent.concat().len(), (0..self.hidden).step_by(4).flat_map(quad).collect());
        add(12, self.recurrent_scales.len(), floats(&self.recurrent_scales));
        add(13, self.dense.concat().len(), floats(&self.dense.concat()));
        add(14, self.dense_bias.len(), floats(&self.dense_bias));
        self.assembled(1, self.hidden, &sections)
    }

    fn assembled(&self, encoder: u32, hidden: usize, sections: &[(u32, usize, Vec<u8>)]) -> Vec<u8> {
        let mut file = b"MAYFLYLM".to_vec();
        file.extend(1u32.to_le_bytes());
        file.extend((sections.len() as u32).to_le_bytes());
        file.extend([0; 16]); // length and checksum
        let shape = [encoder, hidden as u32, self.limits.len() as u32, self.rows.len() as u32];
        for number in shape.into_iter().chain([self.max_frames, self.outermost_first.into(), 0, 0]) {
            file.extend(number.to_le_bytes());
        }
        let mut data = Vec::new();
        let start = (64 + 32 * sections.len()).next_multiple_of(64);
        for (kind, count, bytes) in sections {
            let offset = start + data.len();
            file.extend(u64::from(*kind).to_le_bytes());
            for number in [offset, bytes.len(), *count] {
                file.extend((number as u64).to_le_bytes());
            }
            data.extend(bytes);
            data.resize(data.len().next_multiple_of(64), 0);
        }
        file.resize(start, 0);
        file.extend(data);
        sign(&mut file);
        file
    }

    /// The model's arithmetic once more, in double precision and without tricks: the outputs before the
    /// choice.
    pub fn logits(&self, frames: &[u32]) -> Vec<f64> {
        let mut frames: Vec<_> = frames.iter().take(self.max_frames as usize).collect();
        if self.outermost_first {
            frames.reverse();
        }
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let (mut h, mut c) = (vec![0.0f64; self.hidden], vec![0.0f64; self.hidden]);
        for step in frames.into_iter().flat_map(|&frame| &self.frames[frame as usize]) {
            let gates: Vec<f64> = (0..4 * self.hidden)
                .map(|r| {
                    let input = |row: &u16| {
                        f64::from(self.rows[*row as usize][r]) * f64::from(self.row_scales[*row as usize])
                    };
                    let inputs: f64 = step.iter().map(input).sum();
                    let recurrent: f64 = (0..self.hidden)
                        .map(|u| f64::from(self.recurrent[r][u]) * (h[u] * 127.0).round_ties_even() / 127.0)
                        .sum();
                    f64::from(self.bias[r]) + inputs + recurrent * f64::from(self.recurrent_scales[r])
                })
                .collect();
            for u in 0..self.hidden {
                let gate = |number: usize| gates[number * self.hidden + u];
                c[u] = sigmoid(gate(1)) * c[u] + sigmoid(gate(0)) * gate(2).tanh();
                h[u] = sigmoid(gate(3)) * c[u].tanh();
            }
        }
        let logit = |(weights, bias): (&Vec<f32>, &f32)| {
            weights.iter().zip(&h).map(|(&weight, unit)| f64::from(weight) * unit).sum::<f64>()
                + f64::from(*bias)
        };
        self.dense.iter().zip(&self.dense_bias).map(logit).collect()
    }
}

/// Writes length and checksum.
pub fn sign(file: &mut [u8]) {
    let length = file.len() as u64;
    file[16..24].copy_from_slice(&length.to_le_bytes());
    let checksum = xxh3_64(&file[32..]);
    file[24..32].copy_from_slice(&checksum.to_le_bytes());
}
