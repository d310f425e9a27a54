//! The file of a trace: as it is, or by xz where it ends in `.xz`.

use super::Model;
use sim::system::trace::Trace;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The trace that a run is to write.
pub(super) struct TraceFile {
    path: PathBuf,
    compressor: Option<Child>,
}

impl TraceFile {
    pub fn at(path: PathBuf) -> TraceFile {
        TraceFile { path, compressor: None }
    }

    fn open(&mut self) -> std::io::Result<Box<dyn Write + Send>> {
        let file = File::create(&self.path)?;
        if self.path.extension() != Some("xz".as_ref()) {
            return Ok(Box::new(file));
        }
        let mut command = Command::new("xz");
        // QEMU may run with libraries of another system.
        command.env_remove("LD_LIBRARY_PATH").args(["-3", "-c"]).stdin(Stdio::piped()).stdout(file);
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        self.compressor = Some(child);
        input.map_or_else(|| Err(std::io::ErrorKind::BrokenPipe.into()), |input| Ok(Box::new(input) as _))
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(mut child) = self.compressor.take() else { return Ok(()) };
        let status = child.wait().map_err(|error| error.to_string())?;
        if status.success() { Ok(()) } else { Err(format!("xz: {status}")) }
    }
}

impl Model {
    /// The region begins.
    pub(super) fn start_trace(&mut self) {
        let Some(trace) = &mut self.trace else { return };
        match trace.open() {
            Ok(output) => self.machine.start_trace(Trace::to(output)),
            Err(error) => {
                let line = told(&trace.path, &error.to_string());
                self.fail(&line);
            }
        }
    }

    /// The region has ended.
    pub(super) fn end_trace(&mut self) {
        let Some(mut trace) = self.trace.take() else { return };
        let written = self.machine.end_trace().map_err(|error| error.to_string());
        if let Err(line) = written.and_then(|()| trace.close()) {
            self.fail(&told(&trace.path, &line));
        }
    }
}

fn told(path: &Path, line: &str) -> String {
    format!("--trace {}: {line}", path.display())
}
