//! A context of 16 frames through models like those that training makes (LLAMA §9.5: 144.6 us).

#[path = "../tests/maker/mod.rs"]
mod maker;

use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use lifetime_model::{Kernel, Model};
use maker::{Aligned, Maker, Random};

fn inference(criterion: &mut Criterion) {
    let shapes =
        [("a step a frame", 1, 1), ("a step a frame of 12 tokens", 1, 23), ("a step a token", 15, 1)];
    for (name, steps, rows) in shapes {
        for hidden in [16, 64] {
            let made = Maker::random(5, hidden, 2000, steps, rows);
            let file = Aligned::new(&made.file());
            let model = Model::parse(file.bytes()).unwrap();
            let random = &mut Random(7);
            let contexts: Vec<[u32; 16]> =
                (0..64).map(|_| [0; 16].map(|_: u32| random.below(2000) as u32)).collect();
            let mut group = criterion.benchmark_group(format!("16 frames, {name}, hidden {hidden}"));
            group.sample_size(20).measurement_time(std::time::Duration::from_millis(400));
            group.warm_up_time(std::time::Duration::from_millis(100));
            for kernel in
                [Kernel::Avx512, Kernel::Avx2, Kernel::Plain].into_iter().filter(|kernel| kernel.works())
            {
                let mut next = 0;
                group.bench_function(format!("{kernel:?}"), |bencher| {
                    bencher.iter(|| {
                        next = (next + 1) % contexts.len();
                        model.classify(kernel, black_box(&contexts[next]))
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, inference);
criterion_main!(benches);
