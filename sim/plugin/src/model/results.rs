//! The files with a run's results.

use super::Model;
use crate::qemu;
use sim::system::statistics::Statistics;

impl Model {
    /// Writes the statistics so far, in case QEMU is killed. The machine is between two blocks or within one:
    /// it goes on as it would have, and laws of a whole run need not hold.
    pub(super) fn keep(&self) {
        let statistics =
            Statistics { broken: Vec::new(), ..Statistics::of(&self.machine, &self.description) };
        let (json, _) = self.texts(&statistics, Some("QEMU was killed"), None);
        // A file that is always whole.
        let (new, file) = (self.folder.join("stats.json.new"), self.folder.join("stats.json"));
        let _ = std::fs::write(&new, json).and_then(|()| std::fs::rename(&new, &file));
    }

    /// The content of stats.json and of stats.txt.
    fn texts(&self, statistics: &Statistics, cut: Option<&str>, status: Option<u64>) -> (String, String) {
        let mut json = statistics.json();
        json.insert("events".into(), self.events.into());
        json.insert("partial".into(), cut.is_some().into());
        json.insert("partial_reason".into(), cut.into());
        json.insert("exit_status".into(), status.into());
        json.insert("machine".into(), self.description.name.clone().into());
        json.insert("broken_laws".into(), statistics.broken.clone().into());
        let mut text = statistics.text();
        if let Some(reason) = cut {
            text = format!("PARTIAL: the region did not come to its end ({reason})\n{text}");
        }
        (format!("{:#}\n", serde_json::Value::Object(json)), text)
    }

    /// Writes the statistics; `cut`: why the region did not come to its end.
    pub(super) fn finish(&mut self, cut: Option<&str>, status: Option<u64>) {
        self.machine.pause(&self.tables);
        self.end_trace();
        self.end_interval();
        let seconds = self.started.elapsed().as_secs_f64();
        let statistics = Statistics::of(&self.machine, &self.description);
        let (json, text) = self.texts(&statistics, cut, status);
        // Wall time is kept apart: everything else is the same in every run.
        let cpu_seconds = qemu::cpu_seconds() - self.started_cpu;
        let millions = self.machine.instructions() as f64 / 1e6;
        let speed = format!(
            "{{\"wall_s\": {seconds:.3}, \"mips\": {:.3}, \"cpu_s\": {cpu_seconds:.3}, \"cpu_mips\": {:.3}}}\n",
            millions / seconds,
            millions / cpu_seconds
        );
        let mut files = vec![
            ("stats.json", json.into_bytes()),
            ("stats.txt", text.into_bytes()),
            ("speed.json", speed.into_bytes()),
        ];
        if let Some(entries) = &self.entries {
            let mut text = String::from("address\tinstructions\tentries\n");
            for (number, times) in entries.iter().enumerate().filter(|(_, times)| **times > 0) {
                let block = self.machine.block(number);
                text.push_str(&format!("{:#x}\t{}\t{times}\n", block.start, block.operations.len()));
            }
            files.push(("blocks.tsv", text.into_bytes()));
        }
        if let Some(requests) = self.machine.parts().1.dram_requests() {
            files.push((
                "dram.requests",
                requests.as_flattened().iter().flat_map(|n| n.to_le_bytes()).collect(),
            ));
        }
        for (name, content) in files {
            if let Err(error) = std::fs::write(self.folder.join(name), content) {
                eprintln!("mayfly sim: {}: {error}", self.folder.join(name).display());
                qemu::leave(1);
            }
        }
    }
}
