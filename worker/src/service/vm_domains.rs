//! Which functions share a VM, how much memory the VMs need, and which files of this host are in them.

use std::collections::BTreeMap;
use std::path::Path;

use crate::code::runtime_files;
use crate::control::Worker;
use crate::sandbox::environment;
use crate::sandbox::vm::{Part, Plan, VmDomain};
use crate::service::stack::{Ready, Stack};

/// The smallest memory of a function; a VM without functions has room for it.
const SMALLEST_MIB: u32 = 128;

/// Memory of all instances in VMs together.
pub(super) fn memory_of(plan: &Plan, declared: &Stack) -> u64 {
    let largest = declared.functions().map(|function| function.settings.memory_mib).max();
    u64::from(plan.partitions) * u64::from(largest.unwrap_or(SMALLEST_MIB))
}

/// Which functions live in a VM together.
pub(super) fn domains_of(worker: &Worker, functions: &[Ready]) -> Vec<VmDomain> {
    let mut by_name: BTreeMap<Option<String>, Vec<&Ready>> = BTreeMap::new();
    for function in functions {
        by_name.entry(function.declared.settings.vm.clone()).or_default().push(function);
    }
    let domain = |(name, functions): (_, Vec<&Ready>)| {
        let memory = functions.iter().map(|function| function.declared.settings.memory_mib);
        VmDomain { name, largest_mib: memory.max().unwrap_or(SMALLEST_MIB), parts: parts(worker, &functions) }
    };
    by_name.into_iter().map(domain).collect()
}

/// The files of this host that the instances in a VM see.
fn parts(worker: &Worker, functions: &[&Ready]) -> Vec<Part> {
    let part = |source: &Path, content: &str, is_root| Part {
        source: source.into(),
        name: String::new(),
        content: content.into(),
        is_root,
    };
    let common = environment::common(&worker.options, worker.folder()).into_iter().map(|bind| bind.source);
    let common = common.chain(worker.options.installed.all());
    let common = common.chain([worker.folder().join(runtime_files::PACKAGES)]);
    let mut parts: Vec<Part> = common.map(|source| part(&source, "", false)).collect();
    for Ready { code, opt, .. } in functions {
        parts.push(part(&code.folder, &code.sha256, code.image.is_some()));
        // The folders of packages are named after their contents.
        let layers: String = opt.layers.iter().map(|layer| layer.code.sha256.as_str()).collect();
        parts.extend(opt.folder.iter().map(|folder| part(folder, &layers, false)));
    }
    parts.sort_by(|one, other| one.source.cmp(&other.source));
    parts.dedup_by(|one, other| one.source == other.source);
    let named = |(number, part): (usize, Part)| Part { name: number.to_string(), ..part };
    parts.into_iter().enumerate().map(named).collect()
}
