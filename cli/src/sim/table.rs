//! A run's main results as a table for people.

use std::fmt::Write;

use serde_json::{Map, Value};

use crate::quantity;
use crate::sim::dram;

/// Time, cycles by cause and by owner, caches, memory.
pub fn table(statistics: &Map<String, Value>) -> String {
    let number = |key: &str| statistics.get(key).and_then(Value::as_f64).unwrap_or(0.0);
    let count = |key: &str| quantity::count(number(key) as u64);
    let mut text = String::new();
    if statistics.get("partial").and_then(Value::as_bool) == Some(true) {
        let reason = statistics.get("partial_reason").and_then(Value::as_str).unwrap_or("unknown");
        let _ = writeln!(text, "PARTIAL: stopped before the program's end ({reason})");
    }
    let cycles = number("cycles");
    let of_all_cores = cycles * number("cores.number").max(1.0);
    let part = |key: &str| 100.0 * number(key) / of_all_cores.max(1.0);
    let instructions = number("instructions");
    let kernel = 100.0 * number("kernel_instructions") / instructions.max(1.0);
    let rows = [
        (
            "time",
            format!(
                "{} in {} cycles{}",
                quantity::duration(number("time_us") * 1000.0),
                count("cycles"),
                interval(statistics)
            ),
        ),
        (
            "instructions",
            format!("{} ({kernel:.0}% kernel), {:.2} a cycle", count("instructions"), number("ipc")),
        ),
        (
            "page faults",
            format!(
                "{}, {} system calls, {} interrupts",
                count("page_faults"),
                count("system_calls"),
                count("interrupts")
            ),
        ),
        (
            "branches",
            format!("{:.2} mispredicted per 1000 instructions", number("branch.mispredicted_per_1000")),
        ),
        (
            "misses",
            format!(
                "per 1000 instructions: L1i {:.2}, L1d {:.2}, L2 {:.2}, LLC {:.2}; {} page walks",
                number("l1i.misses_per_1000"),
                number("l1d.misses_per_1000"),
                number("l2.misses_per_1000"),
                number("llc.misses_per_1000"),
                count("tlb.walks"),
            ),
        ),
        (
            "DRAM",
            format!(
                "{} read, {} written{}",
                quantity::bytes(number("dram.reads") * 64.0),
                quantity::bytes(number("dram.writes") * 64.0),
                statistics
                    .get("dram.read_latency_ns")
                    .and_then(Value::as_f64)
                    .map_or(String::new(), |ns| format!("; {ns:.0} ns a read")),
            ),
        ),
    ];
    for (name, value) in rows {
        let _ = writeln!(text, "{name:<14} {value}");
    }
    text.extend(cores(statistics));
    for (title, prefix) in [("cycles for", "cycles_by_owner."), ("cycles by", "cycles_by_cause.")] {
        let mut parts: Vec<_> =
            statistics.keys().filter_map(|key| Some((key.strip_prefix(prefix)?, part(key)))).collect();
        parts.sort_by(|a, b| b.1.total_cmp(&a.1));
        let shown: Vec<_> = parts
            .iter()
            .filter(|(_, part)| *part >= 0.5)
            .map(|(name, part)| format!("{name} {part:.0}%"))
            .collect();
        let _ = writeln!(text, "{title:<14} {}", shown.join(", "));
    }
    text.extend(dram::line(statistics));
    if statistics.contains_key("mips") {
        let _ = writeln!(
            text,
            "speed          {:.1} million instructions a second of wall time, {:.1} of CPU time",
            number("mips"),
            number("cpu_mips")
        );
    }
    text
}

/// With several cores: how long each was busy, and the cache lines that they took from one another.
fn cores(statistics: &Map<String, Value>) -> Option<String> {
    let number = |key: &str| statistics.get(key).and_then(Value::as_u64);
    let busy = (0..number("cores.number")?).map(|core| {
        let its = number(&format!("cores.{core}.busy_cycles")).unwrap_or(0);
        format!("{:.0}%", 100.0 * its as f64 / number("cycles").unwrap_or(0).max(1) as f64)
    });
    let lines = ["cores.lines_taken", "cores.lines_invalidated"].iter().filter_map(|key| number(key)).sum();
    Some(format!(
        "cores          busy {}; {} lines taken from one another's caches\n",
        busy.collect::<Vec<_>>().join(", "),
        quantity::count(lines)
    ))
}

/// The confidence interval of a sampled run's cycles.
fn interval(statistics: &Map<String, Value>) -> String {
    let Some(percent) = statistics.get("sample.interval_95_percent").and_then(Value::as_f64) else {
        return String::new();
    };
    let windows = statistics.get("sample.windows").and_then(Value::as_u64).unwrap_or(0);
    format!(" ± {percent:.2}% (95%, {} windows)", quantity::count(windows))
}

/// Two runs of one program: each statistic that people compare, and Memento's part of the baseline's.
pub fn side_by_side(baseline: &Map<String, Value>, memento: &Map<String, Value>) -> String {
    let number = |statistics: &Map<String, Value>, key: &str| {
        statistics.get(key).and_then(Value::as_f64).unwrap_or(0.0)
    };
    let rows = [
        ("cycles", "cycles"),
        ("instructions", "instructions"),
        ("  of the kernel", "kernel_instructions"),
        ("page faults", "page_faults"),
        ("cycles in page faults", "cycles_by_owner.page_fault"),
        ("cycles in mmap and the like", "cycles_by_owner.memory_call"),
        ("L1d misses", "l1d.misses"),
        ("LLC misses", "llc.misses"),
        ("DRAM traffic, bytes", "dram.traffic_bytes"),
        ("pages of the program", "held.most.user_pages"),
        ("pages of the kernel", "held.most.kernel_pages"),
    ];
    let mut text = format!("{:<28} {:>16} {:>16} {:>9}\n", "", "baseline", "Memento", "change");
    let mut pages = [0.0, 0.0];
    for (title, key) in rows {
        let both = [baseline, memento].map(|side| number(side, key));
        // Held when the most were, those of Memento's pool among them.
        if key.ends_with("_pages") {
            pages = [pages[0] + both[0], pages[1] + both[1]];
        }
        let _ = writeln!(text, "{title:<28} {}", sides(both, |value| quantity::count(value as u64)));
    }
    let prices = [(baseline, pages[0]), (memento, pages[1])]
        .map(|(side, pages)| price(number(side, "time_us"), pages));
    let _ = writeln!(
        text,
        "{:<28} {}",
        "price of a billion runs, $",
        sides(prices, |value| format!("{value:.3}"))
    );
    let speedup = number(baseline, "cycles") / number(memento, "cycles").max(1.0);
    let _ = writeln!(text, "speed-up: {:+.1}%", 100.0 * (speedup - 1.0));
    for (name, statistics) in [("baseline", baseline), ("Memento", memento)] {
        if statistics.contains_key("sample.windows") {
            let _ = writeln!(text, "{name}: cycles{}", interval(statistics));
        }
    }
    for (name, statistics) in [("baseline", baseline), ("Memento", memento)] {
        text.extend(dram::line(statistics).map(|line| format!("{name}: {line}")));
    }
    let rate = |key: &str| 100.0 * number(memento, key);
    let _ = writeln!(
        text,
        "HOT hits: {:.2}% of {} obj-alloc, {:.1}% of {} obj-free; {} lines instantiated in the LLC",
        rate("memento.allocation_hit_rate"),
        quantity::count(number(memento, "memento.allocations") as u64),
        rate("memento.free_hit_rate"),
        quantity::count(number(memento, "memento.frees") as u64),
        quantity::count(number(memento, "llc.bypasses") as u64),
    );
    text
}

/// Both sides' values, and the change.
fn sides(values: [f64; 2], shown: impl Fn(f64) -> String) -> String {
    let [before, after] = values;
    let change =
        if before > 0.0 { format!("{:+.1}%", 100.0 * (after / before - 1.0)) } else { String::new() };
    format!("{:>16} {:>16} {change:>9}", shown(before), shown(after))
}

/// AWS Lambda's price of a billion runs as Memento's §6.5 has it: whole milliseconds and megabytes.
fn price(time_us: f64, pages: f64) -> f64 {
    const DOLLARS_PER_GB_S: f64 = 0.000_016_666_7;
    let gb_s = (time_us / 1e3).ceil() / 1e3 * (pages * 4096.0 / 1e6).ceil() / 1e3;
    DOLLARS_PER_GB_S * gb_s * 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_has_pages_and_price() {
        let side = |value: Value| value.as_object().unwrap().clone();
        let baseline = side(serde_json::json!({
            "cycles": 3_000_000, "time_us": 1000.4, "user_pages": 900, "kernel_pages": 800,
            "held.most.user_pages": 300, "held.most.kernel_pages": 100
        }));
        let memento = side(serde_json::json!({
            "cycles": 2_400_000, "time_us": 800.0, "user_pages": 100, "kernel_pages": 60,
            "held.most.user_pages": 240, "held.most.kernel_pages": 81
        }));
        let text = side_by_side(&baseline, &memento);
        let row = |title: &str| {
            let line = text.lines().find(|line| line.starts_with(title)).unwrap_or_else(|| panic!("{text}"));
            line[title.len()..].split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(row("pages of the program"), ["300", "240", "-20.0%"]);
        assert_eq!(row("pages of the kernel"), ["100", "81", "-19.0%"]);
        // 2 ms of 2 MB, and 1 ms of 2 MB.
        assert_eq!(row("price of a billion runs, $"), ["0.067", "0.033", "-50.0%"]);
    }
}
