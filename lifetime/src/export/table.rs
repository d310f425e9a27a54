//! A profile as two Parquet tables, for training: one row for each calling context (LLAMA §5.1), and one for
//! each range of code on a stack. All the code of a file is a table of the second kind, which gives a model
//! the functions that no stack had.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::record::RecordWriter;
use parquet_derive::ParquetRecordWriter;

use crate::code::ranges::{self, Code, Range};
use crate::code::symbols::{Symbols, hexadecimal};
use crate::profile::contents::{CLASSES, Context, Frame, Module, Profile};
use crate::profile::label::{CLASS_NAMES, lifetime};

/// Version of the tables, in their metadata as `mayfly.version`.
const VERSION: &str = "2";

/// Separates two frames of a stack, which begins with the innermost; also a token of its own to the model
/// (LLAMA §5.2).
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
    left_10ms: u64,
    left_100ms: u64,
    left_1s: u64,
    left_10s: u64,
    left_100s: u64,
    left_1000s: u64,
    left_later: u64,
    t95: Option<String>,
    t95_at_least: bool,
    freed_by: Option<String>,
    freed_by_objects: u64,
    frees_seen: u64,
}

#[derive(ParquetRecordWriter)]
struct CodeRow<'a> {
    module: u32,
    path: &'a str,
    build_id: &'a str,
    start: u64,
    end: u64,
    names: &'a str,
}

/// Rows in memory at once during writing.
const ROWS: usize = 1 << 15;
/// Each group of rows stores a distinct string once, up to this many bytes of strings.
const DICTIONARY_BYTES: usize = 64 << 20;
/// Zstandard's own default.
const ZSTD_LEVEL: i32 = 3;

/// Writes the contexts to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>, path: &Path) -> Result<()> {
    let run = format!("{}-{}", profile.pid, profile.start_unix_ns);
    let cannot = || format!("cannot write {}", path.display());
    let mut writer = writer::<Row>(path)?;
    for contexts in profile.contexts.chunks(ROWS) {
        add_rows(&mut writer, &rows_of(profile, contexts, symbols, &run)).with_context(cannot)?;
    }
    writer.close().with_context(cannot)?;
    Ok(())
}

fn text_of(frames: &[Frame], symbols: &mut Symbols) -> String {
    let names: Vec<String> = frames.iter().map(|&frame| symbols.text_of(frame)).collect();
    names.join(FRAME_SEPARATOR)
}

fn rows_of(profile: &Profile, contexts: &[Context], symbols: &mut Symbols, run: &str) -> Vec<Row> {
    contexts
        .iter()
        .map(|context| {
            let stack = text_of(&context.frames, symbols);
            let program = profile.program_of(context).map(|number| &profile.modules[number]);
            let lifetime = lifetime(context);
            let most = context.frees.iter().max_by_key(|frees| frees.objects);
            let [left_10ms, left_100ms, left_1s, left_10s, left_100s, left_1000s, left_later] =
                context.censored();
            let [freed_10ms, freed_100ms, freed_1s, freed_10s, freed_100s, freed_1000s, freed_later]: [u64;
                CLASSES] = context.classes;
            Row {
                program: program.map_or(String::new(), |module| module.path.display().to_string()),
                program_build_id: program.map_or(String::new(), |module| hexadecimal(&module.build_id)),
                context: context.id,
                profile: run.to_owned(),
                stack,
                frames: context.frames.iter().flat_map(|frame| frame.place().to_le_bytes()).collect(),
                depth: context.frames.len() as u32,
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
                left_10ms,
                left_100ms,
                left_1s,
                left_10s,
                left_100s,
                left_1000s,
                left_later,
                t95: lifetime.map(|lifetime| CLASS_NAMES[lifetime.class].to_owned()),
                t95_at_least: lifetime.is_some_and(|lifetime| lifetime.at_least),
                freed_by: most.map(|frees| text_of(&frees.frames, symbols)),
                freed_by_objects: most.map_or(0, |frees| frees.objects),
                frees_seen: context.frees.iter().map(|frees| frees.objects).sum(),
            }
        })
        .collect()
}

/// Writes the names of the code on the profile's stacks to `path`. All other code is named when a model is
/// made.
///
/// # Errors
/// The file cannot be written.
pub fn write_code<'a>(profile: &'a Profile, symbols: &mut Symbols<'a>, path: &Path) -> Result<()> {
    let calls = profile.contexts.iter().flat_map(|context| &context.frames);
    let mut by_module: BTreeMap<usize, Vec<Frame>> = BTreeMap::new();
    calls.for_each(|&frame| by_module.entry(frame.module.unwrap_or(usize::MAX)).or_default().push(frame));
    by_module.remove(&usize::MAX); // generated at run time
    let mut writer = writer::<CodeRow>(path)?;
    for (number, calls) in by_module {
        add_code(&mut writer, number, &profile.modules[number], &ranges::of_calls(symbols, &calls), path)?;
    }
    writer.close().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(())
}

/// Writes the names of all the code of a file to `path`, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write_all_code(code: &Code, path: &Path) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let mut writer = writer::<CodeRow>(&fresh)?;
    let module =
        Module { path: code.path.clone(), build_id: code.build_id.clone(), addresses: 0..0, load_address: 0 };
    add_code(&mut writer, 0, &module, &code.ranges, path)?;
    writer.close().with_context(cannot)?;
    std::fs::rename(&fresh, path).with_context(cannot)
}

fn add_code(
    writer: &mut SerializedFileWriter<std::fs::File>,
    number: usize,
    module: &Module,
    ranges: &[Range],
    path: &Path,
) -> Result<()> {
    let (file, build_id) = (module.path.display().to_string(), hexadecimal(&module.build_id));
    for ranges in ranges.chunks(ROWS) {
        let rows: Vec<CodeRow> = ranges
            .iter()
            .map(|range| {
                let (module, start, end) = (number as u32 + 1, range.start, range.end);
                CodeRow { module, path: &file, build_id: &build_id, start, end, names: &range.names }
            })
            .collect();
        add_rows(writer, &rows).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Zstandard, which DuckDB, Arrow and Spark read on every system: Spark's Snappy fails where it finds musl's
/// loader beside the C library that runs it. Tables of before are Snappy's, and are read as well.
fn compression() -> Result<Compression> {
    Ok(Compression::ZSTD(ZstdLevel::try_new(ZSTD_LEVEL)?))
}

fn writer<T>(path: &Path) -> Result<SerializedFileWriter<std::fs::File>>
where
    for<'a> &'a [T]: RecordWriter<T>,
{
    let cannot = || format!("cannot write {}", path.display());
    let file = std::fs::File::create(path).with_context(cannot)?;
    let properties = WriterProperties::builder()
        .set_compression(compression()?)
        .set_dictionary_page_size_limit(DICTIONARY_BYTES)
        .set_key_value_metadata(Some(vec![KeyValue::new("mayfly.version".to_owned(), VERSION.to_owned())]))
        .build();
    let none: &[T] = &[];
    SerializedFileWriter::new(file, none.schema()?, Arc::new(properties)).with_context(cannot)
}

fn add_rows<T>(writer: &mut SerializedFileWriter<std::fs::File>, rows: &[T]) -> Result<()>
where
    for<'a> &'a [T]: RecordWriter<T>,
{
    let mut group = writer.next_row_group()?;
    rows.write_to_row_group(&mut group)?;
    group.close()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};

    #[test]
    fn every_column_is_compressed_by_zstandard() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("all.symbols.parquet");
        let names: Vec<String> = (0..1000)
            .map(|number| format!("std::vector<Tile{number}>::push_back(Tile{number} const&)"))
            .collect();
        let range = |(number, names): (usize, &String)| Range {
            start: 16 * number as u64,
            end: 16 * number as u64 + 16,
            names: names.as_str().into(),
        };
        let ranges = names.iter().enumerate().map(range).collect();
        let code = Code { path: "/opt/server".into(), build_id: vec![1; 20], ranges };
        write_all_code(&code, &path).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let groups = reader.metadata().row_groups();
        assert_eq!(groups.iter().map(|group| group.num_rows()).sum::<i64>(), 1000);
        for column in groups.iter().flat_map(|group| group.columns()) {
            let codec = column.compression();
            assert!(matches!(codec, Compression::ZSTD(_)), "{}: {codec}", column.column_path());
        }
        let text: usize = names.iter().map(String::len).sum();
        let written = std::fs::metadata(&path).unwrap().len() as usize;
        assert!(written < text / 4, "{written} of {text} bytes");
    }
}
