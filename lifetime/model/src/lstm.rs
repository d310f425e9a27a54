//! The recurrent network (LLAMA §5.2): a context's frames become steps, each step goes through one LSTM cell,
//! and the last state through a fully connected layer. A step is a token (the paper's model) or a whole frame
//! (§10): the file decides.

use crate::activation::{sigmoid, tanh, to_i8};
use crate::file::{MAX_HIDDEN, MAX_OUTPUTS, Model, STEP_END};
use crate::kernel::{self, Kernel, State, Sums};

impl Model<'_> {
    /// The likeliest output for a context, given as its frames' numbers, innermost first; the first of
    /// equals. Frames beyond [`Model::max_frames`] are ignored. `None` where a table does not know the
    /// context; a network always predicts.
    ///
    /// The result is the same with every kernel. It takes about 5 KiB of stack.
    pub fn classify(&self, kernel: Kernel, frames: &[u32]) -> Option<usize> {
        if let Some(table) = &self.table {
            let steps = frames.iter().take(self.max_frames).flat_map(|&frame| self.steps_of(frame));
            return table.look_up(steps.map(|step| step & !STEP_END));
        }
        let scores = self.scores(kernel, frames);
        Some((1..self.limits.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best }))
    }

    /// A table's class for a context given as its functions, innermost first.
    pub fn classify_functions(&self, functions: impl Iterator<Item = u16>) -> Option<usize> {
        self.table.as_ref()?.look_up(functions)
    }

    /// A network's number for each output, higher for likelier ones; a table has none.
    pub fn scores(&self, kernel: Kernel, frames: &[u32]) -> [f32; MAX_OUTPUTS] {
        if self.is_table() {
            return [f32::NEG_INFINITY; MAX_OUTPUTS];
        }
        let frames = &frames[..frames.len().min(self.max_frames)];
        match kernel {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the processor has the kernel's instructions.
            Kernel::Avx512 if kernel.works() => unsafe { self.scores_avx512(frames) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Kernel::Avx2 if kernel.works() => unsafe { self.scores_avx2(frames) },
            _ => self.run(frames, |state, sums| kernel::plain(self.recurrent, self.hidden, state, sums)),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    fn scores_avx512(&self, frames: &[u32]) -> [f32; MAX_OUTPUTS] {
        let product = |state: &State, sums: &mut Sums| {
            kernel::avx::avx512(self.recurrent, self.hidden, state, &self.correction, sums);
        };
        self.run(frames, product)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn scores_avx2(&self, frames: &[u32]) -> [f32; MAX_OUTPUTS] {
        self.run(frames, |state, sums| kernel::avx::avx2(self.recurrent, self.hidden, state, sums))
    }

    /// Inlined into each of the above, so that the loops here are compiled for its instructions.
    #[inline(always)]
    fn run(&self, frames: &[u32], product: impl Fn(&State, &mut Sums)) -> [f32; MAX_OUTPUTS] {
        let mut cell = Cell::new();
        let forward = |i: usize| if self.outermost_first { frames.len() - 1 - i } else { i };
        for i in 0..frames.len() {
            let rows = self.steps_of(frames[forward(i)]);
            let mut step = 0;
            for (at, row) in rows.iter().enumerate() {
                if row & STEP_END != 0 {
                    cell.step(self, &rows[step..=at], &product);
                    step = at + 1;
                }
            }
        }
        self.output(&cell.hidden)
    }

    #[inline(always)]
    fn output(&self, hidden: &[f32; MAX_HIDDEN]) -> [f32; MAX_OUTPUTS] {
        let mut logits = [f32::NEG_INFINITY; MAX_OUTPUTS];
        for ((logit, weights), bias) in
            logits.iter_mut().zip(self.dense.chunks_exact(self.hidden)).zip(self.dense_bias)
        {
            *logit = weights.iter().zip(hidden).fold(0.0, |sum, (weight, unit)| sum + weight * unit) + bias;
        }
        logits
    }
}

/// Units that are computed at once; every hidden size is a multiple.
const LANES: usize = 16;

struct Cell {
    gates: [f32; 4 * MAX_HIDDEN],
    memory: [f32; MAX_HIDDEN],
    hidden: [f32; MAX_HIDDEN],
    state: State,
    sums: Sums,
    /// The state is still all zeros, and its product too.
    fresh: bool,
}

impl Cell {
    #[inline(always)]
    fn new() -> Self {
        Self {
            gates: [0.0; 4 * MAX_HIDDEN],
            memory: [0.0; MAX_HIDDEN],
            hidden: [0.0; MAX_HIDDEN],
            state: [0; MAX_HIDDEN],
            sums: [0; 4 * MAX_HIDDEN],
            fresh: true,
        }
    }

    #[inline(always)]
    fn step(&mut self, model: &Model, rows: &[u16], product: &impl Fn(&State, &mut Sums)) {
        let hidden = model.hidden;
        let gates = &mut self.gates[..4 * hidden];
        gates.copy_from_slice(model.bias);
        for row in rows {
            let row = usize::from(row & !STEP_END);
            let (weights, scale) = (&model.rows[row * 4 * hidden..][..4 * hidden], model.row_scales[row]);
            gates.iter_mut().zip(weights).for_each(|(gate, &weight)| *gate += f32::from(weight) * scale);
        }
        if !self.fresh {
            product(&self.state, &mut self.sums);
        }
        self.fresh = false;
        let scales = model.recurrent_scales.iter().zip(&self.sums);
        gates.iter_mut().zip(scales).for_each(|(gate, (scale, &sum))| *gate += sum as f32 * (scale / 127.0));
        let of_gate = |number: usize| self.gates[number * hidden..][..hidden].as_chunks::<LANES>().0;
        let gates = of_gate(0).iter().zip(of_gate(1)).zip(of_gate(2)).zip(of_gate(3));
        let memory = self.memory.as_chunks_mut::<LANES>().0.iter_mut();
        let state =
            self.hidden.as_chunks_mut::<LANES>().0.iter_mut().zip(self.state.as_chunks_mut::<LANES>().0);
        for ((((input, forget), candidate), output), (memory, (hidden, state))) in
            gates.zip(memory.zip(state))
        {
            for i in 0..LANES {
                memory[i] = sigmoid(forget[i]) * memory[i] + sigmoid(input[i]) * tanh(candidate[i]);
            }
            for i in 0..LANES {
                hidden[i] = sigmoid(output[i]) * tanh(memory[i]);
                state[i] = to_i8(hidden[i]);
            }
        }
    }
}
