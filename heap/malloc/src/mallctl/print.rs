//! The text of malloc_stats_print.

use core::fmt::{self, Write};

use heap::observe::{report, stats};
use heap::system::text::Text;

use crate::mallctl::statistics::{self, Large, Small, Total};

/// Room for the longest text.
type Printed = Text<{ 12 << 10 }>;

/// The statistics of the present moment, with a final NUL.
pub fn text(as_json: bool) -> Printed {
    statistics::renew();
    let mut text = Printed::default();
    let _ = if as_json { json(&mut text) } else { lines(&mut text) }; // cut off at the end, never an error
    let _ = text.write_char('\0');
    text
}

const SIZES: [(&str, Total); 6] = [
    ("allocated", Total::Allocated),
    ("active", Total::Active),
    ("metadata", Total::Metadata),
    ("resident", Total::Resident),
    ("mapped", Total::Mapped),
    ("retained", Total::Retained),
];

fn json(out: &mut impl Write) -> fmt::Result {
    write!(out, "{{\"jemalloc\":{{\"version\":\"5.3.0-0-g0 (Mayfly {})\"", env!("CARGO_PKG_VERSION"))?;
    for (i, (name, what)) in SIZES.into_iter().enumerate() {
        let before = if i == 0 { ",\"stats\":{" } else { "," };
        write!(out, "{before}\"{name}\":{}", statistics::total(what))?;
    }
    let report = report::json();
    let report = core::str::from_utf8(report.bytes()).unwrap_or("{}").trim_end();
    writeln!(out, "}}}},\"mayfly\":{report}}}")
}

fn lines(out: &mut impl Write) -> fmt::Result {
    writeln!(out, "___ Begin mayfly-heap statistics ___")?;
    for (name, what) in SIZES {
        writeln!(out, "{name}: {} bytes", statistics::total(what))?;
    }
    let (allocated, mallocs) = (statistics::small(Small::Allocated), statistics::small(Small::Mallocs));
    let frees = statistics::small(Small::Frees);
    writeln!(out, "small: {allocated} bytes, allocated {mallocs}, freed {frees}")?;
    let (allocated, mallocs) = (statistics::large(Large::Allocated), statistics::large(Large::Mallocs));
    let frees = statistics::large(Large::Frees);
    writeln!(out, "large: {allocated} bytes, allocated {mallocs}, freed {frees}")?;
    for (class, bytes) in heap::units::size_class::CELL_BYTES.iter().enumerate() {
        let (objects, spans) = statistics::size_class(class);
        if objects > 0 {
            writeln!(out, "{bytes} bytes: {objects} objects in {spans} spans")?;
        }
    }
    writeln!(out, "threads: {}", stats::threads())?;
    writeln!(out, "--- End mayfly-heap statistics ---")
}
