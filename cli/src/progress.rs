//! Progress on a terminal; nothing is drawn where stderr is not one.

use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// A bar for reading the file at `path` so many `times`.
pub fn over_file(path: &Path, times: u64, what: &'static str) -> ProgressBar {
    let length = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let style = "{msg} {bar:30} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left";
    let bar = ProgressBar::new(length.saturating_mul(times)).with_message(what);
    bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    bar
}

/// A clock for work that takes long and has no measure of progress.
pub fn of_waiting(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what);
    bar.set_style(ProgressStyle::with_template("{spinner} {msg}, {elapsed}").expect("the template is right"));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

/// As [`of_waiting`]; without a terminal it prints a line every two seconds. It ends when it is dropped.
pub struct ProgressLine {
    bar: ProgressBar,
    ends: Option<(mpsc::Sender<()>, JoinHandle<()>)>,
}

impl ProgressLine {
    /// Shows `what` from now on; `quiet` suppresses the lines.
    pub fn of(what: &'static str, quiet: bool) -> Self {
        let bar = of_waiting(what);
        let (sender, receiver) = mpsc::channel();
        let began = Instant::now();
        let print = move || {
            while receiver.recv_timeout(Duration::from_secs(2)) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("mayfly: {what}, {} s", began.elapsed().as_secs());
            }
        };
        let ends = (!quiet && bar.is_hidden()).then(|| (sender, std::thread::spawn(print)));
        Self { bar, ends }
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
        if let Some((sender, thread)) = self.ends.take() {
            drop(sender);
            let _ = thread.join();
        }
    }
}

/// A counter of bytes that are being recorded.
pub fn of_recording() -> ProgressBar {
    let style = "{spinner} recording {binary_bytes}, {elapsed}";
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template(style).expect("the template is right"));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}
