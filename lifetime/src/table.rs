//! A profile as two Parquet tables, for training: one row a calling context (LLAMA §5.1), and one row a range of code, of all
//! the modules: so that a model can be given the names of functions that were never seen on a stack.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RecordWriter;
use parquet_derive::ParquetRecordWriter;

use crate::code;
use crate::label::{CLASS_NAMES, t95};
use crate::profile::{CLASSES, Frame, Profile};
use crate::symbols::Symbols;

/// Version of the tables, in their metadata as `mayfly.version`.
const VERSION: &str = "2";

/// What stands between two frames of a stack, which begins with the innermost; also a token of its own to the model (LLAMA §5.2).
pub const FRAME_SEPARATOR: &str = "@";

#[derive(ParquetRecordWriter)]
struct Row {
    program: String,
    program_build_id: String,
    context: u64,
    profile: String,
    stack: String,
    frames: Vec<u8>,
    depth: u32,
    sampled: u64,
    unwatched: u64,
    allocations: f64,
    bytes: f64,
    freed: u64,
    live: u64,
    same_thread: u64,
    same_cpu: u64,
    size_min: u64,
    size_max: u64,
    size_sum: f64,
    size_sum_of_squares: f64,
    alignment_min: u64,
    alignment_max: u64,
    alignment_sum: f64,
    alignment_sum_of_squares: f64,
    lifetime_min_ns: u64,
    lifetime_max_ns: u64,
    lifetime_sum_ns: f64,
    lifetime_sum_of_squares_ns2: f64,
    freed_10ms: u64,
    freed_100ms: u64,
    freed_1s: u64,
    freed_10s: u64,
    freed_100s: u64,
    freed_1000s: u64,
    freed_later: u64,
    t95: Option<String>,
}

#[derive(ParquetRecordWriter)]
struct CodeRow {
    module: u32,
    path: String,
    build_id: String,
    start: u64,
    end: u64,
    names: String,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Writes the contexts to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>, path: &Path) -> Result<()> {
    let program = profile.modules.iter().find(|module| !module.path.to_string_lossy().contains(".so"));
    let name = program.map_or(String::new(), |module| module.path.display().to_string());
    let build_id = program.map_or(String::new(), |module| hex(&module.build_id));
    let run = format!("{}-{}", profile.pid, profile.start_unix_ns);
    let rows: Vec<Row> = profile
        .contexts
        .iter()
        .map(|context| {
            let stack: Vec<String> = context.frames.iter().map(|&frame| symbols.text_of(frame)).collect();
            let [freed_10ms, freed_100ms, freed_1s, freed_10s, freed_100s, freed_1000s, freed_later]: [u64;
                CLASSES] = context.classes;
            Row {
                program: name.clone(),
                program_build_id: build_id.clone(),
                context: context.id,
                profile: run.clone(),
                stack: stack.join(FRAME_SEPARATOR),
                frames: context.frames.iter().flat_map(|frame| frame.place().to_le_bytes()).collect(),
                depth: stack.len() as u32,
                sampled: context.sampled,
                unwatched: context.unwatched,
                allocations: context.allocations,
                bytes: context.bytes,
                freed: context.freed,
                live: context.live,
                same_thread: context.same_thread,
                same_cpu: context.same_cpu,
                size_min: context.size.min,
                size_max: context.size.max,
                size_sum: context.size.sum,
                size_sum_of_squares: context.size.sum_of_squares,
                alignment_min: context.alignment.min,
                alignment_max: context.alignment.max,
                alignment_sum: context.alignment.sum,
                alignment_sum_of_squares: context.alignment.sum_of_squares,
                lifetime_min_ns: context.lifetime_ns.min,
                lifetime_max_ns: context.lifetime_ns.max,
                lifetime_sum_ns: context.lifetime_ns.sum,
                lifetime_sum_of_squares_ns2: context.lifetime_ns.sum_of_squares,
                freed_10ms,
                freed_100ms,
                freed_1s,
                freed_10s,
                freed_100s,
                freed_1000s,
                freed_later,
                t95: t95(context).map(|class| CLASS_NAMES[class].to_owned()),
            }
        })
        .collect();
    write_rows(&rows, path)
}

/// Writes the names of all the code of the profile's modules to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write_code<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>, path: &Path) -> Result<()> {
    let mut rows = Vec::new();
    for (number, module) in profile.modules.iter().enumerate() {
        let calls = profile.contexts.iter().flat_map(|context| &context.frames);
        let calls: Vec<Frame> = calls.filter(|frame| frame.module == Some(number)).copied().collect();
        for range in code::ranges(symbols, module, number, &calls) {
            rows.push(CodeRow {
                module: number as u32 + 1,
                path: module.path.display().to_string(),
                build_id: hex(&module.build_id),
                start: range.start,
                end: range.end,
                names: range.names,
            });
        }
    }
    write_rows(&rows, path)
}

fn write_rows<T>(rows: &[T], path: &Path) -> Result<()>
where
    for<'a> &'a [T]: RecordWriter<T>,
{
    let cannot = || format!("cannot write {}", path.display());
    let file = std::fs::File::create(path).with_context(cannot)?;
    let properties = WriterProperties::builder()
        .set_compression(parquet::basic::Compression::SNAPPY)
        .set_key_value_metadata(Some(vec![KeyValue::new("mayfly.version".to_owned(), VERSION.to_owned())]))
        .build();
    let mut writer =
        SerializedFileWriter::new(file, rows.schema()?, Arc::new(properties)).with_context(cannot)?;
    let mut group = writer.next_row_group()?;
    rows.write_to_row_group(&mut group).with_context(cannot)?;
    group.close()?;
    writer.close().with_context(cannot)?;
    Ok(())
}
