//! Inference against a plain reference, and the kernels against each other.

mod maker;

use lifetime_model::{Kernel, Model};
use maker::{Aligned, Maker, Random};

#[test]
fn follows_the_reference_with_every_kernel() {
    let (mut close, mut seen, mut contexts) = (0, [0; 7], 0);
    for (seed, hidden) in [16, 32, 48, 64, 96, 128].into_iter().enumerate() {
        for (steps, rows) in [(6, 1), (1, 5)] {
            let made = Maker::random(seed as u64, hidden, 300, steps, rows);
            let file = Aligned::new(&made.file());
            let model = Model::parse(file.bytes()).unwrap();
            let random = &mut Random(99);
            for _ in 0..60 {
                let context: Vec<u32> = (0..random.below(24)).map(|_| random.below(300) as u32).collect();
                let logits = made.logits(&context);
                let found = model.classify(Kernel::Plain, &context);
                for kernel in [Kernel::Avx2, Kernel::Avx512, Kernel::best()] {
                    assert_eq!(model.classify(kernel, &context), found, "{kernel:?}, hidden {hidden}");
                }
                let best = logits.iter().copied().fold(f64::MIN, f64::max);
                // A unit of the state may be rounded to the other of two steps where it lies between them.
                let found = found.expect("a network always predicts");
                assert!(logits[found] > best - 0.05, "{logits:?}, not {found}");
                close += usize::from(logits[found] < best);
                seen[found] += 1;
                contexts += 1;
            }
        }
    }
    assert!(close * 50 < contexts, "{close} of {contexts} differ");
    assert!(seen.iter().all(|&count| count > 0), "the test has contexts of every class: {seen:?}");
}

#[test]
fn reads_the_innermost_frames_in_the_order_of_the_file() {
    let mut made = Maker::by_innermost_frame(&[6, 0, 1, 2, 3, 4, 5]);
    let file = Aligned::new(&made.file());
    let model = Model::parse(file.bytes()).unwrap();
    let classify = |model: &Model, frames: &[u32]| model.classify(Kernel::best(), frames).unwrap();
    for (frame, output) in [6, 0, 1, 2, 3, 4, 5].into_iter().enumerate() {
        assert_eq!(classify(&model, &[frame as u32, 1, 2, 3, 4, 5]), output, "the last step decides");
    }
    made.outermost_first = false;
    let file = Aligned::new(&made.file());
    let model = Model::parse(file.bytes()).unwrap();
    assert_eq!(classify(&model, &[0, 1, 2, 3, 4, 5, 6]), 2, "the fourth frame is the last that is read");
    assert_eq!(classify(&model, &[]), 0);
}

#[test]
fn the_longest_known_prefix_decides_in_a_table() {
    let mut made = Maker::random(1, 16, 0, 1, 1);
    // Frame 3 has two functions: the second was inlined into the first's caller.
    made.frames = vec![vec![vec![0]], vec![vec![1]], vec![vec![2]], vec![vec![1], vec![2]]];
    made.contexts = Some(vec![(vec![1], 255), (vec![1, 2], 6), (vec![1, 0], 2), (vec![2], 3)]);
    let file = Aligned::new(&made.file());
    let model = Model::parse(file.bytes()).unwrap();
    assert!(model.is_table());
    let class = |frames: &[u32]| model.classify(Kernel::best(), frames);
    assert_eq!([class(&[1, 2]), class(&[3]), class(&[3, 0, 0])], [Some(6); 3], "inlined or not");
    assert_eq!([class(&[1]), class(&[1, 1]), class(&[]), class(&[0])], [None; 4]);
    assert_eq!((class(&[2, 2, 2]), class(&[1, 0]), class(&[1, 99])), (Some(3), Some(2), None));
    let deep: Vec<u32> = [vec![2], vec![0; 80]].concat();
    assert_eq!(class(&deep), Some(3));
}

#[test]
fn an_address_leads_to_the_frame_of_its_range() {
    let mut made = Maker::random(1, 16, 10, 1, 1);
    made.modules = vec![
        (vec![9; 20], vec![(100, 3), (200, 0), (300, 7)]),
        (vec![8; 20], vec![(0, 5)]),
        (vec![7; 20], vec![]),
    ];
    let file = Aligned::new(&made.file());
    let model = Model::parse(file.bytes()).unwrap();
    let first = model.module(&[9; 20]).unwrap();
    let frames = [99, 100, 199, 200, 299, 300, 1 << 31, 1 << 32].map(|address| model.frame(first, address));
    assert_eq!(frames, [0, 3, 3, 0, 0, 7, 7, 0]);
    assert_eq!(model.frame(model.module(&[8; 20]).unwrap(), 0), 5);
    assert_eq!(model.frame(model.module(&[7; 20]).unwrap(), 5), 0);
    assert!(model.module(&[9; 19]).is_none() && model.module(&[]).is_none());
}
